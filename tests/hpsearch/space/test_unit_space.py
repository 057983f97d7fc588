"""Shares and features of points: what a model sees of a point is where it is decoded from."""

from __future__ import annotations

import json
import tracemalloc

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
"""More values than a model tells apart."""

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
def test_each_of_few_values_is_decoded_to_itself_and_has_features_of_its_own(distribution: Distribution) -> None:
    unit = UnitSpace(Space.from_parameters({"a": distribution}))
    values = distribution.every_value()
    assert values is not None
    shares = np.array([unit.encode({"a": value}) for value in values])
    assert [json.dumps(unit.decode(share)) for share in shares] == [json.dumps({"a": value}) for value in values]
    assert len(np.unique(unit.features(shares), axis=0)) == len(values)
    anywhere = np.linspace(0.0, 1.0, 99)[:, None]
    decoded = np.array([unit.encode(unit.decode(share)) for share in anywhere])
    assert np.array_equal(unit.features(anywhere), unit.features(decoded))


def test_choices_of_very_many_values_take_the_memory_of_the_points_that_are_asked_for() -> None:
    unit = UnitSpace(Space.from_parameters({"a": Categorical(list(range(5000)))}))
    shares = np.array([[0.0], [0.5], [0.9999]])
    tracemalloc.start()
    features = unit.features(shares)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert features.shape == (3, 5000)
    assert (features > 0).sum() == 3
    assert most < 10_000_000  # a table of all choices would be of 200,000,000 bytes
