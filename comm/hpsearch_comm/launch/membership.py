"""The ranks of a job that continues without dead ranks: which are alive, and which meet next.

This module does no I/O and reads no clock: callers pass events and times. It identifies ranks by their original
numbers. Ranks that meet get new numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpsearch_comm.roster import Coming, Roster


class Membership:
    """The ranks of a job.

    Args:
        hosts: The ranks of each host.
        least: Minimum number of ranks that are alive or have succeeded, for the job to continue.
    """

    def __init__(self, hosts: Iterable[Iterable[int]], least: int) -> None:
        self._hosts = [frozenset(ranks) for ranks in hosts]
        self._least = least
        self.alive = set().union(*self._hosts)
        self.succeeded: list[int] = []
        """Ranks that have ended with exit code 0."""
        self._done: set[int] = set()
        """Ranks whose collective work is done. They may still work alone, such as to save results."""
        self._coming: dict[int, Coming] = {}
        self.meetings = 0
        """Number of times that ranks have met."""
        self._numbers: dict[int, int] = {}
        """The new number of each rank that met last, by original rank."""
        self.waiting_since: float | None = None
        """When the first waiting rank came; None if no rank is waiting."""

    @property
    def suffices(self) -> bool:
        """Whether enough ranks are alive or have succeeded."""
        return len(self.alive) + len(self.succeeded) >= self._least

    def name(self, rank: int) -> str:
        """Return a rank's name for messages, with its new number if that differs."""
        number = self._numbers.get(rank, rank)
        return f"rank {rank}" if number == rank else f"rank {rank}, now rank {number},"

    @property
    def awaited(self) -> list[int]:
        """The living ranks that waiting ranks wait for; empty if no rank is waiting."""
        return sorted(self.alive - self._coming.keys()) if self._coming else []

    @property
    def late(self) -> list[int]:
        """The awaited ranks that must come in time: those whose work isn't done."""
        return [rank for rank in self.awaited if rank not in self._done]

    def join(self, rank: int, coming: Coming, now: float) -> None:
        """Record that a rank wants to meet the others."""
        if rank in self.alive:
            self._done.discard(rank)
            self._coming[rank] = coming
            if self.waiting_since is None:
                self.waiting_since = now

    def set_done(self, rank: int, done: bool = True) -> None:
        """Record whether a rank's work is done."""
        (self._done.add if done else self._done.discard)(rank)

    def end(self, rank: int, succeeded: bool) -> None:
        """Record that a rank has ended or is lost."""
        if rank in self.alive:
            self.alive.remove(rank)
            if succeeded:
                self.succeeded.append(rank)
            self._coming.pop(rank, None)
            if not self._coming:
                self.waiting_since = None

    def meet(self) -> dict[int, Roster]:
        """Form the group if every expected rank has arrived; return the roster for each of them."""
        if not self._coming or self.awaited:
            return {}
        members = sorted(self._coming)
        self._numbers = {rank: number for number, rank in enumerate(members)}
        addresses = tuple(self._coming[rank].address for rank in members)
        rosters = {}
        for ranks in self._hosts:
            local = [rank for rank in members if rank in ranks]
            for local_rank, rank in enumerate(local):
                call, number = self._coming[rank].call, self._numbers[rank]
                rosters[rank] = Roster(call, self.meetings, number, addresses, local_rank, len(local))
        self._coming, self.waiting_since = {}, None
        self.meetings += 1
        return rosters
