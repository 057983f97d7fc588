"""ASHA: asynchronous successive halving.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Fronts, Objective, SortKey, is_valid
from hpsearch.objective.fronts import Point
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler, passed_over, ran, unopened
from hpsearch.schedulers.brackets import hyperband_trials
from hpsearch.schedulers.early_terminate import SchedulerCapabilities
from hpsearch.schedulers.halving import Halving
from hpsearch.trial import Score


@dataclass(frozen=True)
class ASHA(Halving):
    """Promotes a trial among the best 1/eta that have finished a rung so far, as soon as a worker is free.

    Li et al., MLSys 2020, Algorithm 2.
    """

    kind: ClassVar[str] = "asha"
    capabilities: ClassVar[SchedulerCapabilities] = replace(Halving.capabilities, endless=True)

    brackets: Count = 1
    """Brackets that run in parallel, each beginning a rung later than the one before. New trials are divided among them
    as in Hyperband."""

    def check(self) -> None:
        """Check that each bracket has a rung."""
        super().check()
        if self.brackets > len(self.ends):
            problem = f"must be at most the number of rungs, which are {len(self.ends)}, got {self.brackets}"
            raise InvalidKey(("brackets",), problem)

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        return AsynchronousHalving(self, objective, run_cap, self.brackets)

    def summary(self) -> str:
        """Return the first and the last rung, and the number of brackets if there are several."""
        return super().summary() + (f", {self.brackets} brackets" if self.brackets > 1 else "")


class AsynchronousHalving(Scheduler):
    """Algorithm 2: promotes the best trial that can be promoted; if there is none, starts a new trial in a first rung.

    A trial can be promoted if it is among the best floor(n / eta) of the n trials that have finished a rung, and wasn't
    promoted yet. This is decided when a worker is free (`next`) and not when an outcome is observed: a trial that is no
    longer among the best by then isn't promoted. So a promotion is a `Run`, not a `Decision`. The other trials wait.
    They are stopped when no trial is running, can be promoted or can be created. They keep their ranks in case the
    sweep is extended.

    Each bracket has its own rungs. Promotions to the rung with the most iterations come first.

    With several goals a rung is ranked by Pareto front, and within a front by crowding distance. Schmucker et al.,
    "Multi-objective Asynchronous Successive Halving", 2021, arXiv:2106.12639, call this rule NSGA-II, after Deb et al.
    (see `Fronts`). They also propose an epsilon-net instead of crowding, and random scalarizations.

    Failed trials don't count in a rung. A trial with NaN counts, ranks last, and is never promoted. A trial whose
    trainable returned early ranks like any other. In the last rung, each trial is complete when it ends.

    A call costs O(log n) comparisons in the number of trials in a rung; with several goals O(n), or more.

    Args:
        settings: The rungs, and how many trials each promotes.
        objective: Ranks the trials of a rung.
        run_cap: Maximum number of trials.
        brackets: Number of brackets, each of which begins a rung later than the one before.
    """

    def __init__(self, settings: Halving, objective: Objective, run_cap: int | None = None, brackets: int = 1) -> None:
        last = len(settings.ends) - 1
        ends = [settings.ends[s:] for s in range(brackets)]
        super().__init__(run_cap, ends)
        self._until = ends
        self._shares = [hyperband_trials(last - s, last, settings.eta) for s in range(brackets)]
        """Relative number of new trials of each bracket."""
        self._objective = objective
        self._judged = [[running_rung(settings.eta, objective) for _ in bracket[:-1]] for bracket in ends]
        """For each bracket, all rungs except the last."""
        indices = [(bracket, rung) for bracket, rungs in enumerate(self._judged) for rung in range(len(rungs))]
        self._promoting = sorted(indices, key=lambda index: (-ends[index[0]][index[1] + 1], index[0]))
        """(bracket, rung) of all rungs from which trials are promoted, the one with the longest next rung first."""

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield the promotions, from the highest rung to the lowest and the best trial first, then the new trials."""
        yield from self._promotions()
        dealt = [self._started[bracket, 0] for bracket in range(len(self._until))]
        for number in self.new_numbers():
            bracket = self._bracket_of(number, dealt)
            dealt[bracket] += 1
            yield NewTrial(number, self._until[bracket][0], bracket)

    def started(self, answer: NewTrial | Run) -> None:
        """Mark the first of `upcoming` as started."""
        if isinstance(answer, Run):
            self._judged[answer.bracket][answer.rung - 1].promote()

    def ready(self) -> int:
        """Return the number of promotions and of trials to create; if these have no bound, they count as 1."""
        return sum(1 for _ in self._promotions()) + self._to_create()

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome: it is complete in the last rung, and waits in others; at the end, all are stopped.

        Raises:
            ValueError: The trial isn't running.
        """
        bracket, rung = self.end_segment(outcome)
        if outcome.value is None:
            return self._stop_at_the_end()
        if rung < len(self._judged[bracket]):
            self._judge(bracket, rung, outcome)
            return self._stop_at_the_end()
        complete = Decision(outcome.trial, "complete", f"last rung: {ran(outcome, self._until[bracket][rung])}")
        return [complete, *self._stop_at_the_end()]

    def prune(self, trial: int) -> Sequence[Decision]:
        """Treat a trial as failed: it no longer counts in the rung in which it waits.

        Raises:
            ValueError: The trial neither runs nor waits.
        """
        if trial in self._running:
            return super().prune(trial)
        if not any(judged.remove(trial) for rungs in self._judged for judged in rungs):
            raise ValueError(f"only a trial that runs or waits can be pruned, not trial {trial}")
        return self._stop_at_the_end()

    def exhausted(self) -> Sequence[Decision]:
        """Take back the last `NewTrial` and create no more trials; stop the waiting trials if no other trial will run.

        Raises:
            ValueError: The newest trial isn't in its first segment, so nothing can be taken back.
        """
        super().exhausted()
        return self._stop_at_the_end()

    def _judge(self, bracket: int, rung: int, outcome: Outcome) -> None:
        """Add a trial that has finished a rung other than the last."""
        assert outcome.value is not None, "failed trials don't count in a rung"
        self._judged[bracket][rung].add(outcome.value, outcome.trial)

    def _promotions(self) -> Iterator[Run]:
        for bracket, rung in self._promoting:
            for trial in self._judged[bracket][rung].promotable():
                yield Run(trial, self._until[bracket][rung + 1], bracket, rung + 1)

    def _bracket_of(self, number: int, dealt: Sequence[int]) -> int:
        """Return the bracket furthest below its share of trials, the first if tied; `dealt` is the trials of each."""
        total = sum(self._shares)
        return min(range(len(dealt)), key=lambda bracket: dealt[bracket] * total - self._shares[bracket] * (number + 1))

    def _stop_at_the_end(self) -> Sequence[Decision]:
        """Stop all waiting trials if no trial is running, can be promoted or can be created."""
        if self._running or self.ready():
            return ()
        return [
            Decision(
                trial,
                "stop",
                passed_over(rung, rank, size, judged.top, nan)
                if (bracket, rung) in self._promoting
                else unopened(rung, rank, size, nan),
            )
            for bracket, rungs in enumerate(self._judged)
            for rung, judged in enumerate(rungs)
            for trial, rank, size, nan in judged.stop()
        ]


class _Rung(ABC):
    """A rung that is ranked while trials are still added. It has waiting trials, and promoted or stopped ones."""

    def __init__(self, eta: int, objective: Objective) -> None:
        self._eta = eta
        self._objective = objective

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of trials that have finished this rung."""

    @property
    def top(self) -> int:
        """Number of trials that may be promoted, the best of those that have finished this rung."""
        return len(self) // self._eta


