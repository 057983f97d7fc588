"""One piece of memory that all ranks of a group have, for what they change together without collectives.

Its pages, from the first:

    counts     a line for each rank: how often it has called `advance`
    locks      a line for each: a mutex, who holds it, and how often it was taken
    data       from the next page on: the user's
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
import weakref
from dataclasses import dataclass

import torch

from hpsearch_comm.errors import CommError, PeerLost, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.header import Signature
from hpsearch_comm.shm import robust
from hpsearch_comm.shm.barrier import LINE, LOOK, SLICE, look
from hpsearch_comm.shm.memfd import tensor_over

_HOLDER = robust.MUTEX_BYTES // 4  # of the 32-bit words of a lock's line: 1 + the place of its holder, or 0
_TURNS = _HOLDER + 1
_SHORTEST, _LONGEST = 100e-6, 10e-3
"""Seconds of a sleep while other ranks are behind; after twice as long each time a wait looks again."""

_mappings: dict[int, tuple[int, weakref.ref[mmap.mmap]]] = {}
"""Of this process: where each begins and ends."""


@dataclass(frozen=True, slots=True)
class Member:
    """Whose end of the memory it is, and what its waits look at."""

    rank: int
    members: tuple[int, ...]
    """All ranks of the group."""
    timeout: float
    """Seconds without progress after which a wait gives up."""
    abort_state: AbortState

    @property
    def index(self) -> int:
        """Return this rank's place among all."""
        return self.members.index(self.rank)

    def wait(self, operation: str, number: int) -> Wait:
        """Begin a wait."""
        packed = Signature(number, operation, "none").pack()
        return Wait(Operation(self.rank, packed, self.timeout, self.abort_state))


