"""Configurations as vectors of numbers from 0 to 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpsearch.space.choices import Categorical
from hpsearch.space.distribution import Numeric, own_copy
from hpsearch.space.parameter import Parameter
from hpsearch.space.space import Space
from hpsearch.trial import Params, Value

Floats = NDArray[np.float64]


class UnitSpace:
    """Encodes a configuration as a number in [0, 1] for each searched parameter.

    A number is encoded as its position on the unit scale of the draws, a choice as its position in the list. Inactive
    parameters are in the middle.

    Raises:
        InvalidKey: The number of parameters is unbounded.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._searched = [parameter for parameter in space.parameters if parameter.distribution.searched]

    def encode(self, params: Params) -> Floats | None:
        """Return the encoding [parameters]; None if a value has probability 0."""
        try:
            return np.array([_share(p, params[p.name]) if p.name in params else 0.5 for p in self._searched])
        except LookupError:
            return None

    def decode(self, shares: Floats) -> dict[str, Value]:
        """Return the configuration of an encoding.

        Raises:
            Broken: The configuration breaks a constraint.
        """
        share_of = {p.name: share for p, share in zip(self._searched, shares.tolist(), strict=True)}
        return self._space.build(lambda parameter: _value(parameter, share_of.get(parameter.name, 0.0)))


def _share(parameter: Parameter, value: Value) -> float:
    match parameter.distribution:
        case Categorical() as choice:
            return (choice.index(value) + 0.5) / len(choice.every_value())
        case Numeric() as number:
            return number.share(value)
    raise TypeError(f"a distribution must be numeric or categorical, got {type(parameter.distribution).__name__}")


def _value(parameter: Parameter, share: float) -> Value:
    if isinstance(parameter.distribution, Categorical):
        values = parameter.distribution.every_value()
        return own_copy(values[min(int(share * len(values)), len(values) - 1)])
    return parameter.distribution.quantile(share)
