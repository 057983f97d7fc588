"""Words in shared memory by which ranks wait for each other: a bell, and a barrier.

A rank that waits looks again and again for two milliseconds: at first, where every rank has a core to itself, without
letting go of the core, then giving way to whoever is ready. A thread beside its caller's, who computes meanwhile, looks
for a tenth of a millisecond. After that it sleeps on a futex, in slices of a tenth of a second at most, between which
it looks at the group's abort state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from hpsearch_comm.errors import CommError
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.shm import futex

LINE = 64
"""Bytes of a cache line: words that different ranks write lie that far apart, or the cores would fight over it."""

SLICE = 0.1
"""Longest sleep in seconds."""

SPIN = 50e-6
"""Seconds that a wait holds its core and the interpreter."""

LOOK = 2e-3
"""Seconds that a wait stays awake, but lets others have the core: many times what going to sleep and being woken costs.

A rank that sleeps in one step comes late to the next, and then the others sleep too.
"""

BESIDE_LOOK = 1e-4
"""The same for a thread beside its caller's. Linux divides cores among sessions or containers first, and who gives way
does so to its own alone. Where each rank has one of its own, and two share a core, such a thread takes it from a rank
that computes: with two milliseconds here, steps of DistributedDataParallel took a fifth longer.
"""

_MASK = 0xFFFFFFFF
_MOST_VIEWS = 4096


def views_of(memory: torch.Tensor) -> Callable[[int, torch.dtype, int], torch.Tensor]:
    """Return a function that views memory, uint8, as tensors: `(first byte, dtype, numel)`.

    Making a view takes longer than copying a short tensor: the last ones are kept.
    """

    @lru_cache(_MOST_VIEWS)
    def view(start: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        return memory[start : start + numel * dtype.itemsize].view(dtype)

    return view


class Words:
    """A mapping in the forms in which it is used.

    Args:
        memory: The whole mapping, uint8. It is kept, so that the addresses stay good.
        octets: The same memory.

    Attributes:
        view: The 32-bit words.
        base: The address of the first.
        tensor: Gives tensors over it; see `views_of`.
    """

    __slots__ = ("base", "octets", "tensor", "view")

    def __init__(self, memory: torch.Tensor, octets: memoryview) -> None:
        self.octets = octets
        self.view = octets.cast("I")
        self.base = memory.data_ptr()
        self.tensor = views_of(memory)


class Bell:
    """A word that counts rings. Any rank may ring it; its owner waits for it.

    Look at the bell, then at what it announces, then wait for the next ring after that look: none is missed.
    """

    __slots__ = ("_address", "_index", "_ring", "_view", "_words")

    def __init__(self, words: Words, offset: int) -> None:
        self._words = words
        self._view = words.view
        self._index = offset // 4
        self._address = words.base + offset
        self._ring = futex.ringer(self._address)

    def ring(self) -> None:
        """Count one, and wake whoever waits. Everything stored before is seen by those who see the ring."""
        self._ring()

    def mark(self) -> int:
        """Return how often it has rung, modulo 2^32."""
        return int(self._view[self._index])

    def wait(self, mark: int, seconds: float) -> None:
        """Sleep until it has rung since `mark`, or for so many seconds; it may wake for no reason."""
        futex.wait(self._address, mark, seconds)


class Barrier:
    """Where all members meet: nobody passes before everybody has come.

    Each member has a word that counts its arrivals: who spins reads those. Two shared counters tell sleepers: arrivals
    count up to the number of members at one barrier and down to 0 the next time, so that nobody resets them, and the
    kernel wakes the sleepers exactly when the last one arrives. Barriers take the two counters in turn: a counter isn't
    touched again before everybody has come to the barrier after, and so has seen that this one was complete.

        barrier   1         2         3         4         5
        counter   B: 0→p    A: 0→p    B: p→0    A: p→0    B: 0→p   ...

    All numbers are modulo 2^32. A member can be ahead of another by one barrier at most.

    Args:
        words: The shared mapping.
        arrivals: Byte offset of each member's word.
        counters: Byte offsets of the counters A and B.
        index: Which member this rank is.
        members: The ranks.

    Attributes:
        fence: Keeps this rank's reads and writes of memory before it from being seen after those that follow.
        apart: Whether each member is a process of its own. Threads of one would only keep the interpreter from others.
        may_spin: Whether each member has a core of its own, too.
    """

    def __init__(
        self, words: Words, arrivals: Sequence[int], counters: tuple[int, int], index: int, members: Sequence[int]
    ) -> None:
        size = len(members)
        self.apart = self.may_spin = False
        self._words = words
        self._view = words.view
        self._count = 0
        self._own_word = arrivals[index] // 4
        self._other_words = [(offset // 4, members[i]) for i, offset in enumerate(arrivals) if i != index]
        quiet = words.base + arrivals[index]
        self.fence = futex.adder(quiet, 0, 0, quiet)  # an indivisible addition of nothing, to a word of ours
        # By the barrier's number modulo 4: where to sleep, and how to arrive.
        self._counters = [counters[number & 1] // 4 for number in range(4)]
        self._arrive = [
            futex.adder(words.base + counters[number & 1], *((1, size - 1) if number in (1, 2) else (-1, 1)), quiet)
            for number in range(4)
        ]

    def wait(self, operation: Operation) -> None:
        """Arrive, and wait for all others.

        What members stored before they arrived is seen by all who have passed.

        Args:
            operation: Gives the deadline, and says whether this thread may spin.

        Raises:
            CommError: The group has ended meanwhile, a peer has left, or the deadline is over.
        """
        if not futex.ORDERED:
            self.fence()
        count = self._count = (self._count + 1) & _MASK
        self._view[self._own_word] = count
        self._arrive[count & 3]()
        index = self._counters[count & 3]
        wait: Wait | None = None
        behind: list[int] = []
        while True:
            mark = self._view[index]  # before the look at who is behind: of what comes after it, the sleep is woken
            awaited = self._behind()
            if not awaited or (wait is None and self.apart and self._look(*self.looks(operation))):
                break
            if wait is None:
                wait = Wait(operation)
            if awaited != behind:
                wait.progressed()
                behind = awaited
            try:
                wait.check(awaited)
            except CommError:
                # Who has come since we looked may have left since: that is no reason to give up.
                if self._behind():
                    raise
                break
            futex.wait(self._words.base + index * 4, mark, SLICE)
        if not futex.ORDERED:
            self.fence()

    def wake(self) -> None:
        """Make those who sleep here look at the group's abort state; for a thread that has seen it change."""
        for index in set(self._counters):
            futex.waker(self._words.base + index * 4)()

    def _behind(self) -> list[int]:
        """Name the ranks that haven't come yet; who has may be at the next barrier already."""
        view, count, behind = self._view, self._count, []
        for word, rank in self._other_words:
            if (view[word] - count) & _MASK > 1:
                behind.append(rank)
        return behind

    def looks(self, operation: Operation) -> tuple[float, float]:
        """Return how long a wait of an operation holds its core, and how long it stays awake in all, in seconds."""
        if operation.spin:
            return SPIN if self.may_spin else 0.0, LOOK
        return 0.0, BESIDE_LOOK

    def _look(self, seconds_held: float, seconds: float) -> bool:
        """Do as `look`, for everybody to have come, without frames of its own."""
        view, count, other_words = self._view, self._count, self._other_words
        now = time.perf_counter()
        spin_until, until = now + seconds_held, now + seconds
        while now < until:
            for word, _rank in other_words:
                if (view[word] - count) & _MASK > 1:
                    break
            else:
                return True
            if now >= spin_until:
                futex.give_way()
            now = time.perf_counter()
        return False


def look(ready: Callable[[], bool], seconds_held: float, seconds: float) -> bool:
    """Look again and again, and say whether it became ready.

    Args:
        ready: Looks.
        seconds_held: For how long to hold the core, before it is given to whoever wants it between two looks.
        seconds: For how long in all.
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