class SharedMemory:
    """Memory, zero at first, that every rank of a group reads and writes. Created by `Group.share`.

    Only its locks and the group's operations order the accesses: what was written before a barrier is visible to all
    after it. A collective can't write into it, because each rank would overwrite what others read; that is an error.
    It lives as long as tensors over it, and nothing remains when the last process has ended.

    Args:
        mapping: The memory, of the size that `size_of` returns.
        nbytes: Bytes of data.
        locks: Number of locks.
        member: This rank.

    Attributes:
        data: The user's bytes, a uint8 tensor; views of it have any dtype.
        locks: The locks.
    """

    def __init__(self, mapping: mmap.mmap, nbytes: int, locks: int, member: Member) -> None:
        base, size = tensor_over(mapping, 0, len(mapping)).data_ptr(), len(member.members)
        _mappings[base] = base + len(mapping), weakref.ref(mapping, _forget)
        self.data = tensor_over(mapping, _data_start(size, locks), nbytes)
        self.locks = [SharedLock(mapping, base, (size + number) * LINE, number, member) for number in range(locks)]
        self._member, self._index = member, member.index
        self._counts = memoryview(mapping)[: size * LINE].cast("q")[:: LINE // 8]

    def advance(self) -> None:
        """Count one more step of this rank, so that others see its progress.

        Raises:
            CommError: What has ended the group.
        """
        if self._member.abort_state.error is not None:
            self._member.abort_state.check()
        self._counts[self._index] += 1

    def wait(self) -> None:
        """Wait until all ranks have called `advance` as often as this one.

        It fails only if no rank calls `advance` for the group's `timeout`. It orders no accesses; call a barrier after
        it.

        Raises:
            CommError: The group has ended, a peer has left, or the timeout is over.
        """
        counts = self._counts.tolist()
        until = counts[self._index]
        if min(counts) >= until:
            return
        wait, pause = self._member.wait("await_counts", until), _SHORTEST
        while min(counts) < until:
            wait.check([rank for rank, count in zip(self._member.members, counts, strict=True) if count < until])
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
            if counts != (counts := self._counts.tolist()):
                wait.progressed()


class SharedLock:
    """A lock that one thread of all ranks holds at a time: `with memory.locks[0]: ...`.

    If its holder dies, nobody gets it again, and the group ends: the data may be partly written.

    Args:
        mapping: The memory.
        base: Its address.
        offset: Offset of the lock's line.
        number: Number of the lock.
        member: This rank.

    Raises:
        PeerLost: On entering: its holder has died.
        UsageError: On entering: this thread holds it already.
        CommError: On entering: the group has ended, or nobody has got the lock for the group's `timeout`.
    """

    def __init__(self, mapping: mmap.mmap, base: int, offset: int, number: int, member: Member) -> None:
        self._words = memoryview(mapping)[offset : offset + LINE].cast("I")
        self._address = base + offset
        self._number = number
        self._member = member
        self._thread = 0

    def __enter__(self) -> None:
        if self._thread == threading.get_ident():
            raise UsageError(f"this thread holds {self} already: give it back first")
        code = robust.try_lock(self._address)
        if code == errno.EBUSY:
            code = self._wait()
        if code:
            raise self._lost(code)
        self._thread = threading.get_ident()
        self._words[_HOLDER] = 1 + self._member.index
        self._words[_TURNS] = (self._words[_TURNS] + 1) & 0xFFFFFFFF

    def __exit__(self, *_: object) -> None:
        self._thread = 0
        self._words[_HOLDER] = 0
        robust.give_back(self._address)

    def __str__(self) -> str:
        return f"lock {self._number} of the shared memory"

    def make(self) -> None:
        """Make it; for one of the ranks, before any other uses it."""
        robust.make_mutex(self._address)

    def _wait(self) -> int:
        """Look for some time, as it is soon given back as a rule, then sleep."""
        code = errno.EBUSY

        def ended() -> bool:
            nonlocal code
            code = robust.try_lock(self._address)
            return code != errno.EBUSY

        if look(ended, 0.0, LOOK):
            return code
        wait, turns = self._member.wait("lock", self._number), self._words[_TURNS]
        while (code := robust.lock(self._address, SLICE)) == errno.ETIMEDOUT:
            if turns != (turns := self._words[_TURNS]):
                wait.progressed()
            holder = self._holder()
            wait.check(self._member.members if holder is None else [holder])
        return code

    def _holder(self) -> int | None:
        number = self._words[_HOLDER]
        return self._member.members[number - 1] if number else None

    def _lost(self, code: int) -> CommError:
        """Return the error of a lock that can't be had any more, and end the group with it."""
        holder, abort_state = self._holder(), self._member.abort_state
        if code == errno.EOWNERDEAD:
            robust.give_back(self._address)
        if code not in (errno.EOWNERDEAD, errno.ENOTRECOVERABLE):
            error = CommError(f"{self} can't be had: {os.strerror(code)}")
        else:
            if holder is None:  # it died between taking the lock and saying so: others may know who it was
                abort_state.await_verdict(-1)
            name = "a rank" if holder is None else f"rank {holder}"
            error = PeerLost(
                f"{name} has died while it held {self}: what that guards may be half written. Go on from what was "
                "saved before",
                -1 if holder is None else holder,
            )
        abort_state.fail(error)
        return error


def size_of(members: int, locks: int, nbytes: int) -> int:
    """Return how many bytes there must be for so many ranks, locks and bytes of data."""
    return _data_start(members, locks) + nbytes


def lies_in_shared_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor begins in memory that all ranks of a group of this process have."""
    if not _mappings:
        return False
    start = tensor.data_ptr()
    return any(base <= start < end and mapping() is not None for base, (end, mapping) in list(_mappings.items()))


def _forget(mapping: weakref.ref[mmap.mmap]) -> None:
    for base, (_, reference) in list(_mappings.items()):
        if reference is mapping:
            _mappings.pop(base, None)


def _data_start(members: int, locks: int) -> int:
    return -(-(members + locks) * LINE // mmap.PAGESIZE) * mmap.PAGESIZE
