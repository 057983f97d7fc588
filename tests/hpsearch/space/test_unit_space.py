"""Points as vectors: each is decoded from its encoding."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hpsearch.space import (
    Categorical,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from hpsearch.space.unit_space import UnitSpace

STEPPED = [
    IntUniform(1, 1000),
    IntUniform(-7, 2003, step=10),
    LogIntUniform(1, 1000),
    LogIntUniform(1, 4096, step=16),
    LogIntUniform(17, 16_000, step=16),
    LogUniform(0.0007, 1.0, step=0.001),
    Uniform(0.0, 1.0, step=0.003),
    LogNormal(0.0, 3.0, step=1),
]

FEW = [
    IntUniform(1, 5),
    IntUniform(5, 30, step=10),
    LogIntUniform(1, 9),
    LogIntUniform(17, 500, step=16),
    Uniform(-0.3, 0.7, step=0.1),
    Normal(0.0, 0.5, step=1),
    LogNormal(0.0, 0.3, step=1),
    Categorical([True, 1, 1.0, "1", None, [1], [1, 2.0], {"a": [1]}, [1]]),
    Categorical(["a", "b", "c"], [0.6, 0.0, 0.4]),
]


@pytest.mark.parametrize("distribution", STEPPED, ids=repr)
def test_a_multiple_is_decoded_to_itself(distribution: Distribution) -> None:
    space = Space.from_parameters({"a": distribution})
    unit = UnitSpace(space)
    for number in range(300):
        point = space.draw(0, number)
        shares = unit.encode(point)
        assert shares is not None
        assert unit.decode(shares) == point


@pytest.mark.parametrize("distribution", FEW, ids=repr)
def test_each_of_few_values_is_decoded_to_itself(distribution: Distribution) -> None:
    unit = UnitSpace(Space.from_parameters({"a": distribution}))
    values = distribution.every_value()
    assert values is not None
    shares = np.array([unit.encode({"a": value}) for value in values])
    assert [json.dumps(unit.decode(share)) for share in shares] == [json.dumps({"a": value}) for value in values]
