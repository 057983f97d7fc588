"""The probability that a configuration can be trained, learned from those that memory, time or numbers didn't allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpsearch.space import Categorical, Ordinal, Space
from hpsearch.space.distribution import Numeric
from hpsearch.trial import Params

Floats = NDArray[np.float64]

EXPLORED = 0.05
"""Share of the suggestions that ignore the model, so that no region is left for good."""

_LIKELY = 0.8
"""From this probability on, a configuration is always accepted, below it with its probability."""

_MOST = 100
"""Newest failed trials that the model is fitted to, and as many of the others: a fit takes some milliseconds."""

_CONSTANT, _LINEAR, _LOCAL, _LENGTH = 1.0, 4.0, 4.0, 0.5
"""Variances of the kernel's parts, and the length of the local part for one parameter, which is 2 wide."""

_STEPS = 50
_CONVERGED = 1e-6


class Feasibility:
    """A Gaussian process classifier: Laplace's approximation with a logistic likelihood.

    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Algorithm 3.1. Suggestions are weighted by
    the probability, as in Gelbart et al., "Bayesian Optimization with Unknown Constraints", UAI 2014. The kernel is
    constant + linear + squared exponential. Memory and time mostly grow with each parameter, which the linear part
    finds from a few trials; the local part finds the other regions.

    Args:
        space: The search space.
        trained: Configurations that could be trained, oldest first.
        failed: Configurations that couldn't.
        share: A number in [0, 1) that is drawn for the suggestion: it decides what is accepted.
    """

    def __init__(self, space: Space, trained: Sequence[Params], failed: Sequence[Params], share: float) -> None:
        self._space = space
        self._threshold = 0.0 if share < EXPLORED or not failed else min(share, _LIKELY)
        self._trained = trained[-_MOST:]
        self._failed = failed[-_MOST:]

    def accepts(self, params: Params) -> bool:
        """Return whether a configuration may be suggested."""
        return self._threshold == 0 or self.probability(params) >= self._threshold

    def probability(self, params: Params) -> float:
        """Return the probability that a configuration can be trained."""
        rows, weights = self._fitted
        (covariances,) = self._kernel(self._features([params]), rows)
        return float(1 / (1 + np.exp(-covariances @ weights)))

    @cached_property
    def _columns(self) -> dict[str, int]:
        """Feature to its column, for the features of the known configurations."""
        names = (name for params in (*self._trained, *self._failed) for name in self._positions(params))
        return {name: column for column, name in enumerate(dict.fromkeys(names))}

    @cached_property
    def _fitted(self) -> tuple[Floats, Floats]:
        """The features of the known configurations, and the gradient of the log likelihood at the mode."""
        rows = self._features([*self._trained, *self._failed])
        is_trained = np.repeat([1.0, 0.0], [len(self._trained), len(self._failed)])
        covariances = self._kernel(rows, rows)
        latent = np.zeros(len(rows))
        for _ in range(_STEPS):
            probability = 1 / (1 + np.exp(-latent))
            curvature = probability * (1 - probability)
            root = np.sqrt(curvature)
            b = curvature * latent + is_trained - probability
            system = np.eye(len(rows)) + root[:, None] * covariances * root
            before, latent = latent, covariances @ (b - root * np.linalg.solve(system, root * (covariances @ b)))
            if np.abs(latent - before).max() < _CONVERGED:
                break
        return rows, is_trained - 1 / (1 + np.exp(-latent))

    def _kernel(self, some: Floats, others: Floats) -> Floats:
        """Return the covariances [some, others] of rows of features."""
        distances = ((some[:, None] - others[None]) ** 2).sum(axis=2) / max(others.shape[1], 1)
        local: Floats = np.exp(-distances / (2 * _LENGTH**2))
        return _CONSTANT + _LINEAR * (some @ others.T) + _LOCAL * local

    def _features(self, points: Sequence[Params]) -> Floats:
        """Return rows of features; 0, the middle, for a number that a configuration doesn't have."""
        rows = np.zeros((len(points), len(self._columns)))
        for row, params in zip(rows, points, strict=True):
            for name, position in self._positions(params).items():
                if name in self._columns:
                    row[self._columns[name]] = position
        return rows

    def _positions(self, params: Params) -> Mapping[str, float]:
        """Return the features of a configuration: numbers from -1 to 1 on their scales, and the chosen values as 1."""
        positions: dict[str, float] = {}
        for name, value in params.items():
            parameter = self._space.find(name)
            distribution = None if parameter is None else parameter.distribution
            with suppress(LookupError):  # a value of probability 0
                if isinstance(distribution, Numeric | Ordinal):
                    positions[name] = 2 * distribution.share(value) - 1
                elif isinstance(distribution, Categorical):
                    positions[f"{name}={distribution.index(value)}"] = 1.0
        return positions
