"""Shared memory of all ranks of a group, for data that they change without collectives.

Layout, from the first page on:

    counts     a cache line for each rank: the number of its calls of `advance`
    locks      a cache line for each lock: a mutex, its holder, and how often it was locked
    data       from the next page on: the user's data

The mutexes are POSIX robust mutexes, called through ctypes: the next thread to lock one learns that its holder has
died. The kernel keeps a list of the mutexes that a thread holds, and marks them when the thread ends for any reason. So
a killed process never leaves others waiting.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from hpsearch_comm.errors import CommError, PeerLost, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.header import Signature
from hpsearch_comm.shm.barrier import LINE, LOOK, SLICE, look
from hpsearch_comm.shm.futex import Timespec
from hpsearch_comm.shm.memfd import tensor_over

_MUTEX_BYTES = 48
"""Maximum size of the C library's pthread_mutex_t, on the machines that torch runs on."""
_PROCESS_SHARED = _ROBUST = 1  # PTHREAD_PROCESS_SHARED and PTHREAD_MUTEX_ROBUST, of glibc and of musl
_ATTRIBUTE_BYTES = 64

_keeping_lock: Any = ctypes.PyDLL(None)
_releasing_lock: Any = ctypes.CDLL(None)

_HOLDER = _MUTEX_BYTES // 4  # index of a 32-bit word in a lock's line: 1 + the index of its holder, or 0
_TURNS = _HOLDER + 1
_SHORTEST, _LONGEST = 100e-6, 10e-3
"""Seconds of a sleep between two polls while other ranks are behind; each sleep is twice as long as the last."""

_mappings: dict[int, tuple[int, weakref.ref[mmap.mmap]]] = {}
"""The mappings of this process: start address to end address and mapping."""


@dataclass(frozen=True, slots=True)
class Member:
    """The rank that uses the memory, and what its waits check."""

    rank: int
    members: tuple[int, ...]
    """All ranks of the group."""
    timeout: float
    """Seconds without progress after which a wait fails."""
    abort_state: AbortState

    @property
    def index(self) -> int:
        """Return this rank's index among all ranks."""
        return self.members.index(self.rank)

    def wait(self, operation: str, number: int) -> Wait:
        """Start a wait."""
        packed = Signature(number, operation, "none").pack()
        return Wait(Operation(self.rank, packed, self.timeout, self.abort_state))


class SharedMemory:
    """Memory that every rank of a group reads and writes, zero at first. Created by `Group.share`.

    Only its locks and the group's operations order the accesses: data written before a barrier is visible to all ranks
    after it. A collective that would write its result into this memory raises an error, because each rank would
    overwrite data that others read. The memory lives as long as tensors in it; nothing remains when all processes have
    ended.

    Args:
        mapping: The memory, of the size that `size_of` returns.
        nbytes: Bytes of data.
        locks: Number of locks.
        member: This rank.

    Attributes:
        data: The user's data as a uint8 tensor; use `view` for another dtype.
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
            CommError: The group has ended, with this error.
        """
        if self._member.abort_state.error is not None:
            self._member.abort_state.check()
        self._counts[self._index] += 1

    def wait(self) -> None:
        """Wait until all ranks have called `advance` as often as this rank.

        It times out only if no rank calls `advance` for the group's `timeout`. It doesn't order memory accesses: call a
        barrier after it.

        Raises:
            CommError: The group has ended, a peer has left, or the timeout has passed.
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

    If its holder dies, it can't be locked again, and the group ends, because the data may be partly written.

    Args:
        mapping: The memory.
        base: Address of the memory.
        offset: Offset of the lock's line.
        number: Number of the lock.
        member: This rank.

    Raises:
        PeerLost: On entering: the holder has died.
        UsageError: On entering: this thread already holds the lock.
        CommError: On entering: the group has ended, or no thread has got the lock for the group's `timeout`.
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
        code = try_lock(self._address)
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
        give_back(self._address)

    def __str__(self) -> str:
        return f"lock {self._number} of the shared memory"

    def make(self) -> None:
        """Create the mutex; called by one rank, before any other uses the lock."""
        make_mutex(self._address)

    def _wait(self) -> int:
        """Poll for some time, because locks are usually released soon, then sleep."""
        code = errno.EBUSY

        def ended() -> bool:
            nonlocal code
            code = try_lock(self._address)
            return code != errno.EBUSY

        if look(ended, 0.0, LOOK):
            return code
        wait, turns = self._member.wait("lock", self._number), self._words[_TURNS]
        while (code := lock(self._address, SLICE)) == errno.ETIMEDOUT:
            if turns != (turns := self._words[_TURNS]):
                wait.progressed()
            holder = self._holder()
            wait.check(self._member.members if holder is None else [holder])
        return code

    def _holder(self) -> int | None:
        number = self._words[_HOLDER]
        return self._member.members[number - 1] if number else None

    def _lost(self, code: int) -> CommError:
        """Return the error of a lock whose holder has died, and end the group with it."""
        holder, abort_state = self._holder(), self._member.abort_state
        if code == errno.EOWNERDEAD:
            give_back(self._address)
        if code not in (errno.EOWNERDEAD, errno.ENOTRECOVERABLE):
            error = CommError(f"{self} can't be had: {os.strerror(code)}")
        else:
            if holder is None:  # it died before it recorded itself as holder: another rank may know which it was
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
    """Return the size of the mapping for this number of ranks, locks and bytes of data."""
    return _data_start(members, locks) + nbytes


def lies_in_shared_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor starts in a SharedMemory of this process."""
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


def make_mutex(address: int) -> None:
    """Create an unlocked mutex in memory that nobody uses yet.

    Raises:
        CommError: The C library has no robust mutexes, or none with a timeout.
    """
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    try:
        codes = [
            _keeping_lock.pthread_mutexattr_init(attributes),
            _keeping_lock.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED),
            _keeping_lock.pthread_mutexattr_setrobust(attributes, _ROBUST),
            _keeping_lock.pthread_mutex_init(ctypes.c_void_p(address), attributes),
        ]
        missing = "" if _releasing_lock.pthread_mutex_clocklock else "pthread_mutex_clocklock"
    except AttributeError as error:
        codes, missing = [], str(error)
    if missing or any(codes):
        why = missing or ", ".join(os.strerror(code) for code in codes if code)
        raise CommError(
            f"locks in shared memory need POSIX's robust mutexes, which can't be had here ({why}): the C library must "
            "be glibc 2.30 or newer"
        )


def try_lock(address: int) -> int:
    """Lock the mutex if it is free. Return 0, EBUSY, ENOTRECOVERABLE, or EOWNERDEAD, which also locks it."""
    return int(_keeping_lock.pthread_mutex_trylock(ctypes.c_void_p(address)))


def lock(address: int, seconds: float) -> int:
    """Lock the mutex, waiting at most for `seconds`. Return the same as `try_lock`, but ETIMEDOUT instead of EBUSY."""
    until = time.clock_gettime(time.CLOCK_MONOTONIC) + seconds
    span = Timespec(int(until), int(until % 1 * 1e9))
    clock = ctypes.c_int(time.CLOCK_MONOTONIC)
    return int(_releasing_lock.pthread_mutex_clocklock(ctypes.c_void_p(address), clock, ctypes.byref(span)))


def give_back(address: int) -> None:
    """Unlock the mutex. After EOWNERDEAD it can't be locked again: all calls return ENOTRECOVERABLE from then on."""
    code = _keeping_lock.pthread_mutex_unlock(ctypes.c_void_p(address))
    assert code == 0, os.strerror(code)
