"""`curves`: suggests by a Gaussian process over configurations and their length of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import erfcx, ndtr

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import Count, Settings
from hpsearch.searchers.base import Problem, Suggestion, listed, options_as
from hpsearch.searchers.history import LearningCurve
from hpsearch.searchers.learning import LearningSearcher
from hpsearch.seeds import suggestion_seed
from hpsearch.space import Broken
from hpsearch.space.unit_space import UnitSpace

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_WORST = 2.0
"""Values are clipped at this multiple of (best - median) below the median."""

_MARGIN = 0.2
"""Margin that is added to the best value in the expected improvement, in standard deviations of the values. Without it,
a smooth model would repeatedly suggest neighbours of the same point."""

_EXPECTED = 40
"""Maximum number of unfinished trials whose predicted final values are used as observations (the most promising ones),
and of trials without a report."""

_UNIFORM, _NEAR, _REFINED = 500, 200, 60
"""Number of points whose improvement is predicted: uniform, near the best trials, and near the best points of each
round."""

_ROUNDS = (0.1, 0.05, 0.02)
"""Distance of the sampled points from the best ones, by round."""

_NEW = -(2**62)
"""The number of a trial that doesn't exist yet."""

_JITTERS = (1e-8, 1e-6, 1e-4, 1e-2)
"""Values to add to the diagonal, tried in order until the covariance (of values with variance 1) is positive
definite."""

_STEPS = 20
"""Iterations of L-BFGS-B in a fit."""

_PRIOR_AXIS = (0.5, 1.0)
_PRIOR_OTHERS = ((0.5, 1.0), (0.0, 1.0), (-1.0, 1.5), (-1.0, 1.5), (-3.0, 1.5), (-4.0, 1.5))
"""Means and standard deviations of the normal priors on the logarithms of `_Scales`, in its order."""
_BOUNDS_AXIS = (-3.0, 5.0)
_BOUNDS_OTHERS = ((-2.5, 3.0), (-7.0, 3.0), (-7.0, 3.0), (-7.0, 3.0), (-9.0, 0.5), (-9.0, 0.0))


@dataclass(frozen=True)
class CurvesOptions(Settings):
    """The options of `curves` in `search.options`."""

    values: Count = 200
    """Maximum number of values that the model is fitted to. More values make it more accurate and slower."""


