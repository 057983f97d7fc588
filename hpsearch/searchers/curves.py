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
from hpsearch.searchers.history import Curve
from hpsearch.searchers.learning import LearningSearcher
from hpsearch.searchers.settings import options_as
from hpsearch.seeds import suggestion_seed
from hpsearch.space import Broken
from hpsearch.space.unit_space import UnitSpace

__all__ = ["Curves"]

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_WORST = 2.0
"""How far below the median a value counts, at most, against how far above it the best one is."""

_MARGIN = 0.2
"""By how much more than the best a point must promise, in standard deviations of the values: else one point is tried
again and again beside itself, for what a smooth model hopes of its surroundings."""

_EXPECTED = 40
"""Trials that might go on whose ends are taken as known; of more, those that promise most, and as many under way."""

_UNIFORM, _NEAR, _REFINED = 500, 200, 60
"""Points whose improvement is asked for: drawn evenly, near the best trials, and near the best points of each round."""

_ROUNDS = (0.1, 0.05, 0.02)
"""How near those of each round are."""


@dataclass(frozen=True)
class CurvesOptions(Settings):
    """What `search.options` may hold."""

    values: Count = 200
    """Values that the model sees at most: the more, the better it knows, and the longer it takes."""


class Curves(LearningSearcher):
    """The point whose end promises most, by a Gaussian process over configurations and how long they were trained.

    All trials tell of it, however far they got: their values where segments ended, and the newest. What each may still
    come to is taken as known, at the mean (Ginsbourger et al., "Kriging Is Well-Suited to Parallelize Optimization",
    2010, call it the kriging believer): else it would be tried anew beside trials that only wait for their promotion.
    A whole training is the longest that a trial has had.
    """

    kind: ClassVar[str] = "curves"
    over: ClassVar[str | None] = "asha"

    @classmethod
    def over_settings(cls, max_iter: int) -> dict[str, Any]:
        """Give a first rung of a ninth of a whole training: what shorter ones say misled it (docs/benchmarks.md)."""
        return {"min_iter": math.ceil(max_iter / 9)}

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._space = UnitSpace(problem.space)
        self._most = options_as(CurvesOptions, problem.settings, self.kind).values
        self._shares: dict[int, Floats | None] = {}
        """Trials to their shares, which never change."""

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

    def _most_promising(self, curves: Sequence[Curve], chance: np.random.Generator) -> Floats:
        """Give points, of the largest expected improvement first."""
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

    def _model_of(self, curves: Sequence[Curve]) -> tuple[CurveModel, Points]:
        """Fit the model; give it, and the ends of the trials."""
        seen = [(place, length, value) for place, curve in enumerate(curves) for length, value in curve.values.items()]
        places, lengths = np.array([one[0] for one in seen]), np.array([one[1] for one in seen], dtype=np.float64)
        sign = 1.0 if self.problem.objective.goals[0].goal == "maximize" else -1.0
        values = _settled(sign * np.array([one[2] for one in seen], dtype=np.float64))
        longest = lengths.max()
        progress = np.log(lengths) / math.log(longest) if longest > 1 else np.ones_like(lengths)
        trials = self._ends(np.array([self._shares_of(curve) for curve in curves]))
        trials = Points(trials.features, trials.progress, np.array([curve.trial for curve in curves]))
        points = Points(trials.features[places], progress, trials.trials[places])
        kept = _telling(progress, values, self._most)
        points, values, progress = points.at(kept), values[kept], progress[kept]
        fit = _telling(progress, values, max(self._most // 2, 1))
        logs = fitted(self._space.starts, points.at(fit), values[fit])
        return CurveModel(logs, self._space.starts, points, values), trials

    def _ends(self, shares: Floats) -> Points:
        """Give whole trainings of new trials."""
        return Points(self._space.features(shares), np.ones(len(shares)), np.full(len(shares), _NEW))

    def _unfinished(self, curves: Sequence[Curve], promise: Floats) -> Places:
        """Give the places of those that may still come to a whole training, as far as they matter."""
        longest = max(length for curve in curves for length in curve.values)
        begun = [p for p, curve in enumerate(curves) if curve.trial >= 0 and 0 < max(curve.values, default=0) < longest]
        new = [place for place, curve in enumerate(curves) if not curve.values]
        chosen = sorted(begun, key=lambda place: -promise[place])[:_EXPECTED] + new[-_EXPECTED:]
        return np.array(sorted(chosen), dtype=np.int64)

    def _varied(self, shares: Floats, count: int, width: float, chance: np.random.Generator) -> Floats:
        """Draw points near some: a third of their parameters or more, and two on average, have other values."""
        origins = shares[chance.integers(len(shares), size=count)]
        axes = origins.shape[1]
        moved = chance.random(origins.shape) < max(1 / 3, 2 / axes)
        steps = width * np.exp(chance.normal(size=(count, 1))) * chance.normal(size=origins.shape)
        drawn = chance.random(origins.shape)
        there = origins + steps
        # A choice has no neighbours, and what lies outside isn't piled up at the ends.
        there = np.where(self._space.choices[None, :] | (there < 0) | (there > 1), drawn, there)
        return np.where(moved, there, origins)

    def _shares_of(self, curve: Curve) -> Floats | None:
        if curve.trial not in self._shares:
            self._shares[curve.trial] = self._space.encode(curve.params)
        return self._shares[curve.trial]


_NEW = -(2**62)
"""Stands for the number of a trial that there isn't."""


def _settled(values: Floats) -> Floats:
    """Give values, more being better, of mean 0 and variance 1; of equal ones nothing but 0.

    How bad the bad ones are says little of the good ones, and one that diverged must not hide all differences: so the
    worst are raised to a bound.
    """
    best, middle = values.max(), np.median(values)
    # Halves: the difference of two large floats may overflow.
    above = best / 2 - middle / 2
    if above > 0:
        # As shares of it before they are bounded: it may be smaller than what its double is rounded to.
        with np.errstate(over="ignore"):
            shares = np.maximum((values / 2 - middle / 2) / above, -_WORST)
    else:
        below = middle / 2 - values.min() / 2
        shares = (values / 2 - middle / 2) / below if below > 0 else np.zeros_like(values)
    spread = shares.std()
    return (shares - shares.mean()) / spread if spread > 0 else np.zeros_like(values)


def _telling(progress: Floats, values: Floats, most: int) -> Places:
    """Give the places of the values that a model sees: of more than `most` the furthest, and others spread evenly.

    One half is of the longest trainings, the best first; the other of all that are left, by the order of the trials.
    """
    if len(values) <= most:
        return np.arange(len(values))
    order = np.lexsort((-values, -progress))
    furthest, left = order[: most // 2], np.sort(order[most // 2 :])
    spread = left[np.linspace(0, len(left) - 1, most - len(furthest)).round().astype(np.int64)]
    return np.sort(np.concatenate([furthest, spread]))
