"""`curves`: what to try next, by a model of whole learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import Count, Settings
from hpsearch.searchers.base import Problem, Suggestion, listed
from hpsearch.searchers.curve_model import CurveModel, Points, fitted, log_expected_improvement
from hpsearch.searchers.history import LearningCurve
from hpsearch.searchers.learning import LearningSearcher
from hpsearch.searchers.settings import options_as
from hpsearch.seeds import suggestion_seed
from hpsearch.space import Broken
from hpsearch.space.unit_space import UnitSpace

__all__ = ["CurveSearcher"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_WORST = 2.0
"""How far below the median a value counts at most, as a multiple of how far above it the best one is."""

_MARGIN = 0.2
"""By how much a point must be expected to exceed the best, in standard deviations of the values: otherwise a smooth
model would suggest neighbours of the same point again and again."""

_EXPECTED = 40
"""Most unfinished trials whose final values are taken as known, the most promising ones, and as many running ones."""

_UNIFORM, _NEAR, _REFINED = 500, 200, 60
"""Points whose improvement is predicted: uniform, near the best trials, and near the best points of each round."""

_ROUNDS = (0.1, 0.05, 0.02)
"""The distance of the points of each round."""


@dataclass(frozen=True)
class CurvesOptions(Settings):
    """What `search.options` may hold."""

    values: Count = 200
    """Values that the model sees at most: the more, the better it knows, and the longer it takes."""


class CurveSearcher(LearningSearcher):
    """Maximizes expected improvement at the end of training, by a Gaussian process over configurations and progress.

    It learns from all trials, however long they ran: their values at the ends of segments, and the newest. The final
    value of an unfinished trial is taken as known, at its mean (the kriging believer of Ginsbourger et al., "Kriging Is
    Well-Suited to Parallelize Optimization", 2010): otherwise neighbours of trials that wait for a promotion would be
    suggested. A whole training is the longest that a trial has had.
    """

    kind: ClassVar[str] = "curves"
    over: ClassVar[str | None] = "asha"

    @classmethod
    def over_settings(cls, max_iter: int) -> dict[str, Any]:
        """Return a first rung of a ninth of a whole training: shorter ones were misleading (docs/benchmarks.md)."""
        return {"min_iter": math.ceil(max_iter / 9)}

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._space = UnitSpace(problem.space)
        self._most = options_as(CurvesOptions, problem.settings, self.kind).values
        self._shares: dict[int, Floats | None] = {}
        """Trials to their coordinates in the unit cube, which never change."""

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that there is something to search, and the options."""
        options_as(CurvesOptions, problem.settings, cls.kind)
        listed(problem, cls.kind)
        if not UnitSpace(problem.space).searches:
            raise InvalidKey(("parameters",), "must hold a parameter that isn't constant, or there is nothing to learn")

    def _proposals(self, number: int) -> Iterator[Suggestion]:
        curves = [curve for curve in self._history.curves() if self._shares_of(curve) is not None]
        if not any(curve.values for curve in curves):
            return
        chance = np.random.default_rng(suggestion_seed(self.problem.seed, number))
        for shares in self._most_promising(curves, chance):
            with suppress(Broken):
                yield Suggestion(self._space.decode(shares), self.origin)

    def _most_promising(self, curves: Sequence[LearningCurve], chance: np.random.Generator) -> Floats:
        """Return points, the largest expected improvement first."""
        model, trials = self._model_of(curves)
        means, deviations = model.predict(trials)
        best = float(means[[bool(curve.values) for curve in curves]].max())
        model = model.also(trials.at(self._unfinished(curves, means + deviations)))
        shares = np.array([self._shares_of(curve) for curve in curves])

        def improvement(points: Floats) -> Floats:
            return log_expected_improvement(*model.predict(self._ends(points)), best + _MARGIN)

        found = chance.random((_UNIFORM, shares.shape[1]))
        leaders = shares[np.argsort(-means, kind="stable")[:8]]
        found = np.concatenate([found, self._varied(leaders, _NEAR, _ROUNDS[0], chance)])
        promise = improvement(found)
        for width in _ROUNDS:
            varied = self._varied(found[np.argsort(-promise, kind="stable")[:10]], _REFINED, width, chance)
            found, promise = np.concatenate([found, varied]), np.concatenate([promise, improvement(varied)])
        return np.asarray(found[np.argsort(-promise, kind="stable")], dtype=np.float64)

    def _model_of(self, curves: Sequence[LearningCurve]) -> tuple[CurveModel, Points]:
        """Fit the model; return it, and the final points of the trials."""
        seen = [(index, length, value) for index, curve in enumerate(curves) for length, value in curve.values.items()]
        indices, lengths = np.array([one[0] for one in seen]), np.array([one[1] for one in seen], dtype=np.float64)
        sign = 1.0 if self.problem.objective.goals[0].goal == "maximize" else -1.0
        values = _settled(sign * np.array([one[2] for one in seen], dtype=np.float64))
        longest = lengths.max()
        progress = np.log(lengths) / math.log(longest) if longest > 1 else np.ones_like(lengths)
        trials = self._ends(np.array([self._shares_of(curve) for curve in curves]))
        trials = Points(trials.features, trials.progress, np.array([curve.trial for curve in curves]))
        points = Points(trials.features[indices], progress, trials.trials[indices])
        kept = _selected(progress, values, self._most)
        points, values, progress = points.at(kept), values[kept], progress[kept]
        fit = _selected(progress, values, max(self._most // 2, 1))
        logs = fitted(self._space.starts, points.at(fit), values[fit])
        return CurveModel(logs, self._space.starts, points, values), trials

    def _ends(self, shares: Floats) -> Points:
        """Return the final points of new trials."""
        return Points(self._space.features(shares), np.ones(len(shares)), np.full(len(shares), _NEW))

    def _unfinished(self, curves: Sequence[LearningCurve], promise: Floats) -> Indices:
        """Return the indices of the trials that may still finish a whole training, the most promising ones."""
        longest = max(length for curve in curves for length in curve.values)
        begun = [p for p, curve in enumerate(curves) if curve.trial >= 0 and 0 < max(curve.values, default=0) < longest]
        new = [index for index, curve in enumerate(curves) if not curve.values]
        chosen = sorted(begun, key=lambda index: -promise[index])[:_EXPECTED] + new[-_EXPECTED:]
        return np.array(sorted(chosen), dtype=np.int64)

    def _varied(self, shares: Floats, count: int, width: float, chance: np.random.Generator) -> Floats:
        """Sample points near others: at least a third of their parameters, and two on average, have other values."""
        origins = shares[chance.integers(len(shares), size=count)]
        axes = origins.shape[1]
        moved = chance.random(origins.shape) < max(1 / 3, 2 / axes)
        steps = width * np.exp(chance.normal(size=(count, 1))) * chance.normal(size=origins.shape)
        drawn = chance.random(origins.shape)
        there = origins + steps
        # A choice has no neighbours, and values outside aren't piled up at the ends.
        there = np.where(self._space.choices[None, :] | (there < 0) | (there > 1), drawn, there)
        return np.where(moved, there, origins)

    def _shares_of(self, curve: LearningCurve) -> Floats | None:
        if curve.trial not in self._shares:
            self._shares[curve.trial] = self._space.encode(curve.params)
        return self._shares[curve.trial]


_NEW = -(2**62)
"""The number of a trial that doesn't exist yet."""


def _settled(values: Floats) -> Floats:
    """Return values, more being better, standardized to mean 0 and variance 1; equal values become 0.

    The worst are raised to a bound: how bad they are says little about the good ones, and a diverged trial must not
    hide all differences.
    """
    best, middle = values.max(), np.median(values)
    # Halves: the difference of two large floats may overflow.
    above = best / 2 - middle / 2
    if above > 0:
        # Divide before bounding: `above` may be smaller than the rounding error of its double.
        with np.errstate(over="ignore"):
            shares = np.maximum((values / 2 - middle / 2) / above, -_WORST)
    else:
        below = middle / 2 - values.min() / 2
        shares = (values / 2 - middle / 2) / below if below > 0 else np.zeros_like(values)
    spread = shares.std()
    return (shares - shares.mean()) / spread if spread > 0 else np.zeros_like(values)


def _selected(progress: Floats, values: Floats, most: int) -> Indices:
    """Return the indices of at most `most` values that a model sees.

    Half of them are from the longest trainings, the best first; the others are spread evenly over the rest, in the
    order of the trials.
    """
    if len(values) <= most:
        return np.arange(len(values))
    order = np.lexsort((-values, -progress))
    longest, rest = order[: most // 2], np.sort(order[most // 2 :])
    spread = rest[np.linspace(0, len(rest) - 1, most - len(longest)).round().astype(np.int64)]
    return np.sort(np.concatenate([longest, spread]))
