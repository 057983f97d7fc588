"""Population based training: members train in parallel, and the worst are replaced by forks of the best.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, Algorithm 1 with truncation
selection (section 4.1.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, ClassVar, Literal

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import AtLeast, Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective, is_valid
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler, ordinal, ran
from hpsearch.schedulers.early_terminate import EarlyTerminate, SchedulerCapabilities
from hpsearch.trial import Score, StateAt

_TURNS = 10
"""Default number of intervals in `max_iter`."""

_MOST_FAILURES = 3
"""Consecutive failures after which a member is no longer replaced."""

_DUST = 1e-9
"""Added before rounding down: as floats, 0.29 * 100 is slightly less than 29."""


@dataclass(frozen=True)
class PBT(EarlyTerminate):
    """Trains a population in parallel; at each `interval` the worst are replaced by forks of the best.

    Jaderberg et al. 2017, arXiv:1711.09846.
    """

    kind: ClassVar[str] = "pbt"
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(
        outcome_constraints=True, forks=True, newest=True
    )

    population: Annotated[int, AtLeast(2)] = 20
    """Number of members. With fewer workers than members, they take turns."""
    interval: Count | None = None
    """Iterations between two judgements of a member, each with a checkpoint; none: `max_iter` / 10, rounded up."""
    quantile: float = 0.2
    """The share of the population that is replaced, and that is copied; at least one member once all are known. Up to
    0.5."""

    def check(self) -> None:
        """Check that members are judged at least once before the end, and that `quantile` is at most a half."""
        if not 0 < self.quantile <= 0.5:
            raise InvalidKey(("quantile",), f"must be more than 0 and at most 0.5, got {self.quantile}")
        if len(self.ends) < 2:
            key, value = ("max_iter", self.max_iter) if self.interval is None else ("interval", self.interval)
            bound = "at least 2" if self.interval is None else f"less than max_iter ({self.max_iter})"
            raise InvalidKey((key,), f"must be {bound}, so that members are judged on the way, got {value}")

    @property
    def ends(self) -> tuple[int, ...]:
        """The iterations at which members are judged; the last one is their end."""
        every = -(-self.max_iter // _TURNS) if self.interval is None else self.interval
        return (*range(every, self.max_iter, every), self.max_iter)

    @property
    def least_trials(self) -> int:
        """The number of members; forks also count as trials."""
        return self.population

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        return PopulationBasedTraining(self.ends, self.population, self.quantile, objective, run_cap)

    def summary(self) -> str:
        """Return the number of members, their length of training, and the interval of judgements."""
        first, *_ = self.ends
        chosen = "" if self.interval is not None else f" (interval, not given: max_iter / {_TURNS})"
        return f"a population of {self.population}, judged every {first}{chosen} of {self.max_iter} iterations"


@dataclass(slots=True)
class _Member:
    """A member of the population: its current trial, and the results of that trial and of those that it replaced."""

    trial: int
    state: Literal["running", "waiting", "judged", "over"] = "running"
    iteration: int = 0
    """Iteration of the member's newest observed state, or of the state that it was forked from."""
    began: int = 0
    """Iterations that counted as done when the current trial started."""
    copyable: bool = False
    """Whether the newest value is from the current trial and the member isn't being replaced."""
    failures: int = 0
    """Consecutive failures of the member's trials; 0 unless the last one failed."""
    iterations: list[int] = field(default_factory=list)
    """Rising iterations of the member's results; `values` are the scores."""
    values: list[Score] = field(default_factory=list)

    def value_at(self, iteration: int) -> Score | None:
        """Return the member's value at an iteration; None if it has no result there."""
        count = bisect_right(self.iterations, iteration)
        return self.values[count - 1] if count and self.iterations[count - 1] == iteration else None

    @property
    def observed_iterations(self) -> list[int]:
        """The iterations at which the current trial was observed, the newest first."""
        return self.iterations[: bisect_right(self.iterations, self.began) - len(self.iterations) - 1 : -1]

    @property
    def lost(self) -> bool:
        """Whether the member failed or reports NaN, so that more training can't improve it."""
        return self.failures > 0 or (bool(self.values) and not is_valid(self.values[-1]))


@dataclass(frozen=True, slots=True)
class _Verdict:
    member: int
    parent: StateAt | None
    """The state that is forked to replace the member; None: the member continues."""
    reason: str = ""


