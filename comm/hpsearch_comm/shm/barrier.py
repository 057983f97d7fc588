"""A barrier: words in shared memory by which ranks wait for each other.

A waiting rank polls for two milliseconds. If every rank has its own core, it first holds the core for some time; then
it yields between two polls. A background thread, whose caller computes meanwhile, polls for only a tenth of a
millisecond. After that the rank sleeps on a futex, in slices of at most a tenth of a second, and checks the group's
abort state after each slice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from hpsearch_comm.errors import CommError
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.shm import futex

LINE = 64
"""Size of a cache line in bytes. Words that different ranks write are this far apart, to avoid false sharing."""

SLICE = 0.1
"""Longest sleep in seconds."""

SPIN = 50e-6
"""Seconds for which a wait polls without yielding its core and the interpreter lock."""

LOOK = 2e-3
"""Seconds for which a wait polls in total, mostly yielding its core: many times the cost of a sleep and a wake-up.

A rank that sleeps in one step is late for the next step, and then the others sleep too.
"""

BESIDE_LOOK = 1e-4
"""The same for a background thread. Linux first divides cores among sessions or containers, and a thread yields only
within its own. If each rank has its own session and two ranks share a core, a polling thread takes the core from a rank
that computes: with two milliseconds here, steps of DistributedDataParallel took a fifth longer.
"""

_MASK = 0xFFFFFFFF
_MOST_VIEWS = 4096


def views_of(memory: torch.Tensor) -> Callable[[int, torch.dtype, int], torch.Tensor]:
    """Return a function that returns views of memory (uint8) as tensors: `(first byte, dtype, numel)`.

    Creating a view takes longer than copying a short tensor, so the last views are cached.
    """

    @lru_cache(_MOST_VIEWS)
    def view(start: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        return memory[start : start + numel * dtype.itemsize].view(dtype)

    return view


class Words:
    """A shared mapping as 32-bit words, as an address and as tensors.

    Args:
        memory: The whole mapping, uint8. A reference is kept, so that the addresses stay valid.
        octets: The same memory.

    Attributes:
        view: The 32-bit words.
        base: The address of the first word.
        tensor: Function that returns tensors in this memory; see `views_of`.
    """

    __slots__ = ("base", "tensor", "view")

    def __init__(self, memory: torch.Tensor, octets: memoryview) -> None:
        self.view = octets.cast("I")
        self.base = memory.data_ptr()
        self.tensor = views_of(memory)


class Barrier:
    """A barrier: no member passes before all have arrived.

    Each member has a word that counts its arrivals, modulo 2^32, which the others read. A member can be ahead of
    another by one barrier at most. One more word says whether somebody sleeps on it:

        who arrives               who sleeps
        counts its arrival        says that it sleeps
        ---- full memory barrier, so that at least one of the two sees what the other wrote ----
        if all have arrived       if somebody hasn't arrived
        and somebody sleeps:      and the word still says so:
        wakes everybody           sleeps

    So the last member to arrive wakes the others, and makes no system call if all of them poll.

    Args:
        words: The shared mapping.
        arrivals: Byte offset of each member's word.
        asleep: Byte offset of the word to sleep on.
        index: Index of this rank among the members.
        members: The ranks.

    Attributes:
        fence: Full memory barrier: no access of this rank moves across it.
        apart: Whether each member is a separate process. Polling threads of one process would block each other.
        may_spin: Whether, in addition, each member has its own core.
    """

    def __init__(self, words: Words, arrivals: Sequence[int], asleep: int, index: int, members: Sequence[int]) -> None:
        self.apart = self.may_spin = False
        self.fence = _atomic() if futex.ORDERED else futex.adder(words.base + arrivals[index], 0)
        self._words = words
        self._view = words.view
        self._count = 0
        self._own_word = arrivals[index] // 4
        self._other_words = [(offset // 4, members[i]) for i, offset in enumerate(arrivals) if i != index]
        self._asleep = asleep // 4
        self._wake = futex.waker(words.base + asleep)

    def wait(self, operation: Operation) -> None:
        """Arrive, and wait for all other members.

        After the barrier, a member sees everything that the others stored before they arrived.

        Args:
            operation: The operation, with its timeout and whether this thread may spin.

        Raises:
            CommError: The group has ended meanwhile, a peer has left, or the deadline has passed.
        """
        if not futex.ORDERED:
            self.fence()
        view, others = self._view, self._other_words
        count = self._count = (self._count + 1) & _MASK
        view[self._own_word] = count
        self.fence()
        wait: Wait | None = None
        behind: list[int] = []
        since = held = seconds = 0.0
        while True:
            for word, _rank in others:
                if (view[word] - count) & _MASK > 1:
                    break
            else:
                break  # everyone has arrived
            if wait is None:
                now = time.perf_counter()
                if not since:
                    since, (held, seconds) = now, self.looks(operation)
                if now - since < seconds:
                    if now - since >= held:
                        futex.give_way()
                    continue
                wait = Wait(operation)
            awaited = self._behind()
            if awaited != behind:
                wait.progressed()
                behind = awaited
            try:
                wait.check(awaited)
            except CommError:
                # A peer that has arrived since the last check may have left again: this is no error.
                if self._behind():
                    raise
                break
            view[self._asleep] = 1
            self.fence()
            if self._behind():
                futex.wait(self._words.base + self._asleep * 4, 1, SLICE)
        if not since and view[self._asleep]:  # everyone had arrived at the first look: this member may be the last
            self.wake()
        if not futex.ORDERED:
            self.fence()

    def wake(self) -> None:
        """Wake all members that sleep here: when all have arrived, or to check the abort state when it has changed."""
        self._view[self._asleep] = 0
        self._wake()

    def _behind(self) -> list[int]:
        """Return the ranks that haven't arrived at this barrier. Other ranks may already be at the next one."""
        view, count, behind = self._view, self._count, []
        for word, rank in self._other_words:
            if (view[word] - count) & _MASK > 1:
                behind.append(rank)
        return behind

    def looks(self, operation: Operation) -> tuple[float, float]:
        """Return for how many seconds a wait holds its core, and for how many it polls in total."""
        if not self.apart:
            return 0.0, 0.0
        if operation.spin:
            return SPIN if self.may_spin else 0.0, LOOK
        return 0.0, BESIDE_LOOK


def _atomic() -> Callable[[], object]:
    """Return a function that runs a lock's atomic instructions: on x86 each is a full memory barrier."""
    lock = threading.Lock()

    def fence() -> None:
        lock.acquire(False)  # it may be left locked by Ctrl-C
        lock.release()

    return fence


def look(ready: Callable[[], bool], seconds_held: float, seconds: float) -> bool:
    """Poll a condition, and return whether it became true.

    Args:
        ready: The condition.
        seconds_held: Seconds to poll without yielding the core. Afterwards it is yielded between two polls.
        seconds: Seconds to poll in total.
    """
    now = time.perf_counter()
    spin_until, until = now + seconds_held, now + seconds
    while now < until:
        if ready():
            return True
        if now >= spin_until:
            futex.give_way()
        now = time.perf_counter()
    return False
