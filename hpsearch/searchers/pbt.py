"""Population based training: the params of forks of good trials.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846: `perturb` and `resample`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from hpsearch.config.checks import InvalidKey, is_number, nearest
from hpsearch.config.settings import AtLeast, Settings
from hpsearch.searchers.base import Problem, Searcher, SearcherCapabilities, Suggestion, options_as
from hpsearch.seeds import draw_bits, explore_seed, perturb_seed
from hpsearch.space import (
    Broken,
    Cell,
    Chain,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Ordinal,
    Parameter,
    Uniform,
    ZeroOrLogUniform,
)
from hpsearch.space.distribution import Numeric, own_copy, share_of
from hpsearch.trial import Params, Trial, Value

_ATTEMPTS = 100
"""Attempts that may violate a constraint, before a fork gets its parent's parameters unchanged."""

_LEAST_MOVE = 0.1
"""On a linear scale, a number moves at least as far as a number of this share of the range's width would."""

_DEVIATIONS = 4
"""The width of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Explore(Settings):
    """How a fork's parameters differ from its parent's."""

    shrink: Annotated[float, AtLeast(0)] = 0.8
    """Factor by which a number is multiplied with probability 1/2."""
    grow: Annotated[float, AtLeast(1)] = 1.2
    """Factor by which a number is multiplied otherwise."""
    resample: Annotated[float, AtLeast(0)] = 0.25
    """Probability that a parameter is resampled instead, independently for each parameter."""
    fixed: tuple[str, ...] = ()
    """Flat names of parameters, or names of groups, whose values a fork copies from its parent unchanged."""

    def check(self) -> None:
        """Check that `shrink` and `resample` are at most 1."""
        for name in ("shrink", "resample"):
            value = getattr(self, name)
            if value > 1:
                raise InvalidKey((name,), f"must be at most 1, got {value}")


class PBTSearcher(Searcher):
    """Samples the first members, and perturbs the parameters of forks. Both depend only on (seed, number).

    Each parameter of a fork is resampled with probability `resample`, and otherwise perturbed: a number is multiplied
    by one of two factors, and an ordered choice moves to a neighbour. Other choices don't change. Numbers stay in their
    ranges, and move by at least one step if they have steps. A factor wouldn't move 0, so on a linear scale a number
    moves at least as far as a tenth of the range's width would. Parameters of the network whose weights are copied
    don't change: the branches of choices, the number of copies of a block, and everything inside a chain or a cell.
    """

    kind: ClassVar[str] = "pbt"
    over: ClassVar[str | None] = "pbt"
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(explores=True, has_options=True, changes=False)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._explore = options_as(Explore, problem.settings, self.kind)

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check the options, and that a fork can differ from its parent.

        Raises:
            InvalidKey: An option is invalid, or no parameter can change.
        """
        explore = options_as(Explore, problem.settings, cls.kind)
        names = problem.space.some_names()
        for index, name in enumerate(explore.fixed):
            if problem.space.find(name) is None and not any(parameter.startswith(f"{name}.") for parameter in names):
                key = ("search", "options", "fixed", index)
                raise InvalidKey(key, f"must be a parameter, or hold some, got {name!r}", nearest(name, names))
        searcher = cls(problem)
        if not any(
            searcher._may_change(parameter) for name in names if (parameter := problem.space.find(name)) is not None
        ):
            raise InvalidKey(("search", "options", "fixed"), "must leave a parameter that a fork may change")

    def suggest(self, number: int) -> Suggestion:
        """Sample the params of a first member."""
        return Suggestion(self.problem.space.draw(self.problem.seed, number), "random")

    def explore(self, number: int, parent: Trial) -> Suggestion:
        """Return the perturbed params of a parent."""
        drawn = self.problem.space.draw(explore_seed(self.problem.seed), number)
        for attempt in range(_ATTEMPTS):
            with suppress(Broken):
                params = self.problem.space.build(
                    partial(self._changed, number, parent.params, {} if attempt else drawn, attempt)
                )
                return Suggestion(params, self.kind)
        return Suggestion(own_copy(dict(parent.params)), self.kind)

    def _changed(self, number: int, parent: Params, drawn: Params, attempt: int, parameter: Parameter) -> Value:
        name, distribution, path = parameter.name, parameter.distribution, parameter.path

        def anew() -> Value:
            if name in drawn:
                return drawn[name]
            return distribution.draw(draw_bits(explore_seed(self.problem.seed), number, path, attempt))

        if name not in parent:
            return anew()
        value = parent[name]
        if not self._may_change(parameter):
            return own_copy(value)
        fraction = share_of(draw_bits(perturb_seed(self.problem.seed), number, path, attempt))
        resample = self._explore.resample
        if fraction < resample:
            return anew()
        up = fraction >= resample + (1 - resample) / 2
        if isinstance(distribution, Numeric):
            return _moved(distribution, value, self._explore.grow if up else self._explore.shrink)
        return own_copy(_neighbour(distribution, value, 1 if up else -1))

    def _may_change(self, parameter: Parameter) -> bool:
        name = parameter.name
        fixed = any(name == prefix or name.startswith(f"{prefix}.") for prefix in self._explore.fixed)
        return parameter.distribution.searched and not fixed and not self._is_architecture(parameter)

    def _is_architecture(self, parameter: Parameter) -> bool:
        """Return whether a parameter describes the network whose weights are copied."""
        enclosing = [".".join(parameter.path[:depth]) for depth in range(1, len(parameter.path))]
        within = any(isinstance(self.problem.space.structure(name), Chain | Cell) for name in enclosing)
        return within or parameter.holder is not None


