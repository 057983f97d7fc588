"""Finds races in the memory that ranks share, whatever their timing: each rank is a thread that notes what it uses.

Two things order what different ranks do: barriers, and the counts of `Slots`, where who reads a count comes after all
that its owner did before it told it. Between two barriers a byte that one rank writes must be used by no other, and in
a slot each two uses must be ordered by counts. Whether that holds follows from the notes alone: no rank has to be slow
at the right moment.

The order by counts is kept in vector clocks (Mattern 1989): a rank's clock says how many counts of every
rank it comes after. Telling a count ticks the teller's own entry, and reading one takes the greater of the entries.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from types import ModuleType
from typing import Any

import pytest
import torch

from hpsearch_comm.shm import slots
from hpsearch_comm.shm.shm_segment import ShmSegment
from tests.comm.collectives.torch_uses import TorchUses


@dataclass(frozen=True)
class Access:
    """Bytes `start` to `stop` of some memory that a rank has read or written."""

    rank: int
    start: int
    stop: int
    writes: bool
    task: str
    clock: tuple[int, ...] = ()
    """In a slot: what the rank had come after."""

    def meets(self, other: Access) -> bool:
        """Say whether the two must not happen at the same time, and might."""
        return (
            self.rank != other.rank
            and not (self.clock and (self.before(other) or other.before(self)))
            and (self.writes or other.writes)
            and self.start < other.stop
            and other.start < self.stop
        )

    def before(self, other: Access) -> bool:
        """Say whether the other rank had heard of a time after this."""
        return other.clock[self.rank] > self.clock[self.rank]


class Accesses:
    """What the ranks have done to the memory of their segments: by memory and barrier, or by slot."""

    def __init__(self, size: int) -> None:
        self._noted: dict[tuple[str, int], list[Access]] = defaultdict(list)
        self._clocks = [[0] * size for _ in range(size)]
        self._told: dict[tuple[int, int], list[int]] = {}
        """The clock with which a count was told, by its word and value."""
        self._here = threading.local()
        self._lock = threading.Lock()

    def watch_copies(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Note what these modules copy in calls that torch doesn't see."""
        for module in modules:
            monkeypatch.setattr(module, "copy", self._noting(module.copy))

    @contextmanager
    def of(self, shm: ShmSegment, task: str) -> Iterator[None]:
        """Note what this thread does in the body, as this segment's rank."""
        self._here.shm, self._here.task = shm, task
        with TorchUses(self.note):
            yield
        del self._here.shm

    def note(self, tensor: torch.Tensor, writes: bool) -> None:
        """Note that this thread uses a tensor, if it lies in shared memory."""
        shm = getattr(self._here, "shm", None)
        if shm is None or not tensor.numel():
            return
        for memory, base, stop, offset in _mappings(shm):
            start = tensor.data_ptr()
            if base <= start < stop:
                start += offset - base
                slot = (start - shm.slots._start) // slots.SLOT if memory == "segment" else -1
                within = 0 <= slot < shm.slots._number
                with self._lock:
                    clock = tuple(self._clocks[shm.index]) if within else ()
                    access = Access(shm.index, start, start + tensor.nbytes, writes, self._here.task, clock)
                    self._noted[("slot", slot) if within else (memory, shm.barrier._count)].append(access)

    def races(self) -> list[tuple[Access, Access]]:
        """Return all pairs of accesses to one byte that are not ordered and of which one writes."""
        return [pair for noted in self._noted.values() for pair in combinations(noted, 2) if pair[0].meets(pair[1])]

    def watch_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note what the ranks tell each other through the counts of their slots."""
        tell, reached = slots.Slots._tell, slots.Slots._reached

        def telling(of: slots.Slots, word: int, count: int) -> None:
            with self._lock:
                clock = self._clocks[of._index]
                clock[of._index] += 1
                self._told[word, count] = list(clock)
            tell(of, word, count)

        def reading(of: slots.Slots, words: Sequence[int], count: int) -> bool:
            found = reached(of, words, count)
            if found:
                with self._lock:
                    own = self._clocks[of._index]
                    for word in words:
                        own[:] = map(max, own, self._told.get((word, count), own))
            return found

        monkeypatch.setattr(slots.Slots, "_tell", telling)
        monkeypatch.setattr(slots.Slots, "_reached", reading)

    def _noting(self, copy: Any) -> Any:
        def noted(to: torch.Tensor, source: torch.Tensor) -> None:
            self.note(to, True)
            self.note(source, False)
            copy(to, source)

        return noted


def _mappings(shm: ShmSegment) -> Iterator[tuple[str, int, int, int]]:
    """Yield this rank's mappings: the memory's name, the mapping's address and end, and its offset in the memory."""
    base = shm._words.base
    yield "segment", base, base + len(shm._bytes), 0
    for start, (stop, buffer, _) in shm._buffers._buffers.items():
        name = f"buffer {buffer.number}"
        yield name, start, stop, shm.index * buffer._stride
        whole = buffer.part(0, 0, 0, torch.uint8).data_ptr()
        yield name, whole, whole + shm.size * buffer._stride, 0
