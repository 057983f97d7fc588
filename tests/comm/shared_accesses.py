"""Finds races in the memory that ranks share, whatever their timing: each rank is a thread that notes what it uses.

Between two barriers nothing orders what different ranks do. So a byte that one of them writes there must be used by no
other, and whether that holds follows from the notes alone: no rank has to be slow at the right moment.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from types import ModuleType
from typing import Any

import pytest
import torch

from hpsearch_comm.memory.arena import Arena
from tests.comm.torch_uses import TorchUses


@dataclass(frozen=True)
class Access:
    """Bytes `start` to `stop` of some memory that a rank has read or written."""

    rank: int
    start: int
    stop: int
    writes: bool
    task: str

    def meets(self, other: Access) -> bool:
        """Say whether the two must not happen at the same time."""
        return (
            self.rank != other.rank
            and (self.writes or other.writes)
            and self.start < other.stop
            and other.start < self.stop
        )


class Accesses:
    """What the ranks have done to the memory of their arenas, by memory and barrier."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, int], list[Access]] = defaultdict(list)
        self._here = threading.local()
        self._lock = threading.Lock()

    def watch_copies(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Note what these modules copy in calls that torch doesn't see."""
        for module in modules:
            monkeypatch.setattr(module, "copy", self._noting(module.copy))

    @contextmanager
    def of(self, arena: Arena, task: str) -> Iterator[None]:
        """Note what this thread does in the body, as this arena's rank."""
        self._here.arena, self._here.task = arena, task
        with TorchUses(self.note):
            yield
        del self._here.arena

    def note(self, tensor: torch.Tensor, writes: bool) -> None:
        """Note that this thread uses a tensor, if it lies in shared memory."""
        arena = getattr(self._here, "arena", None)
        if arena is None or not tensor.numel():
            return
        for memory, base, stop, offset in _mappings(arena):
            start = tensor.data_ptr()
            if base <= start < stop:
                start += offset - base
                access = Access(arena.index, start, start + tensor.nbytes, writes, self._here.task)
                with self._lock:
                    self._noted[memory, arena.barrier._count].append(access)

    def races(self) -> list[tuple[Access, Access]]:
        """Give every two accesses of one byte that nothing orders, one of them writing."""
        return [pair for noted in self._noted.values() for pair in combinations(noted, 2) if pair[0].meets(pair[1])]

    def _noting(self, copy: Any) -> Any:
        def noted(to: torch.Tensor, source: torch.Tensor) -> None:
            self.note(to, True)
            self.note(source, False)
            copy(to, source)

        return noted


def _mappings(arena: Arena) -> Iterator[tuple[str, int, int, int]]:
    """Give what this rank has mapped: the memory's name, the mapping's address and end, and its place in the memory."""
    base = arena._memory.data_ptr()
    yield "arena", base, base + arena._memory.numel(), 0
    for start, (stop, buffer, _) in arena._buffers._buffers.items():
        name = f"buffer {buffer.number}"
        yield name, start, stop, arena.index * buffer._stride
        whole = buffer._whole.data_ptr()
        yield name, whole, whole + buffer._whole.numel(), 0
