"""Population based training: members train side by side, and the worst go on as copies of the best.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, Algorithm 1 with truncation
selection (section 4.1.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from hpsearch.decision import Decision
from hpsearch.objective import Objective, is_valid
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler
from hpsearch.schedulers.reasons import ordinal, ran
from hpsearch.trial import Score, StateAt

__all__ = ["PopulationBasedTraining"]

_MOST_FAILURES = 3
"""Failures in a row after which a member isn't replaced any more."""

_DUST = 1e-9
"""A share such as 0.29 of 100 is a little less than 29 in binary."""


@dataclass(slots=True)
class _Member:
    """A place in the population: the trial that holds it, and what was seen of it and of those before it."""

    trial: int
    state: Literal["running", "waiting", "judged", "over"] = "running"
    iteration: int = 0
    """Where its newest state stands that was judged, or from which it was forked."""
    began: int = 0
    """Iterations that its trial counted as done when it began."""
    copyable: bool = False
    """Its newest value is its own, and it stays."""
    failures: int = 0
    """In a row, of the trials that held the place; 0 unless the last one failed."""
    iterations: list[int] = field(default_factory=list)
    """Rising; with the values beside them what the place has shown."""
    values: list[Score] = field(default_factory=list)

    def value_at(self, iteration: int) -> Score | None:
        """Give what the place showed at an iteration; None where it didn't come to it."""
        count = bisect_right(self.iterations, iteration)
        return self.values[count - 1] if count and self.iterations[count - 1] == iteration else None

    @property
    def own(self) -> list[int]:
        """The iterations at which its trial was seen, the newest first."""
        return self.iterations[: bisect_right(self.iterations, self.began) - len(self.iterations) - 1 : -1]

    @property
    def lost(self) -> bool:
        """Whether it failed, or shows NaN: it can't become better by training on."""
        return self.failures > 0 or (bool(self.values) and not is_valid(self.values[-1]))


@dataclass(frozen=True, slots=True)
class _Verdict:
    member: int
    parent: StateAt | None
    """What is forked in its place; None: it goes on."""
    reason: str = ""