def _moved(distribution: Numeric, value: float, factor: float) -> int | float:
    """Return a number multiplied by a factor, within its range."""
    if factor == 1 or (value == 0 and isinstance(distribution, ZeroOrLogUniform)):
        return value  # 0 is left by resampling alone
    target = value * factor
    if not isinstance(distribution, LogUniform | ZeroOrLogUniform | LogIntUniform | LogNormal):
        by = max(abs(value), _LEAST_MOVE * _width(distribution)) * (factor - 1)
        target = value + by
    low, high = _bounds(distribution)
    target = min(max(target, low), high)
    steps = distribution.steps
    if steps is None:
        return target
    first = 0 if isinstance(distribution, LogNormal) else steps.first
    at = steps.multiple(value)  # exact beyond 2**53, where a quotient of floats may be rounded
    to = round(min(max(target / steps.size, first), steps.last))
    multiple = max(to, at + 1) if factor > 1 else min(to, at - 1)
    return steps.value(min(max(multiple, first), steps.last))


def _width(distribution: Numeric) -> float:
    if isinstance(distribution, Uniform | IntUniform):
        return distribution.max - distribution.min
    assert isinstance(distribution, Normal)
    return _DEVIATIONS * distribution.sigma


def _bounds(distribution: Numeric) -> tuple[float, float]:
    if isinstance(distribution, Uniform | LogUniform | ZeroOrLogUniform | IntUniform | LogIntUniform):
        return distribution.min, distribution.max
    largest = sys.float_info.max
    if isinstance(distribution, LogNormal):
        return (sys.float_info.min if distribution.step is None else 0.0), largest
    return -largest, largest


def _neighbour(distribution: Distribution, value: Value, direction: int) -> Value:
    """Return the next value of an ordered choice, or of rising or falling numbers; otherwise the same value."""
    values = distribution.every_value() or ()
    if isinstance(distribution, Ordinal):
        return values[min(max(distribution.index(value) + direction, 0), len(values) - 1)]
    if not all(map(is_number, values)) or values not in (sorted(set(values)), sorted(set(values), reverse=True)):
        return value
    index = values.index(value) + direction
    return values[min(max(index, 0), len(values) - 1)]