class CurveSearcher(LearningSearcher):
    """Maximizes expected improvement at the end of training, by a Gaussian process over configurations and progress.

    It learns from all trials of any length: from their values at the ends of segments, and from their newest value. The
    predicted mean of an unfinished trial's final value is used as an observation (the kriging believer of Ginsbourger
    et al., "Kriging Is Well-Suited to Parallelize Optimization", 2010). Otherwise neighbours of trials that wait for a
    promotion would be suggested. A full training is as long as the longest trial so far.
    """

    kind: ClassVar[str] = "curves"
    over: ClassVar[str | None] = "asha"

    @classmethod
    def over_settings(cls, max_iter: int) -> dict[str, Any]:
        """Return a first rung of a ninth of `max_iter`: shorter rungs were misleading (docs/benchmarks.md)."""
        return {"min_iter": math.ceil(max_iter / 9)}

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._space = UnitSpace(problem.space)
        self._most = options_as(CurvesOptions, problem.settings, self.kind).values
        self._shares: dict[int, Floats | None] = {}
        """Trial to its coordinates in the unit cube, which never change."""

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check the options, and that a parameter isn't constant."""
        options_as(CurvesOptions, problem.settings, cls.kind)
        listed(problem, cls.kind)
        if not UnitSpace(problem.space).searches:
            raise InvalidKey(("parameters",), "must hold a parameter that isn't constant, or there is nothing to learn")

    def _proposals(self, number: int) -> Iterator[Suggestion]:
        curves = [curve for curve in self._history.curves() if self._shares_of(curve) is not None]
        if not any(curve.values for curve in curves):
            return
        rng = np.random.default_rng(suggestion_seed(self.problem.seed, number))
        for shares in self._most_promising(curves, rng):
            with suppress(Broken):
                yield Suggestion(self._space.decode(shares), self.origin)

    def _most_promising(self, curves: Sequence[LearningCurve], rng: np.random.Generator) -> Floats:
        """Return points sorted by expected improvement, the largest first."""
        model, trials = self._model_of(curves)
        means, deviations = model.predict(trials)
        best = float(means[[bool(curve.values) for curve in curves]].max())
        model = model.also(trials.at(self._unfinished(curves, means + deviations)))
        shares = np.array([self._shares_of(curve) for curve in curves])

        def improvement(points: Floats) -> Floats:
            return log_expected_improvement(*model.predict(self._ends(points)), best + _MARGIN)

        points = rng.random((_UNIFORM, shares.shape[1]))
        leaders = shares[np.argsort(-means, kind="stable")[:8]]
        points = np.concatenate([points, self._varied(leaders, _NEAR, _ROUNDS[0], rng)])
        promise = improvement(points)
        for width in _ROUNDS:
            varied = self._varied(points[np.argsort(-promise, kind="stable")[:10]], _REFINED, width, rng)
            points, promise = np.concatenate([points, varied]), np.concatenate([promise, improvement(varied)])
        return np.asarray(points[np.argsort(-promise, kind="stable")], dtype=np.float64)

    def _model_of(self, curves: Sequence[LearningCurve]) -> tuple[CurveModel, Points]:
        """Return the fitted model, and the points of the trials at the end of a full training."""
        observed = [
            (index, length, value) for index, curve in enumerate(curves) for length, value in curve.values.items()
        ]
        indices = np.array([index for index, _, _ in observed])
        lengths = np.array([length for _, length, _ in observed], dtype=np.float64)
        sign = 1.0 if self.problem.objective.goals[0].goal == "maximize" else -1.0
        values = _settled(sign * np.array([value for _, _, value in observed], dtype=np.float64))
        longest = lengths.max()
        progress = np.log(lengths) / math.log(longest) if longest > 1 else np.ones_like(lengths)
        trials = self._ends(np.array([self._shares_of(curve) for curve in curves]))
        trials = Points(trials.features, trials.progress, np.array([curve.trial for curve in curves]))
        points = Points(trials.features[indices], progress, trials.trials[indices])
        selected = _selected(progress, values, self._most)
        points, values, progress = points.at(selected), values[selected], progress[selected]
        fit = _selected(progress, values, max(self._most // 2, 1))
        logs = fitted(self._space.starts, points.at(fit), values[fit])
        return CurveModel(logs, self._space.starts, points, values), trials

    def _ends(self, shares: Floats) -> Points:
        """Return the points of new trials at the end of a full training."""
        return Points(self._space.features(shares), np.ones(len(shares)), np.full(len(shares), _NEW))

    def _unfinished(self, curves: Sequence[LearningCurve], promise: Floats) -> Indices:
        """Return the indices of the most promising trials that may still finish a full training."""
        longest = max(length for curve in curves for length in curve.values)
        started = [
            p for p, curve in enumerate(curves) if curve.trial >= 0 and 0 < max(curve.values, default=0) < longest
        ]
        new = [index for index, curve in enumerate(curves) if not curve.values]
        chosen = sorted(started, key=lambda index: -promise[index])[:_EXPECTED] + new[-_EXPECTED:]
        return np.array(sorted(chosen), dtype=np.int64)

    def _varied(self, shares: Floats, count: int, width: float, rng: np.random.Generator) -> Floats:
        """Sample points near `shares`. On average a third of the coordinates change, or two if that is more."""
        origins = shares[rng.integers(len(shares), size=count)]
        axes = origins.shape[1]
        moved = rng.random(origins.shape) < max(1 / 3, 2 / axes)
        steps = width * np.exp(rng.normal(size=(count, 1))) * rng.normal(size=origins.shape)
        drawn = rng.random(origins.shape)
        varied = origins + steps
        # A choice has no neighbours. Values outside of the range are resampled, as clipping would favour its ends.
        varied = np.where(self._space.choices[None, :] | (varied < 0) | (varied > 1), drawn, varied)
        return np.where(moved, varied, origins)

    def _shares_of(self, curve: LearningCurve) -> Floats | None:
        if curve.trial not in self._shares:
            self._shares[curve.trial] = self._space.encode(curve.params)
        return self._shares[curve.trial]


def _settled(values: Floats) -> Floats:
    """Return values (higher is better) standardized to mean 0 and variance 1; equal values become 0.

    The worst values are clipped: how bad they are says little about the good ones, and a diverged trial must not hide
    all other differences.
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
    """Return the indices of at most `most` values that the model uses.

    Half of them are from the longest trainings, the best first. The others are spaced evenly over the remaining values,
    in the order of the trials.
    """
    if len(values) <= most:
        return np.arange(len(values))
    order = np.lexsort((-values, -progress))
    longest, shorter = order[: most // 2], np.sort(order[most // 2 :])
    spread = shorter[np.linspace(0, len(shorter) - 1, most - len(longest)).round().astype(np.int64)]
    return np.sort(np.concatenate([longest, spread]))


@dataclass(frozen=True)
class Points:
    """Inputs of the model: points at which values are observed or predicted."""

    features: Floats
    """[n, columns]: configurations in the unit cube."""
    progress: Floats
    """[n]: length of training on a logarithmic scale, 1 for a full training."""
    trials: NDArray[np.int64]
    """[n]: trial numbers. Points of different trials may have the same features."""

    def at(self, indices: NDArray[np.int64]) -> Points:
        """Return some of the points."""
        return Points(self.features[indices], self.progress[indices], self.trials[indices])

    def and_also(self, others: Points) -> Points:
        """Return these points followed by others."""
        return Points(
            np.concatenate([self.features, others.features]),
            np.concatenate([self.progress, others.progress]),
            np.concatenate([self.trials, others.trials]),
        )


@dataclass(frozen=True)
class _Scales:
    """Hyperparameters of the Gaussian process: length scales of the kernels, and variances of the terms."""

    of_axes: Floats
    of_progress: float
    whole: float
    """Variance of the part of a configuration's value that is the same at any length of training."""
    shape: float
    """Variance of a curve's shape."""
    mean: float
    """Variance of the mean curve, which all configurations share."""
    trial: float
    """Variance of an offset of each trial, for instance by its seed."""
    noise: float

    @classmethod
    def of(cls, logs: Floats) -> _Scales:
        scales = np.exp(logs)
        return cls(scales[:-6], *map(float, scales[-6:]))

    @property
    def variance(self) -> float:
        """Variance of a value without its trial's offset and noise."""
        return self.whole + self.shape + self.mean


class CurveModel:
    """A Gaussian process over configurations x and their progress t.

    The covariance is M(x, x') (whole + shape M(t, t')) + mean M(t, t') + trial [same trial] + noise [same point], with
    Matern-5/2 kernels M. The kernel on x has a length scale for each axis. So early values predict final values, and
    the fitted variances determine how well. Swersky et al., "Freeze-Thaw Bayesian Optimization", arXiv:1406.3896, model
    curves jointly with a kernel on configurations and one on iterations. The product of both is from Klein et al.,
    "Fast Bayesian Optimization of Machine Learning Hyperparameters on Large Datasets", AISTATS 2017. Curves of
    Freeze-Thaw's kernel decay exponentially; here they may rise and fall.

    Args:
        logs: Logarithms of the hyperparameters.
        starts: The first column of each axis; the columns of a choice share one length scale.
        points: Points of the observed values; at least one.
        values: [n], with mean 0 and variance 1 or less; higher is better.
    """

    def __init__(self, logs: Floats, starts: NDArray[np.int64], points: Points, values: Floats) -> None:
        self._logs = logs
        self._starts = starts
        self._points = points
        self._values = values

    def also(self, points: Points) -> CurveModel:
        """Return a model that uses its own mean predictions at some points as additional observations."""
        if not len(points.trials):
            return self
        expected, _ = self.predict(points)
        return CurveModel(
            self._logs, self._starts, self._points.and_also(points), np.concatenate([self._values, expected])
        )

    def predict(self, points: Points) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation at each point, without noise and the offset of a new trial."""
        scales = _Scales.of(self._logs)
        between, *_ = _covariance(scales, self._starts, points, self._points)
        lower, weights = self._solved
        explained = solve_triangular(lower, between.T, lower=True, check_finite=False)
        variance = scales.variance - (explained**2).sum(axis=0)
        return between @ weights, np.sqrt(np.maximum(variance, 1e-10))

    @cached_property
    def _solved(self) -> tuple[Floats, Floats]:
        """The Cholesky factor of the covariance of the observations, and the inverse covariance times the values."""
        scales = _Scales.of(self._logs)
        covariance, *_ = _covariance(scales, self._starts, self._points, self._points)
        lower = _factor(covariance, scales.noise)
        return lower, cho_solve((lower, True), self._values, check_finite=False)


def fitted(starts: NDArray[np.int64], points: Points, values: Floats) -> Floats:
    """Return the logarithms of the hyperparameters that maximize the posterior density, found by L-BFGS-B.

    The optimizer starts at the means of the priors, so that the result depends on the data alone.
    """
    begin = np.array([_PRIOR_AXIS[0]] * len(starts) + [mean for mean, _ in _PRIOR_OTHERS])
    bounds = [_BOUNDS_AXIS] * len(starts) + list(_BOUNDS_OTHERS)
    arguments = (starts, points, values)
    result = minimize(loss, begin, arguments, "L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": _STEPS})
    return np.asarray(result.x, dtype=np.float64)


def loss(logs: Floats, starts: NDArray[np.int64], points: Points, values: Floats) -> tuple[float, Floats]:
    """Return the negative logarithm of the posterior density, up to a constant, and its gradient.

    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, equations 5.8 and 5.9.
    """
    scales = _Scales.of(logs)
    covariance, near, slope, early, early_slope = _covariance(scales, starts, points, points)
    lower = _factor(covariance, scales.noise)
    weights = cho_solve((lower, True), values, check_finite=False)
    inverse = cho_solve((lower, True), np.eye(len(values)), check_finite=False)
    outer = np.outer(weights, weights) - inverse
    apart = (points.progress[:, None] - points.progress[None, :]) / scales.of_progress
    same_trial = points.trials[:, None] == points.trials[None, :]
    of_scales = [
        (outer * (scales.shape * near + scales.mean) * early_slope * apart**2).sum(),
        scales.whole * (outer * near).sum(),
        scales.shape * (outer * near * early).sum(),
        scales.mean * (outer * early).sum(),
        scales.trial * outer[same_trial].sum(),
        scales.noise * np.trace(outer),
    ]
    # The sum over i, j of pull_ij (z_i - z_j)^2 for each column, without an array [n, n, columns].
    pull = outer * (scales.whole + scales.shape * early) * slope
    scaled = points.features / _per_column(scales.of_axes, starts, points.features.shape[1])
    per_column = 2 * (pull.sum(axis=1) @ scaled**2 - (scaled * (pull @ scaled)).sum(axis=0))
    gradient = -0.5 * np.concatenate([np.add.reduceat(per_column, starts), of_scales])
    priors = np.array([_PRIOR_AXIS] * len(starts) + list(_PRIOR_OTHERS))
    away = (logs - priors[:, 0]) / priors[:, 1]
    value = 0.5 * values @ weights + np.log(np.diag(lower)).sum() + 0.5 * (away**2).sum()
    return float(value), gradient + away / priors[:, 1]


def _covariance(
    scales: _Scales, starts: NDArray[np.int64], some: Points, others: Points
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return the covariance without noise, and the kernels on configuration and progress, each with its slope."""
    lengths = _per_column(scales.of_axes, starts, some.features.shape[1])
    near, slope = _matern(_squared_distances(some.features / lengths, others.features / lengths))
    early, early_slope = _matern(((some.progress[:, None] - others.progress[None, :]) / scales.of_progress) ** 2)
    same_trial = some.trials[:, None] == others.trials[None, :]
    covariance = near * (scales.whole + scales.shape * early) + scales.mean * early + scales.trial * same_trial
    return covariance, near, slope, early, early_slope


def _matern(squared: Floats) -> tuple[Floats, Floats]:
    """Return the Matern-5/2 kernel of squared distances, and its slope.

    The slope is the derivative by the logarithm of a length scale, divided by the squared distance.
    """
    distance = np.sqrt(5.0 * squared)
    decay = np.exp(-distance)
    return (1.0 + distance + distance**2 / 3.0) * decay, 5.0 / 3.0 * (1.0 + distance) * decay


def _squared_distances(some: Floats, others: Floats) -> Floats:
    squares: Floats = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :] - 2.0 * some @ others.T
    bounded: Floats = np.maximum(squares, 0.0)
    return bounded


def _per_column(of_axes: Floats, starts: NDArray[np.int64], columns: int) -> Floats:
    lengths: Floats = np.repeat(of_axes, np.diff(np.append(starts, columns)))
    return lengths


def _factor(covariance: Floats, noise: float) -> Floats:
    """Return the Cholesky factor of a covariance with noise.

    Raises:
        LinAlgError: The covariance isn't positive definite, or contains NaN or infinity.
    """
    for jitter in _JITTERS:
        try:
            lower: Floats = cholesky(
                covariance + (noise + jitter) * np.eye(len(covariance)), lower=True, check_finite=False
            )
        except LinAlgError:
            continue
        return lower
    raise LinAlgError("a covariance must be positive definite")


def log_expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Return the logarithm of the expected improvement over `best`, even if the improvement underflows a float.

    Ament et al., "Unexpected Improvements to Expected Improvement for Bayesian Optimization", NeurIPS 2023.
    """
    above = (mean - best) / deviation
    density = -0.5 * above**2 - 0.5 * np.log(2.0 * np.pi)
    plain = np.exp(density) + above * ndtr(above)
    below = np.maximum(-above, 1.0)
    # Far below `best`, the difference loses all digits: use the first term of its expansion, the inverse square.
    ratio = np.where(below < 1e4, 1.0 - np.sqrt(np.pi / 2.0) * below * erfcx(below / np.sqrt(2.0)), below**-2.0)
    far = density + np.log(np.maximum(ratio, np.finfo(float).tiny))
    near = np.log(np.maximum(plain, np.finfo(float).tiny))
    return np.asarray(np.log(deviation) + np.where(above > -1.0, near, far), dtype=np.float64)
