"""Mutations: one parameter has another value, near or far, and never by chance the same."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.seeds import DRAW_BITS
from hpsearch.space import (
    Categorical,
    Constant,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from tests.hpsearch.support.spaces import distributions, spaces

SEEDS = st.integers(0, 2**32 - 1)
BITS = st.integers(0, 2**DRAW_BITS - 1)

FEW = [
    Categorical(["a", "b", "c", "d"]),
    Categorical([True, 1, 1.0, "1", None, [1], [1]]),
    Categorical(["a", "b", "c"], [0.6, 0.4, 0.0]),
    IntUniform(-2, 3),
    IntUniform(5, 30, step=10),
    IntUniform(-(2**62), 2 - 2**62),
    LogIntUniform(1, 9),
    LogIntUniform(2**62, 2**62 + 3),
    Uniform(0.0, 1.0, step=0.25),
    Uniform(-7, 7, step=3),
    Normal(0.0, 1.0, step=1),
    LogNormal(0.0, 0.3, step=1),
]
"""Distributions of few values."""

NARROW = [
    Uniform(0.0, 5e-324),
    Uniform(1.0, math.nextafter(1.0, 2.0)),
    LogUniform(1e300, math.nextafter(1e300, math.inf)),
    LogUniform(5e-324, 1e-323),
    Normal(1e16, 2.0),
]
"""Where draws give the same number again and again."""


def turned(share: float, low_bits: int = 1) -> int:
    """Return the bits of a draw at this share; they are near a value unless the low bits are a multiple of four."""
    return (int(share * 2**60) << (DRAW_BITS - 60)) | low_bits


def every(distribution: Distribution, value: Any, count: int = 4096) -> list[Any]:
    """Return the mutations of a value by equally spaced bits, of which a quarter sample from the whole range."""
    return [distribution.mutate(value, turned((place + 0.5) / count, place % 4)) for place in range(count)]


@given(spaces(), SEEDS, SEEDS)
def test_one_parameter_changes_and_all_are_as_drawn(space, drawn, seed):
    point = space.draw(drawn, 1)
    before = json.dumps(point)
    mutant = space.mutate(point, seed)
    changed = [name for name in space.names if json.dumps(mutant[name]) != json.dumps(point[name])]
    assert len(changed) == 1
    assert changed[0] in {parameter.name for parameter in space.mutable(point)}
    assert json.dumps(space.check(mutant)) == json.dumps(mutant)
    assert tuple(mutant) == space.names
    assert json.dumps(space.mutate(point, seed)) == json.dumps(mutant)
    for value in mutant.values():
        if isinstance(value, list):
            value.append(1)
    assert json.dumps(point) == before


@given(distributions(), BITS, BITS)
def test_every_number_and_choice_becomes_another_wherever_there_is_one(distribution, drawn, bits):
    value = distribution.draw(drawn)
    values = distribution.every_value()
    if values is not None:
        assert distribution.mutable(value) == (len(values) > 1)
    if not distribution.mutable(value):
        with pytest.raises(ValueError, match="must have another value"):
            distribution.mutate(value, bits)
        return
    mutant = distribution.mutate(value, bits)
    assert json.dumps(mutant) != json.dumps(value)
    assert isinstance(distribution, Categorical) or mutant != value
    assert json.dumps(distribution.accept(mutant)) == json.dumps(mutant)
    if values is not None:
        assert json.dumps(mutant) in map(json.dumps, values)


@pytest.mark.parametrize("distribution", FEW, ids=repr)
def test_of_few_values_each_becomes_every_other_one_step_by_step(distribution):
    values = distribution.every_value()
    found = {json.dumps(distribution.draw(turned(0.5)))}
    while more := {json.dumps(new) for value in found for new in every(distribution, json.loads(value), 512)} - found:
        found |= more
    assert found == set(map(json.dumps, values)) if len(values) < 12 else found < set(map(json.dumps, values))


@pytest.mark.parametrize("distribution", NARROW, ids=repr)
def test_in_a_narrow_range_the_neighbour_is_taken(distribution):
    for value in distribution.ends:
        for share in (0.0, 0.5, 1 - 2**-53):
            for low_bits in (0, 1):
                mutant = distribution.mutate(value, turned(share, low_bits))
                assert mutant != value
                assert distribution.ends[0] <= mutant <= distribution.ends[1]
                assert distribution.accept(mutant) == mutant


def test_a_choice_becomes_another_by_its_probability():
    of = Categorical(["a", "b", "c", "d"], [0.4, 0.3, 0.0, 0.3])
    assert Counter(every(of, "a", 4000)) == {"b": 2000, "d": 2000}
    assert Counter(every(of, "b", 7000)) == {"a": 4000, "d": 3000}
    assert Counter(every(of, "c", 10_000)) == {"a": 4000, "b": 3000, "d": 3000}
    assert Counter(every(Categorical(["a", "b", "b"]), "c", 3000)) == {"a": 1000, "b": 2000}


@pytest.mark.parametrize(
    ("distribution", "value"),
    [(Uniform(-1.0, 3.0), 1.0), (LogUniform(1e-4, 1.0), 1e-2), (Normal(5.0, 2.0), 5.0), (LogNormal(1.0, 2.0), math.e)],
    ids=repr,
)
def test_three_numbers_in_four_move_near_on_their_own_scale_and_the_rest_anywhere(distribution, value):
    moves = [distribution.position(new) - 0.5 for new in every(distribution, value)]
    for within, expected in ((0.1, 0.75 * 0.6827 + 0.25 * 0.2), (0.3, 0.75 * 0.9973 + 0.25 * 0.6)):
        assert sum(abs(move) < within for move in moves) / len(moves) == pytest.approx(expected, abs=0.01)
    assert min(moves) < -0.49
    assert max(moves) > 0.49
    assert sum(moves) / len(moves) == pytest.approx(0.0, abs=0.01)


def test_an_integer_moves_to_its_neighbours_most_of_all_and_to_any_other():
    moves = Counter(every(IntUniform(1, 8), 4))
    assert set(moves) == {1, 2, 3, 5, 6, 7, 8}
    assert min(moves[3], moves[5]) > 3 * max(moves[1], moves[7])
    assert Counter(every(IntUniform(1, 8), 8)).most_common(1)[0][0] == 7
    assert set(every(IntUniform(0, 1), 0)) == {1}


def test_each_parameter_that_has_another_value_is_as_likely_to_change():
    space = Space.from_parameters(
        {"x": Uniform(0.0, 1.0), "one": IntUniform(1, 2, step=2), "c": ["a", "b"], "k": 3, "n": {"d": [1, 2, 3]}}
    )
    point = space.draw(0, 0)
    changed = Counter(
        name for seed in range(3000) for name, value in space.mutate(point, seed).items() if value != point[name]
    )
    assert set(changed) == {"x", "c", "n.d"}
    assert all(abs(count - 1000) < 160 for count in changed.values())  # six deviations


def test_what_changes_depends_on_no_other_parameters_order():
    one = Space.from_parameters({"x": Uniform(0.0, 1.0), "c": ["a", "b"], "n": IntUniform(1, 9)})
    other = Space.from_parameters({"n": IntUniform(1, 9), "x": Uniform(0.0, 1.0), "c": ["a", "b"]})
    point = one.draw(1, 1)
    for seed in range(50):
        assert one.mutate(point, seed) == other.mutate(point, seed)


def test_where_nothing_can_change_it_says_so():
    fixed = Space.from_parameters({"k": 3, "one": IntUniform(1, 2, step=2), "c": Categorical(["a", "b"], [1.0, 0.0])})
    point = fixed.draw(0, 0)
    assert fixed.mutable(point) == ()
    with pytest.raises(InvalidKey, match="must hold a parameter with another value"):
        fixed.mutate(point, 1)
    assert fixed.mutate({**point, "c": "b"}, 1) == {**point, "c": "a"}
    assert not Constant(3).mutable(3)


def test_a_point_outside_the_space_is_refused():
    space = Space.from_parameters({"x": Uniform(0.0, 1.0), "k": 3})
    for point, told in (({"x": 2.0}, "x: must be between"), ({}, "x: is required"), ({"x": 0.5, "y": 1}, "y: isn't")):
        with pytest.raises(InvalidKey, match=told):
            space.mutate(point, 0)


def test_a_number_that_is_never_drawn_comes_back_to_those_that_are():
    assert Normal(0.0, 0.1, step=2).mutate(4, 5) == 0
    assert abs(Normal().mutate(1e300, turned(0.5))) < 9
    assert LogNormal(0.0, 1.0, step=1).mutate(0, turned(0.5)) > 0
