"""Base class of searchers that learn: their observations, the tried configurations, and the random first trials."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hpsearch.objective import excesses_of, values_of
from hpsearch.searchers.base import Observation, Past, Problem, Searcher, SearcherCapabilities, Suggestion
from hpsearch.searchers.history import Evidence, History
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.seeds import SEED_LIMIT, suggestion_seed
from hpsearch.trial import JointScore, Params, Score, Trial

if TYPE_CHECKING:
    from hpsearch.searchers.feasibility import Feasibility

REDRAWS = 10
"""Number of proposals that may have been tried already, before an untried configuration is sampled."""

_SHARE = REDRAWS + 1
"""The attempt whose seed decides how likely a suggestion must be to be trained."""

_MOST = 1e100
"""Upper limit of magnitudes: squares, even summed over many trials, are far from overflow."""

_SHIFT = 700
"""Values are divided by 2 to this power if they may exceed `_MOST`; that brings the largest float below it."""


@dataclass(frozen=True, slots=True)
class _Finite:
    """The range of the finite numbers among some numbers."""

    low: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> _Finite | None:
        """Return the range; None if no number is finite."""
        finite = [number for number in numbers if math.isfinite(number)]
        return cls(min(finite), max(finite)) if finite else None

    def bounded(self, number: float) -> float:
        """Return a number as passed to a model: finite, and small enough to be squared."""
        number = min(max(number, self.low), self.high)
        return math.ldexp(number, -_SHIFT) if max(-self.low, self.high) > _MOST else number

    def bounded_excess(self, excess: float) -> float:
        """Return the excess over a constraint's bound as passed to a model; a violation stays above 0."""
        number = self.bounded(excess)
        # If the excesses are scaled down because one is huge, a small one may become 0.
        return max(number, math.ulp(0.0)) if excess > 0 else number


class LearningSearcher(Searcher):
    """Proposes configurations based on the trials that can be compared; derived classes implement `_proposals`.

    A suggestion depends on the seed, its number, and the observations in the order of the trials. The first trials are
    sampled. No configuration is suggested twice: if a proposal was tried, the next one is used, and if all were tried,
    an untried configuration is sampled. Trials of other searches come first, and each replaces one of the first random
    trials.
    """

    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(
        learns=True, has_options=True, remembers=False, recalls=True, avoids_failures=True
    )
    startup: int = 10
    """Default number of random first trials."""
    longest: ClassVar[bool] = True
    """Whether trials are compared at the longest length of training; see `History`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._history = History(problem.objective, self.longest)
        self._tried = TriedConfigurations(problem.space)
        self._recalled = 0
        """Number of comparable trials of other searches."""

    @property
    def draws_first(self) -> int:
        """`startup` of the sweep, or the method's default, minus the number of trials of other searches."""
        startup = self.problem.settings.startup
        return max((self.startup if startup is None else startup) - self._recalled, 0)

    @property
    def origin(self) -> str:
        """The origin of its suggestions."""
        return self.kind

    def suggest(self, number: int) -> Suggestion | None:
        """Return a configuration that wasn't tried, and can likely be trained; None if none is left."""
        feasibility = self._feasibility(number)
        for proposed in self._proposals(number, feasibility):
            if proposed.params not in self._tried and feasibility.accepts(proposed.params):
                return proposed
        samples: list[Params] = []
        for attempt in range(REDRAWS):
            seed = suggestion_seed(self.problem.seed, number, attempt) if attempt else self.problem.seed
            sample = self._tried.draw(seed, number)
            if sample is None:
                return None
            if feasibility.accepts(sample):
                return Suggestion(sample, "random")
            samples.append(sample)
        return Suggestion(max(samples, key=feasibility.probability), "random")

    @abstractmethod
    def _proposals(self, number: int, feasibility: Feasibility) -> Iterator[Suggestion]:
        """Yield proposals for suggestion `number`, which may have been tried; none if there is no evidence.

        The first untried proposal that `feasibility` accepts is used. Yield at most `REDRAWS` proposals if each
        evaluates a model.
        """

    def _feasibility(self, number: int) -> Feasibility:
        """Return what decides which configurations suggestion `number` may be."""
        from hpsearch.searchers.feasibility import Feasibility  # it imports NumPy

        trained, failed = self._history.trained_and_failed() if self.problem.settings.avoid_failures else ([], [])
        share = suggestion_seed(self.problem.seed, number, _SHARE) / SEED_LIMIT
        return Feasibility(self.problem.space, trained, failed, share)

    def _evidence(self) -> list[Evidence]:
        """Return the trials that can be compared and the running ones, sorted by number; empty if no value is valid.

        A model can't be fitted to infinities, so they become the worst or the best of the finite values, separately for
        each goal and constraint. Feasible trials stay feasible, and infeasible trials infeasible. If the square of a
        value would overflow, all values are scaled by a power of two, which changes neither order nor ratios.
        """
        evidence = self._history.evidence()
        scores = [trial.value for trial in evidence if trial.value is not None]
        values = [_Finite.of(column) for column in zip(*map(values_of, scores), strict=True)]
        excesses = [_Finite.of([*column, -1.0, 1.0]) for column in zip(*map(excesses_of, scores), strict=True)]
        if not values or None in values:
            return []

        def bounded(score: Score) -> Score:
            goals = tuple(
                range_.bounded(value) for range_, value in zip(values, values_of(score), strict=True) if range_
            )
            if not isinstance(score, JointScore):
                return goals[0]
            bounds = zip(excesses, score.excesses, strict=True)
            return JointScore(goals, tuple(range_.bounded_excess(excess) for range_, excess in bounds if range_))

        return [trial if trial.value is None else replace(trial, value=bounded(trial.value)) for trial in evidence]

    def recall(self, past: Sequence[Past]) -> None:
        """Add the trials of other searches."""
        self._history.recall(past)
        self._recalled = len(self._history.evidence())

    def started(self, trial: Trial) -> None:
        """Add a new trial."""
        self._history.started(trial)
        self._tried.add(trial.params)

    def observe(self, observation: Observation) -> None:
        """Learn from a trial."""
        self._history.observe(observation)

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Forget a trial's reports after an iteration."""
        self._history.reverted(trial, iteration)

    def dropped(self, trial: Trial) -> None:
        """Forget a trial's reports."""
        self._history.dropped(trial)