class PopulationBasedTraining(Scheduler):
    """Who comes to the end of an interval waits for its turn, and is judged when that comes; there is no barrier.

    The least advanced are next, and are judged together: so on one worker each interval is judged as a whole, and with
    as many workers as members each member by itself as it comes, as in the paper. Unlike there a member is compared at
    the newest of its iterations to which all have come but the share `quantile`, so that nobody wins or loses for
    having been trained for longer. A place keeps what a replaced member has shown.

    Replaced is who is among the worst `quantile` there, and is now worse than the one that is copied. Copied are the
    best `quantile` by turns, from their newest states, and never one that has come less far: so that a population of n
    takes no more than n times the last iteration, but for what failed. Where one of the best comes as far with its next
    interval, a member that is to be replaced waits for it. Who has ended isn't copied.

    A member that failed, or shows NaN, is replaced as soon as one is there that can be copied. One whose place failed
    three times in a row isn't.

    A call costs O(n log n) comparisons.

    Args:
        ends: The iterations at which members are judged; the last one is their end.
        population: How many members there are.
        quantile: The share that is replaced, and the share that is copied.
        objective: Ranks members.
        run_cap: How many trials may be created in all; who can't be forked any more goes on to the end.
    """

    def __init__(
        self, ends: Sequence[int], population: int, quantile: float, objective: Objective, run_cap: int | None = None
    ) -> None:
        super().__init__(run_cap, [ends])
        self._until = ends
        self._population = population
        self._quantile = quantile
        self._objective = objective
        self._members: list[_Member] = []
        self._place_of: dict[int, int] = {}
        """Trials to their places."""
        self._judged: list[_Verdict] = []
        """Those that weren't started yet."""
        self._forks = 0
        """How many were decided on."""
        self._stopped: list[Decision] = []
        """Those that nobody was told of yet."""

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Give the first members, and then those that go on and the forks, the least advanced first."""
        number = self._numbered + self._to_come()
        for first in range(self._numbered, number):
            yield NewTrial(first, self._until[0])
        for verdict in self._verdicts():
            if verdict.parent is None:
                member = self._members[verdict.member]
                rung = self._rung_after(member.iteration)
                yield Run(member.trial, self._until[rung], 0, rung)
            else:
                start = verdict.parent.iteration
                rung = self._rung_after(start)
                yield NewTrial(number, self._until[rung], 0, rung, verdict.parent, start)
                number += 1

    def started(self, answer: NewTrial | Run) -> None:
        """Take the first of `upcoming` as started."""
        if isinstance(answer, NewTrial) and answer.parent is None:
            self._place_of[answer.number] = len(self._members)
            self._members.append(_Member(answer.number))
            return
        if not self._judged:
            self._judge()
        place = self._judged.pop(0).member
        member = self._members[place]
        member.state = "running"
        if isinstance(answer, NewTrial):
            member.trial, member.iteration, member.began = answer.number, answer.start, answer.start
            self._place_of[answer.number] = place

    def ready(self) -> int:
        """Count what `upcoming` gives."""
        return sum(1 for _ in self.upcoming())

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Take a trial's outcome; answer who is complete, and whom forks replace since the last time.

        Raises:
            ValueError: The trial isn't running.
        """
        _, rung = self.end_segment(outcome)
        member, until = self._members[self._place_of[outcome.trial]], self._until[rung]
        member.state = "waiting"
        decisions = []
        if outcome.value is None:
            member.failures += 1
        else:
            member.failures, member.iteration, member.copyable = 0, outcome.iteration, True
            member.iterations.append(outcome.iteration)
            member.values.append(outcome.value)
            if outcome.iteration < until or until == self._until[-1]:
                member.state = "over"
                decisions.append(Decision(outcome.trial, "complete", ran(outcome, self._until[-1])))
        return [*decisions, *self._settle()]

    def prune(self, trial: int) -> Sequence[Decision]:
        """Take a trial for one that has failed: a fork takes its place, as soon as there is one to copy.

        Raises:
            ValueError: It neither runs nor waits.
        """
        if trial in self._running:
            return super().prune(trial)
        place = self._place_of.get(trial)
        if place is None or self._members[place].trial != trial or self._members[place].state == "over":
            raise ValueError(f"only a trial that runs or waits can be pruned, not trial {trial}")
        member = self._members[place]
        self._failed[trial] = 0, self._rung_after(member.iteration) - 1
        self._stopped = [decision for decision in self._stopped if decision.trial != trial]
        if any(verdict.member == place and verdict.parent is not None for verdict in self._judged):
            return self._settle()  # a fork was to take its place anyway
        self._judged = [verdict for verdict in self._judged if verdict.member != place]
        member.state = "waiting"
        member.failures += 1
        return self._settle()

    def needs(self) -> Collection[StateAt]:
        """Give the newest states of those that may be copied, and those that were chosen."""
        chosen = [verdict.parent for verdict in self._judged if verdict.parent is not None]
        least = [member.iteration for member in self._members if member.state != "over"]
        return chosen + [
            StateAt(member.trial, member.iteration)
            for member in self._members
            if self._may_be_copied(member)
            and (self._to_come() or sum(iteration <= member.iteration for iteration in least) > 1)
        ]

    def may_withdraw(self, trial: int) -> bool:
        """Say whether a trial failed, and no fork was chosen in its place."""
        if not super().may_withdraw(trial):
            return False
        member = self._members[self._place_of[trial]]
        return member.trial == trial and member.state == "waiting"

    def withdraw(self, trial: int) -> None:
        """Take back the outcome of a trial that failed.

        Raises:
            ValueError: It didn't fail, or a fork was chosen in its place.
        """
        if super().may_withdraw(trial) and not self.may_withdraw(trial):
            raise ValueError(f"only a failed trial that isn't replaced can be withdrawn; trial {trial} is")
        super().withdraw(trial)
        member = self._members[self._place_of[trial]]
        member.state = "running"
        member.failures -= 1

    def exhausted(self) -> Sequence[Decision]:
        """Take the last `NewTrial` back and ask for no more first members; forks go on.

        Raises:
            ValueError: The newest trial isn't in its first segment, so that there is no answer to take back.
        """
        super().exhausted()
        del self._place_of[self._numbered]
        self._members.pop()
        return self._settle()

    def total(self) -> None:
        """Give none: how many are forked depends on how they do."""
        return None

    def _to_come(self) -> int:
        """Count the first members that are still to be created."""
        return 0 if self._exhausted else self._population - len(self._members)

    def _rung_after(self, iteration: int) -> int:
        return bisect_right(self._until, iteration)

    def _settle(self) -> Sequence[Decision]:
        """Judge those whose turn it is, so that what comes next stays what it is; tell whom forks replace."""
        if not self._judged and not self._to_come():
            self._judge()
        stopped, self._stopped = self._stopped, []
        return stopped

    def _judge(self) -> None:
        """Judge the least advanced who wait, for good."""
        self._judged = next(self._groups(), [])
        for verdict in self._judged:
            member = self._members[verdict.member]
            member.state = "judged"
            if verdict.parent is not None:
                self._forks += 1
                member.copyable = False
                if member.trial not in self._failed:
                    self._stopped.append(Decision(member.trial, "stop", verdict.reason))

    def _verdicts(self) -> Iterator[_Verdict]:
        """Give those who were judged, and what would be made of the others who wait if their turn came now."""
        yield from self._judged
        for group in self._groups():
            yield from group

    def _groups(self) -> Iterator[list[_Verdict]]:
        """Judge those who wait, iteration by iteration; none is empty."""
        forks = self._forks
        waiting = [place for place, member in enumerate(self._members) if member.state == "waiting"]
        waiting.sort(key=self._iteration_of)
        for iteration, places in groupby(waiting, self._iteration_of):
            group = self._judged_at(iteration, list(places), forks)
            if group:
                yield group
            forks += sum(verdict.parent is not None for verdict in group)

    def _iteration_of(self, place: int) -> int:
        return self._members[place].iteration

    def _judged_at(self, iteration: int, places: Sequence[int], forks: int) -> list[_Verdict]:
        """Judge members that stand at an iteration; those that failed, and can't be replaced now, are left out.

        So are those that wait for one that is to be copied.

        Args:
            iteration: Where they stand.
            places: Theirs, in order.
            forks: How many were decided on before.
        """
        out = []
        for place in places:
            member = self._members[place]
            ranked, at = self._standing(member)
            parent = None
            if (member.lost or place in ranked[-self._share_of(ranked) :]) and self._may_fork(forks):
                parent = self._chosen(place, ranked or self._by_newest(), forks)
                if parent is None and self._comes_soon(member, ranked, at):
                    continue
            if parent is not None:
                forks += 1
                out.append(_Verdict(place, parent, self._reason(place, ranked, parent.trial)))
            elif not member.failures:
                out.append(_Verdict(place, None))
        return out

    def _standing(self, member: _Member) -> tuple[list[int], int]:
        """Rank the places at the newest of a member's iterations to which all have come but the share `quantile`.

        Gives the iteration, too; where there is none no place and 0.
        """
        for iteration in member.own:
            shown = {place: other.value_at(iteration) for place, other in enumerate(self._members)}
            known = {place: value for place, value in shown.items() if value is not None}
            coming = self._to_come() + sum(
                place not in known and other.state != "over" and other.failures < _MOST_FAILURES
                for place, other in enumerate(self._members)
            )
            if coming <= int(self._quantile * (len(known) + coming) + _DUST):
                return self._objective.rank(known), iteration
        return [], 0

    def _comes_soon(self, member: _Member, ranked: Sequence[int], at: int) -> bool:
        """Say whether one that is to be copied in the place of a member is about to come as far."""
        own = member.value_at(at)
        return any(
            self._may_be_copied(other)
            and other.iteration < member.iteration <= self._until[self._rung_after(other.iteration)]
            and self._objective.improves(other.value_at(at), own)
            for other in (self._members[place] for place in ranked[: self._share_of(ranked)])
        )

    def _by_newest(self) -> list[int]:
        """Rank the places by what they showed last."""
        known = enumerate(self._members)
        return self._objective.rank({place: member.values[-1] for place, member in known if member.values})

    def _share_of(self, ranked: Sequence[int]) -> int:
        """Count those who are replaced, and those who are copied, of the members that are known."""
        return max(int(self._quantile * len(ranked) + _DUST), 1)

    def _may_fork(self, forks: int) -> bool:
        if self._run_cap is None:
            return True
        begun = sum(verdict.parent is not None for verdict in self._judged)
        return self._numbered + self._to_come() + begun + forks - self._forks < self._run_cap

    def _chosen(self, place: int, ranked: Sequence[int], forks: int) -> StateAt | None:
        """Give what is forked in the place of a member: one of the best, by turns; None where none may be."""
        member = self._members[place]
        if member.failures >= _MOST_FAILURES:
            return None
        able = [better for better in ranked if better != place and self._is_better(self._members[better], member)]
        best = set(ranked[: self._share_of(ranked)])
        from_best = [better for better in able if better in best]
        if not from_best and not member.lost:
            return None
        found = from_best or able[:1]
        if not found:
            return None
        parent = self._members[found[forks % len(found)]]
        return StateAt(parent.trial, parent.iteration)

    def _is_better(self, other: _Member, member: _Member) -> bool:
        """Say whether another member may be copied in the place of one, and is worth it."""
        if not self._may_be_copied(other) or other.iteration < member.iteration:
            return False
        return member.lost or self._objective.improves(other.values[-1], member.values[-1])

    def _may_be_copied(self, member: _Member) -> bool:
        return member.copyable and member.state != "over" and not member.failures and is_valid(member.values[-1])

    def _reason(self, place: int, ranked: Sequence[int], parent: int) -> str:
        member = self._members[place]
        nan = " (NaN)" if member.lost else ""
        where = ordinal(ranked.index(place) + 1) if place in ranked else "none"
        return f"iteration {member.iteration}: {where} of {len(ranked)}{nan}, a fork of trial {parent} takes its place"