class PopulationBasedTraining(Scheduler):
    """Judges members at the end of intervals, without a barrier.

    The least advanced of the waiting members are judged next, and together. So with one worker, all members are judged
    together after each interval. With as many workers as members, each member is judged alone when it reaches the end
    of its interval, as in the paper. Unlike in the paper, members are compared at the same iteration, so that longer
    training is no advantage: the member's newest iteration that all but the share `quantile` have reached. A member
    keeps the results of the trials that it replaced.

    A member is replaced if it is among the worst `quantile` at that iteration, and its newest value is worse than that
    of the copied member. The best `quantile` are copied in rotation, from their newest states. A member is never
    replaced by a less advanced one: apart from failures, a population of n runs at most n times the last iteration. If
    one of the best members is less advanced, but will not be after its next interval, the member to replace waits for
    it. A member that has ended isn't copied.

    A member that failed or reports NaN is replaced as soon as another one can be copied, unless it failed three times
    in a row.

    A call costs O(n log n) comparisons.

    Args:
        ends: The iterations at which members are judged; the last one is their end.
        population: Number of members.
        quantile: The share that is replaced, and the share that is copied.
        objective: Ranks members.
        run_cap: Maximum number of trials; after that, members continue to the end.
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
        self._member_of: dict[int, int] = {}
        """Trial to the index of its member."""
        self._judged: list[_Verdict] = []
        """Verdicts on members that haven't started since."""
        self._forks = 0
        """Number of forks decided so far."""
        self._stopped: list[Decision] = []
        """Decisions that haven't been returned yet."""

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield the first members, then forks and members that continue, the least advanced first."""
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
        """Mark the first of `upcoming` as started."""
        if isinstance(answer, NewTrial) and answer.parent is None:
            self._member_of[answer.number] = len(self._members)
            self._members.append(_Member(answer.number))
            return
        if not self._judged:
            self._judge()
        index = self._judged.pop(0).member
        member = self._members[index]
        member.state = "running"
        if isinstance(answer, NewTrial):
            member.trial, member.iteration, member.began = answer.number, answer.start, answer.start
            self._member_of[answer.number] = index

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome; return decisions on complete trials, and on trials that forks replace.

        Raises:
            ValueError: The trial isn't running.
        """
        _, rung = self.end_segment(outcome)
        member, until = self._members[self._member_of[outcome.trial]], self._until[rung]
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
        """Treat a trial as failed: a fork replaces it as soon as there is a member to copy.

        Raises:
            ValueError: The trial neither runs nor waits.
        """
        if trial in self._running:
            return super().prune(trial)
        index = self._member_of.get(trial)
        if index is None or self._members[index].trial != trial or self._members[index].state == "over":
            raise ValueError(f"only a trial that runs or waits can be pruned, not trial {trial}")
        member = self._members[index]
        self._failed[trial] = 0, self._rung_after(member.iteration) - 1
        self._stopped = [decision for decision in self._stopped if decision.trial != trial]
        if any(verdict.member == index and verdict.parent is not None for verdict in self._judged):
            return self._settle()  # a fork replaces it anyway
        self._judged = [verdict for verdict in self._judged if verdict.member != index]
        member.state = "waiting"
        member.failures += 1
        return self._settle()

    def needs(self) -> Collection[StateAt]:
        """Return the newest states of the members that may be copied, and the states chosen for forks."""
        chosen = [verdict.parent for verdict in self._judged if verdict.parent is not None]
        least = [member.iteration for member in self._members if member.state != "over"]
        return chosen + [
            StateAt(member.trial, member.iteration)
            for member in self._members
            if self._may_be_copied(member)
            and (self._to_come() or sum(iteration <= member.iteration for iteration in least) > 1)
        ]

    def may_withdraw(self, trial: int) -> bool:
        """Return whether a trial failed, and no fork was chosen to replace it."""
        if not super().may_withdraw(trial):
            return False
        member = self._members[self._member_of[trial]]
        return member.trial == trial and member.state == "waiting"

    def withdraw(self, trial: int) -> None:
        """Take back the outcome of a trial that failed.

        Raises:
            ValueError: The trial didn't fail, or a fork was chosen to replace it.
        """
        if super().may_withdraw(trial) and not self.may_withdraw(trial):
            raise ValueError(f"only a failed trial that isn't replaced can be withdrawn; trial {trial} is")
        super().withdraw(trial)
        member = self._members[self._member_of[trial]]
        member.state = "running"
        member.failures -= 1

    def exhausted(self) -> Sequence[Decision]:
        """Take back the last `NewTrial` and create no more first members; forks continue.

        Raises:
            ValueError: The newest trial isn't in its first segment, so nothing can be taken back.
        """
        super().exhausted()
        del self._member_of[self._numbered]
        self._members.pop()
        return self._settle()

    def _to_come(self) -> int:
        """Return the number of first members that are still to be created."""
        return 0 if self._exhausted else self._population - len(self._members)

    def _rung_after(self, iteration: int) -> int:
        return bisect_right(self._until, iteration)

    def _settle(self) -> Sequence[Decision]:
        """Judge the next members, unless judged ones are left; return the decisions on trials that forks replace."""
        if not self._judged and not self._to_come():
            self._judge()
        stopped, self._stopped = self._stopped, []
        return stopped

    def _judge(self) -> None:
        """Judge the least advanced waiting members, and store the verdicts."""
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
        """Yield the stored verdicts, then provisional ones on the other waiting members."""
        yield from self._judged
        for group in self._groups():
            yield from group

    def _groups(self) -> Iterator[list[_Verdict]]:
        """Yield the verdicts on the waiting members, in non-empty groups of the same iteration."""
        forks = self._forks
        waiting = [index for index, member in enumerate(self._members) if member.state == "waiting"]
        waiting.sort(key=self._iteration_of)
        for _, indices in groupby(waiting, self._iteration_of):
            group = self._judged_together(list(indices), forks)
            if group:
                yield group
            forks += sum(verdict.parent is not None for verdict in group)

    def _iteration_of(self, index: int) -> int:
        return self._members[index].iteration

    def _judged_together(self, indices: Sequence[int], forks: int) -> list[_Verdict]:
        """Return the verdicts on members that have reached the same iteration.

        Members that failed and can't be replaced now, and members that wait for a member to copy, are left out.

        Args:
            indices: The members, in order.
            forks: Number of forks decided before.
        """
        verdicts = []
        for index in indices:
            member = self._members[index]
            ranked, iteration = self._ranked_with(member)
            parent = None
            if (member.lost or index in ranked[-self._share_of(ranked) :]) and self._may_fork(forks):
                parent = self._chosen(index, ranked or self._by_newest(), forks)
                if parent is None and self._comes_soon(member, ranked, iteration):
                    continue
            if parent is not None:
                forks += 1
                verdicts.append(_Verdict(index, parent, self._reason(index, ranked, parent.trial)))
            elif not member.failures:
                verdicts.append(_Verdict(index, None))
        return verdicts

    def _ranked_with(self, member: _Member) -> tuple[list[int], int]:
        """Rank the members at the newest of a member's iterations that all but the share `quantile` have reached.

        Returns:
            The members from best to worst, and the iteration; no members and 0 if there is no such iteration.
        """
        for iteration in member.observed_iterations:
            values = {index: other.value_at(iteration) for index, other in enumerate(self._members)}
            scored = {index: value for index, value in values.items() if value is not None}
            coming = self._to_come() + sum(
                index not in scored and other.state != "over" and other.failures < _MOST_FAILURES
                for index, other in enumerate(self._members)
            )
            if coming <= int(self._quantile * (len(scored) + coming) + _DUST):
                return self._objective.rank(scored), iteration
        return [], 0

    def _comes_soon(self, member: _Member, ranked: Sequence[int], iteration: int) -> bool:
        """Return whether one of the best members is less advanced than a member, but not after its next interval."""
        value = member.value_at(iteration)
        return any(
            self._may_be_copied(other)
            and other.iteration < member.iteration <= self._until[self._rung_after(other.iteration)]
            and self._objective.improves(other.value_at(iteration), value)
            for other in (self._members[index] for index in ranked[: self._share_of(ranked)])
        )

    def _by_newest(self) -> list[int]:
        """Rank the members by their newest values."""
        members = enumerate(self._members)
        return self._objective.rank({index: member.values[-1] for index, member in members if member.values})

    def _share_of(self, ranked: Sequence[int]) -> int:
        """Return the number of the ranked members that are replaced, which is also the number that are copied."""
        return max(int(self._quantile * len(ranked) + _DUST), 1)

    def _may_fork(self, forks: int) -> bool:
        if self._run_cap is None:
            return True
        forked = sum(verdict.parent is not None for verdict in self._judged)
        return self._numbered + self._to_come() + forked + forks - self._forks < self._run_cap

    def _chosen(self, index: int, ranked: Sequence[int], forks: int) -> StateAt | None:
        """Return the state that is forked to replace a member: one of the best, in rotation; None if there is none."""
        member = self._members[index]
        if member.failures >= _MOST_FAILURES:
            return None
        able = [better for better in ranked if better != index and self._is_better(self._members[better], member)]
        best = set(ranked[: self._share_of(ranked)])
        from_best = [better for better in able if better in best]
        if not from_best and not member.lost:
            return None
        candidates = from_best or able[:1]
        if not candidates:
            return None
        parent = self._members[candidates[forks % len(candidates)]]
        return StateAt(parent.trial, parent.iteration)

    def _is_better(self, other: _Member, member: _Member) -> bool:
        """Return whether another member may be copied to replace a member, and is better."""
        if not self._may_be_copied(other) or other.iteration < member.iteration:
            return False
        return member.lost or self._objective.improves(other.values[-1], member.values[-1])

    def _may_be_copied(self, member: _Member) -> bool:
        return member.copyable and member.state != "over" and not member.failures and is_valid(member.values[-1])

    def _reason(self, index: int, ranked: Sequence[int], parent: int) -> str:
        member = self._members[index]
        nan = " (NaN)" if member.lost else ""
        where = ordinal(ranked.index(index) + 1) if index in ranked else "none"
        return f"iteration {member.iteration}: {where} of {len(ranked)}{nan}, a fork of trial {parent} takes its place"