class SortedRung(_Rung):
    """A rung for one goal. The order depends only on scores, so each call searches sorted lists."""

    def __init__(self, eta: int, objective: Objective) -> None:
        super().__init__(eta, objective)
        self._waiting: list[tuple[SortKey, int, bool]] = []
        """(sort key, trial, whether its score is NaN) of waiting trials, best first."""
        self._settled: list[tuple[SortKey, int, bool]] = []
        """The same for promoted or stopped trials, which keep their ranks."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._settled)

    def add(self, score: Score, trial: int) -> None:
        """Add a trial that has finished this rung."""
        insort(self._waiting, (self._objective.sort_key(score), trial, not is_valid(score)))

    def promotable(self) -> Iterator[int]:
        """Yield the trials that can be promoted, the best first. All of them can be promoted."""
        top = self.top
        for ahead, entry in enumerate(self._waiting):
            _, trial, nan = entry
            if nan or ahead + bisect(self._settled, entry) >= top:
                return
            yield trial

    def promote(self) -> None:
        """Promote the first of `promotable`."""
        insort(self._settled, self._waiting.pop(0))

    def remove(self, trial: int) -> bool:
        """Remove a waiting trial; return whether it was waiting here."""
        remaining = [entry for entry in self._waiting if entry[1] != trial]
        is_removed = len(remaining) < len(self._waiting)
        self._waiting = remaining
        return is_removed

    def stop(self) -> Sequence[tuple[int, int, int, bool]]:
        """Stop all waiting trials; return (trial, rank from 1, size of the rung, whether it is NaN), the best first."""
        size = len(self)
        stopped = [
            (trial, ahead + bisect(self._settled, (sort_key, trial, nan)) + 1, size, nan)
            for ahead, (sort_key, trial, nan) in enumerate(self._waiting)
        ]
        self._settled = sorted(self._settled + self._waiting)
        self._waiting = []
        return stopped


class RankedRung(_Rung):
    """A rung for several goals. A rank depends on all trials: Pareto fronts, updated when a trial is added.

    A call iterates over the best 1/eta.
    """

    def __init__(self, eta: int, objective: Objective) -> None:
        super().__init__(eta, objective)
        self._fronts = Fronts()
        self._points: dict[int, Point] = {}
        """Trial to its point on the fronts."""
        self._beyond: list[tuple[SortKey, int, bool]] = []
        """(sort key, trial, whether its score is NaN) of infeasible trials and trials with NaN, best first."""
        self._settled: set[int] = set()

    def __len__(self) -> int:
        return len(self._fronts) + len(self._beyond)

    def add(self, score: Score, trial: int) -> None:
        """Add a trial that has finished this rung."""
        if self._objective.is_feasible(score):
            self._points[trial] = self._objective.point(score)
            self._fronts.add(trial, self._points[trial])
        else:
            insort(self._beyond, (self._objective.infeasible_key(score), trial, not is_valid(score)))

    def promotable(self) -> Iterator[int]:
        """Yield the trials that can be promoted, the best first. All of them can be promoted."""
        best = islice(self._ranked(), self.top)
        return (trial for trial, nan in best if not nan and trial not in self._settled)

    def promote(self) -> None:
        """Promote the first of `promotable`."""
        self._settled.add(next(self.promotable()))

    def remove(self, trial: int) -> bool:
        """Remove a waiting trial; return whether it was waiting here."""
        before = len(self)
        if trial in self._settled:
            return False
        self._points.pop(trial, None)
        self._fronts = Fronts.of(self._points)
        self._beyond = [entry for entry in self._beyond if entry[1] != trial]
        return len(self) < before

    def stop(self) -> Sequence[tuple[int, int, int, bool]]:
        """Stop all waiting trials; return (trial, rank from 1, size of the rung, whether it is NaN), the best first."""
        ranked = list(self._ranked())
        stopped = [
            (trial, rank, len(ranked), nan)
            for rank, (trial, nan) in enumerate(ranked, start=1)
            if trial not in self._settled
        ]
        self._settled.update(trial for trial, _ in ranked)
        return stopped

    def _ranked(self) -> Iterator[tuple[int, bool]]:
        """Yield (trial, whether its score is NaN) of all trials, best first."""
        yield from ((trial, False) for trial in self._fronts.ranked())
        yield from ((trial, nan) for _, trial, nan in self._beyond)


RunningRung = SortedRung | RankedRung


def running_rung(eta: int, objective: Objective) -> RunningRung:
    """Return an empty rung for an objective."""
    return RankedRung(eta, objective) if objective.several else SortedRung(eta, objective)
