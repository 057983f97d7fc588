"""Successive halving and Hyperband: brackets run in parallel, and promote the best trials of each rung."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import AtLeast, Count
from hpsearch.decision import Decision, Rungs
from hpsearch.errors import SweepError
from hpsearch.objective import Objective
from hpsearch.schedulers.base import NewTrial, Outcome, Run, RungView, Scheduler, ran, ranked
from hpsearch.schedulers.brackets import (
    Bracket,
    OpenBracket,
    Rung,
    RungLaw,
    Variant,
    cut,
    hyperband_brackets,
    iterations,
    rung_ends,
    successive_halving_bracket,
    thin,
    upcoming,
)
from hpsearch.schedulers.early_terminate import EarlyTerminate, SchedulerCapabilities

_CHOSEN_RUNGS = 3
"""Without `min_iter`, the first rung has `max_iter` / `eta` to the power of this many iterations."""


@dataclass(frozen=True)
class Halving(EarlyTerminate):
    """Rungs from `min_iter` to `max_iter` iterations, each `eta` times as long as the one before."""

    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(several_goals=True, outcome_constraints=True)

    min_iter: Count | None = None
    """Iterations of the first rung (of the first bracket); none: `max_iter` / `eta`^3, rounded up, because one
    iteration rarely tells trials apart."""
    eta: Annotated[int, AtLeast(2)] = 3
    """Of each rung, 1 of `eta` is promoted."""
    rungs: RungLaw = field(default="geometric", kw_only=True)
    """Where rungs end: `geometric` at `min_iter` times powers of `eta`, and at `max_iter` (1, 3, 9, 27, 50); `paper` at
    `max_iter` divided by powers of `eta`, rounded down (1, 5, 16, 50)."""

    resource: str | None = field(default=None, kw_only=True)
    """[What rungs end by](hyperband.md#costs): a reported metric that never falls, such as `tokens`, or `seconds`.
    `min_iter` and `max_iter` are amounts of it. None: iterations."""

    def check(self) -> None:
        """Check that there is a rung."""
        if self.resource in ("", "iterations"):
            problem = f"must be a reported metric or seconds, got {self.resource!r}"
            raise InvalidKey(("resource",), problem, "leave it out for rungs that end by iterations")
        if self.min_iter is not None and self.min_iter > self.max_iter:
            raise InvalidKey(("min_iter",), f"must be at most max_iter ({self.max_iter}), got {self.min_iter}")

    @property
    def shortest(self) -> int:
        """Iterations of the first rung: `min_iter`, or its default. With `paper` rungs, the first may be longer."""
        return -(-self.max_iter // self.eta**_CHOSEN_RUNGS) if self.min_iter is None else self.min_iter

    @property
    def ends(self) -> tuple[int, ...]:
        """The iterations at which the rungs of the first bracket end. Hyperband has as many brackets in a round."""
        return rung_ends(self.shortest, self.max_iter, self.eta, self.rungs)

    def summary(self) -> str:
        """Return the first and the last rung, and the formula of the first if `min_iter` isn't set."""
        chosen = "" if self.min_iter is not None else f" (min_iter, not given: max_iter / {self.eta}^{_CHOSEN_RUNGS})"
        unit = "iterations" if self.resource is None else self.resource
        return f"{type(self).__name__} from {self.ends[0]}{chosen} to {self.max_iter} {unit} by {self.eta}"

    def as_stored(self, stored: Self) -> Self:
        """Return these settings with the stored settings of the rungs if the rungs end at the same iterations."""
        return replace(self, min_iter=stored.min_iter, rungs=stored.rungs) if self.ends == stored.ends else self


@dataclass(frozen=True)
class SuccessiveHalving(Halving):
    """A single bracket: all trials run `min_iter` iterations, the best 1/eta run eta times as many, and so on.

    Jamieson and Talwalkar, AISTATS 2016.
    """

    kind: ClassVar[str] = "successive_halving"
    capabilities: ClassVar[SchedulerCapabilities] = replace(Halving.capabilities, in_order=True)

    trials: Count | None = None
    """Trials that start; none: as many as leave one for the last rung, `eta` to the power of (rungs - 1)."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        bracket = successive_halving_bracket(self.max_iter, self.shortest, self.eta, self.trials, self.rungs)
        return BracketScheduler((bracket,), self.eta, objective, run_cap)


@dataclass(frozen=True)
class Hyperband(Halving):
    """Rounds of brackets, from many trials with a short first rung to few trials with a long one.

    Li et al., JMLR 18 (2018), Algorithm 1.
    """

    kind: ClassVar[str] = "hyperband"
    capabilities: ClassVar[SchedulerCapabilities] = replace(Halving.capabilities, in_order=True)
    raisable: ClassVar[tuple[str, ...]] = ("brackets",)

    min_iter: Count = 1
    """Iterations of the first rung of the first bracket."""
    variant: Variant = "paper"
    """Trials per bracket: `paper` rounds up as Algorithm 1 (81, 34, 15, 8, 5 for R=81), `table` rounds down as the
    table of its first version (81, 27, 9, 6, 5)."""
    brackets: Count | None = None
    """Number of brackets, over all rounds; none: one round, or as many as `run_cap` fills."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        cycle = hyperband_brackets(self.max_iter, self.min_iter, self.eta, self.variant, self.rungs)
        return BracketScheduler(cycle, self.eta, objective, run_cap, self.brackets)

    def raised(self, stored: Self, run_cap: int | None) -> Mapping[str, Any]:
        """Return `brackets` if it is higher. If unset, it means one round, or no bound if there is a `run_cap`."""
        if self.brackets is None or (stored.brackets is None and run_cap is not None):
            return {}
        return {"brackets": self.brackets} if self.brackets > (stored.brackets or len(stored.ends)) else {}


class BracketScheduler(Scheduler):
    """Repeats a cycle of brackets: a cycle of one bracket is successive halving, one of s_max + 1 is Hyperband.

    New trials are numbered in the order of brackets. A bracket starts, and its size is fixed, when its first trial
    starts. The last bracket is cut to the trials that remain of `run_cap`. Brackets run in parallel. Promoted trials
    run first (the longest next rung first, then the lower number), then new trials.

    A rung is decided when the outcomes of all its trials are known. The objective ranks the trials, and the best are
    promoted. A failed trial is never promoted. A trial whose metric is NaN is promoted only if the other trials don't
    fill the next rung. If too many trials have failed, the next rung and the later ones are smaller. A trial whose
    trainable returned early ranks like any other. In the last rung of a bracket, each trial is complete when it ends.

    A call costs O(log n) in the number of promoted trials that wait, amortized over a rung when it is decided.
    Decisions are not stored. Numbers of trials are counted by bracket, because the base class's counts by rung need
    more memory.

    Args:
        cycle: The brackets of one round.
        eta: 1 of `eta` trials is promoted at each rung; used to cut a bracket.
        objective: Ranks the trials of a rung.
        run_cap: Maximum number of trials.
        brackets: Maximum number of brackets; None: one round, or no limit if `run_cap` is set.
    """

    def __init__(
        self,
        cycle: Sequence[Bracket],
        eta: int,
        objective: Objective,
        run_cap: int | None = None,
        brackets: int | None = None,
    ) -> None:
        if not cycle or not all(bracket.rungs for bracket in cycle):
            raise SweepError("a round must hold at least one bracket, and each bracket at least one rung")
        super().__init__(run_cap)
        if brackets is not None and brackets < 1:
            raise SweepError(f"`brackets` must be at least 1, got {brackets}")
        self._cycle = tuple(cycle)
        self._eta = eta
        self._objective = objective
        self._brackets = brackets
        self._begun_trials = 0
        self._begun_iterations = 0
        self._total: tuple[int, int] | None = None
        """Cached `total`; None after the plan changed."""
        self._begun: list[OpenBracket] = []
        self._promoted: list[tuple[int, int, OpenBracket]] = []
        """Sorted (-until, trial, bracket) of promoted trials: the longest rung first, then the lower number."""

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield the promoted trials, then the new ones of the bracket that is being filled and of later brackets."""
        for _, trial, bracket in self._promoted:
            yield Run(trial, bracket.rung.until, bracket.index, bracket.position)
        number = self._numbered
        for index, rung, size in self._to_fill():
            for _ in range(size):
                yield NewTrial(number, rung.until, index)
                number += 1

    def started(self, answer: NewTrial | Run) -> None:
        """Mark the first of `upcoming` as started; a bracket starts with its first trial."""
        if isinstance(answer, Run):
            self._promoted.pop(0)
        elif self._filling is None:
            plan = self._plan_to_begin()
            assert plan is not None, "`upcoming` has a new trial"
            bracket = OpenBracket(len(self._begun), Bracket(()))
            self._begun.append(bracket)
            self._replan(bracket, plan)

    def _note_rung(self, answer: NewTrial | Run) -> None:
        """Store nothing: the plans of brackets contain the ends of rungs, and there may be thousands of rungs."""

    def ready(self) -> int:
        """Return the number of promoted trials and of new ones in the bracket that is being filled.

        If no bracket is being filled, the next one counts as one trial.
        """
        if (filling := self._filling) is not None:
            return len(self._promoted) + self._to_start(filling)
        return len(self._promoted) + (self._plan_to_begin() is not None)

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome; return the decisions that follow, from the best trial to the worst.

        A failed trial itself gets no decision.

        Raises:
            ValueError: The trial isn't running.
        """
        bracket = self._begun[self.end_segment(outcome)[0]]
        bracket.undecided.append(outcome)
        return self._decide(bracket)

    def may_withdraw(self, trial: int) -> bool:
        """Return whether a trial failed in an undecided rung, in the last rung, or in a rung in which all failed."""
        index = self._failed.get(trial)
        return index is not None and any(outcome.trial == trial for outcome in self._begun[index[0]].undecided)

    def withdraw(self, trial: int) -> None:
        """Take back the outcome of a trial that failed.

        Raises:
            ValueError: The trial didn't fail, or its rung is decided.
        """
        super().withdraw(trial)
        bracket = self._begun[self._running[trial][0]]
        if bracket.unfilled is not None:
            self._replan(bracket, bracket.unfilled)
            bracket.unfilled = None
        bracket.undecided = [outcome for outcome in bracket.undecided if outcome.trial != trial]

    def prune(self, trial: int) -> Sequence[Decision]:
        """Treat a trial as failed; if it was promoted, the next rung has one trial fewer.

        Raises:
            ValueError: The trial neither runs nor waits.
        """
        for index, (_, promoted, bracket) in enumerate(self._promoted):
            if promoted == trial:
                del self._promoted[index]
                return self._shrink_rung(bracket)
        for bracket in self._begun:
            for index, outcome in enumerate(bracket.undecided):
                if outcome.trial == trial and outcome.value is not None:
                    bracket.undecided[index] = Outcome(trial, outcome.iteration, None)
                    return ()
        return super().prune(trial)

    def exhausted(self) -> Sequence[Decision]:
        """Take back the last `NewTrial` and create no more trials; its bracket is cut to the trials that it has.

        Raises:
            ValueError: The newest trial isn't in its first segment, so nothing can be taken back.
        """
        super().exhausted()
        bracket = self._begun[-1]
        started = self._started[bracket.index, 0]
        self._replan(bracket, cut(bracket.plan, started, self._eta))
        if started == 0:
            self._begun.pop()
            return ()
        return self._decide(bracket)

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        """Raise `run_cap` and `brackets`, and create trials again after `exhausted`.

        Brackets that have started don't change, even if they were cut: additional trials start with the next bracket of
        the cycle. If `run_cap` is set for the first time and `brackets` was never set, rounds repeat.

        Raises:
            ValueError: A bound, or the number of trials that follows from both, would become lower; or `settings` has
                another key than `brackets`.
        """
        if unknown := settings.keys() - {"brackets"}:
            raise ValueError(f"only `run_cap` and `brackets` can be raised, got {', '.join(sorted(unknown))}")
        brackets: int | None = settings.get("brackets")
        run_cap_before, brackets_before = self._bounds()
        trials = self._total_within(run_cap_before, brackets_before)[0]
        after = (
            self._run_cap if run_cap is None else run_cap,
            self._brackets if brackets is None else brackets,
        )
        fewest = len(self._begun) if brackets_before is None else brackets_before
        if brackets is not None and brackets < fewest:
            raise ValueError(f"bounds can only be raised: `brackets` must be at least {fewest}, got {brackets}")
        at_least = trials if run_cap_before is None else run_cap_before
        if run_cap is not None and run_cap < at_least:
            raise ValueError(f"bounds can only be raised: `run_cap` must be at least {at_least}, got {run_cap}")
        fewer = self._total_within(*self._resolved(*after))[0]
        if fewer < trials:
            raise ValueError(
                f"bounds can only be raised: `brackets` = {brackets} holds {fewer} trials of the {trials} "
                "that there are to be; raise it until it holds them all"
            )
        self._run_cap, self._brackets = after
        self._exhausted = False
        self._total = None

    def rungs(self) -> Sequence[RungView]:
        """Return the rungs of the brackets that have started, in order."""
        return [
            RungView(bracket.index, number, rung.until, rung.size, self._started[index], self._finished[index])
            for bracket in self._begun
            for number, rung in enumerate(bracket.plan.rungs)
            for index in [(bracket.index, number)]
        ]

    def plan(self, bracket: int) -> Rungs:
        """Return (until, size) of a bracket's rungs; empty if the bracket hasn't started."""
        rungs = self._begun[bracket].plan.rungs if bracket < len(self._begun) else ()
        return tuple((rung.until, rung.size) for rung in rungs)

    def total(self) -> tuple[int, int]:
        """Return (trials, iterations when each promotion resumes) of the whole sweep.

        Rungs that could not be filled count with their actual size. A trial that fails or returns in the middle of a
        rung counts as if it had run to the end of the rung.
        """
        if self._total is None:
            started = self._begun_trials, self._begun_iterations
            self._total = started if self._exhausted else self._total_within(*self._bounds())
        return self._total

    @property
    def _filling(self) -> OpenBracket | None:
        """The started bracket whose first rung isn't full; None if there is none."""
        newest = self._begun[-1] if self._begun else None
        return newest if newest is not None and newest.position == 0 and self._to_start(newest) else None

    def _to_start(self, bracket: OpenBracket) -> int:
        """Return the number of trials of a bracket's current rung that haven't started."""
        return bracket.rung.size - self._started[bracket.index, bracket.position]

    def _to_fill(self) -> Iterator[tuple[int, Rung, int]]:
        """Yield (bracket, first rung, trials to create) of the bracket that is being filled and of later brackets."""
        if (filling := self._filling) is not None:
            yield filling.index, filling.rung, self._to_start(filling)
        started, trials = len(self._begun), self._begun_trials
        while (plan := self._plan(started, trials)) is not None:
            yield started, plan.rungs[0], plan.trials
            started, trials = started + 1, trials + plan.trials

    def _plan_to_begin(self) -> Bracket | None:
        """Return the plan of the next bracket; None if no more may start."""
        return self._plan(len(self._begun), self._begun_trials)

    def _plan(self, started: int, trials: int) -> Bracket | None:
        """Return the plan of the bracket after `started` brackets with `trials` in total; None if none may start."""
        run_cap, brackets = self._bounds()
        if self._exhausted or (brackets is not None and started >= brackets):
            return None
        plan = self._cycle[started % len(self._cycle)]
        if run_cap is not None:
            plan = cut(plan, run_cap - trials, self._eta)
        return plan if plan.trials else None

    def _decide(self, bracket: OpenBracket) -> Sequence[Decision]:
        """Return the decisions on a bracket's current rung; empty while outcomes are missing."""
        decisions: Sequence[Decision] = ()
        if bracket.in_last_rung:
            # There is more than one outcome only if `exhausted` just made this rung the last.
            decisions = [
                Decision(outcome.trial, "complete", f"last rung: {ran(outcome, bracket.rung.until)}")
                for outcome in self._ranked(bracket)
                if outcome.value is not None
            ]
            bracket.undecided = [outcome for outcome in bracket.undecided if outcome.value is None]
        elif self._finished[bracket.index, bracket.position] == bracket.rung.size:
            decisions = self._decide_rung(bracket)
        return decisions

    def _decide_rung(self, bracket: OpenBracket) -> Sequence[Decision]:
        """Promote the best of a rung whose outcomes are all known, and stop the rest."""
        outcomes = self._ranked(bracket)
        unfailed = [outcome for outcome in outcomes if outcome.value is not None]
        if not unfailed:
            # There is no decision, so these failures may still be taken back.
            bracket.unfilled = bracket.plan
            self._replan(bracket, thin(bracket.plan, bracket.position + 1, 0))
            return ()
        bracket.undecided = []
        promoted = min(bracket.plan.rungs[bracket.position + 1].size, len(unfailed))
        decisions = [
            Decision(
                outcome.trial,
                "promote" if rank <= promoted else "stop",
                ranked(outcome, bracket.position, rank, len(outcomes), promoted),
            )
            for rank, outcome in enumerate(unfailed, start=1)
        ]
        self._replan(bracket, thin(bracket.plan, bracket.position + 1, promoted))
        bracket.position += 1
        for outcome in unfailed[:promoted]:
            insort(self._promoted, (-bracket.rung.until, outcome.trial, bracket))
        return decisions

    def _shrink_rung(self, bracket: OpenBracket) -> Sequence[Decision]:
        """Shrink a bracket's current rung by one trial; remove a rung without trials."""
        self._replan(bracket, thin(bracket.plan, bracket.position, bracket.rung.size - 1))
        if bracket.position == len(bracket.plan.rungs):
            bracket.position -= 1
        return self._decide(bracket)

    def _ranked(self, bracket: OpenBracket) -> list[Outcome]:
        outcomes = {outcome.trial: outcome for outcome in bracket.undecided}
        return [outcomes[trial] for trial in self._objective.rank({t: o.value for t, o in outcomes.items()})]

    def _replan(self, bracket: OpenBracket, plan: Bracket) -> None:
        """Set a bracket's plan, and update the totals over all brackets."""
        self._begun_trials += plan.trials - bracket.plan.trials
        self._begun_iterations += iterations(plan) - iterations(bracket.plan)
        bracket.plan = plan
        self._total = None

    def _bounds(self) -> tuple[int | None, int | None]:
        return self._resolved(self._run_cap, self._brackets)

    def _resolved(self, run_cap: int | None, brackets: int | None) -> tuple[int | None, int | None]:
        """Return the bounds with the default of `brackets`, so that at least one of the two is set."""
        return run_cap, len(self._cycle) if run_cap is None and brackets is None else brackets

    def _total_within(self, run_cap: int | None, brackets: int | None) -> tuple[int, int]:
        trials, cost = upcoming(
            self._cycle,
            len(self._begun),
            self._eta,
            None if run_cap is None else max(run_cap - self._begun_trials, 0),
            None if brackets is None else max(brackets - len(self._begun), 0),
        )
        return self._begun_trials + trials, self._begun_iterations + cost
