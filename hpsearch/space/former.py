"""How the first versions drew and spaced, kept as it was: a study that they began goes on as they would have.

Their sweeps hold no `draws`, or 1. What of it is shared with today's distributions must not change either; the
tests hold this law to values that those versions gave.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from hpsearch.checks import InvalidKey
from hpsearch.space.choices import Categorical
from hpsearch.space.distribution import Distribution, own_copy
from hpsearch.space.normals import LogNormal, Normal
from hpsearch.space.ranges import IntUniform, LogIntUniform, LogUniform, Uniform
from hpsearch.space.space import MOST_DRAWS, Space
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["FormerSpace"]


class FormerSpace(Space):
    """A space whose parameters are drawn one after the other from one generator of the trial."""

    law: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for parameter in self.parameters:
            if parameter.distribution.prior is not None:
                raise InvalidKey((*parameter.path, "prior"), "must not be given in a study that drew without priors")

    def complete(self, point: Params, seed: int, number: int, most: int = MOST_DRAWS) -> dict[str, Value]:
        """Draw every parameter, in order, and take those of the point instead."""
        from numpy.random import PCG64, Generator, SeedSequence

        rng = Generator(PCG64(SeedSequence([seed, number])))
        drawn = {parameter.name: _drawn(parameter.distribution, rng) for parameter in self.parameters}
        return {**drawn, **own_copy(dict(point))}

    @staticmethod
    def _grid_of(distribution: Distribution) -> list[Value]:
        if isinstance(distribution, _Ranges) and distribution.points is not None:
            return _spaced(distribution, distribution.points)
        return distribution.grid()


_Ranges = Uniform | LogUniform | IntUniform | LogIntUniform


def _drawn(distribution: Distribution, rng: Generator) -> Value:
    match distribution:
        case Uniform() | LogUniform():
            return distribution.snap(distribution.at(rng.random()))
        case IntUniform(steps=steps) if steps is not None:
            return steps.value(int(rng.integers(steps.first, steps.last, endpoint=True)))
        case LogIntUniform(min=low, max=high, steps=steps) if steps is not None:
            share = rng.random()
            floor = math.floor(math.exp(math.log(low) * (1.0 - share) + math.log(high + 1) * share))
            return steps.snap(min(max(floor, low), high))
        case Normal() | LogNormal():
            return distribution.at_deviations(rng.standard_normal())
        case Categorical():
            return distribution.at(rng.random())
    return distribution.draw(0)  # a constant


def _spaced(distribution: _Ranges, points: int) -> list[Value]:
    low, high = distribution.min, distribution.max
    inner = [float(f"{distribution.at(place / (points - 1)):.12g}") for place in range(1, points - 1)]
    values = (low, *(min(max(value, low), high) for value in inner), high)
    return list(dict.fromkeys(map(distribution.snap, values)))
