"""A space as booleans: each point has its own, and what is drawn has those that are settled."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.searchers.boolean_space import BooleanSpace
from hpsearch.space import Categorical, IntUniform, LogIntUniform, Space, Uniform
from tests.hpsearch.support.spaces import spaces


def codes(distribution: object, values: list[object]) -> list[tuple[int, ...]]:
    space = BooleanSpace(Space.from_parameters({"x": distribution}))
    found = [space.encode({"x": value}) for value in values]
    return [() if code is None else tuple(code.tolist()) for code in found]


def test_a_number_has_the_bits_of_its_eighth():
    places = [0.0, 0.13, 0.3, 0.4, 0.6, 0.7, 0.8, 1.0]
    assert codes(Uniform(0, 1), [*places]) == list(itertools.product((-1, 1), repeat=3))


@pytest.mark.parametrize(
    ("distribution", "count"),
    [(IntUniform(1, 2), 1), (IntUniform(1, 3), 2), (IntUniform(1, 8), 3), (Uniform(0, 1, step=0.25), 3)],
)
def test_few_values_have_as_many_booleans_as_tell_them_apart(distribution, count):
    values = distribution.every_value()
    found = codes(distribution, values)
    assert len(set(found)) == len(values)
    assert {len(code) for code in found} == {count}


def test_of_two_choices_one_boolean_says_which_and_of_more_each_has_its_own():
    assert codes(["a", "b"], ["a", "b"]) == [(-1,), (1,)]
    assert codes([1, 1.0, True], [1, 1.0, True]) == [(1, -1, -1), (-1, 1, -1), (-1, -1, 1)]
    assert codes(Categorical(["a", "b", "c"], [0.5, 0.5, 0]), ["a", "b", "c"]) == [(-1,), (1,), ()]


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 2**32 - 1))
def test_what_is_drawn_has_the_settled_booleans(space, seed):
    booleans = BooleanSpace(space)
    code = booleans.encode(space.draw(seed, 0))
    assert code is not None
    assert len(code) == booleans.size
    chance = random.Random(seed)
    places = sorted(chance.sample(range(booleans.size), chance.randint(0, booleans.size)))
    settled = {place: int(code[place]) for place in places}
    drawn = booleans.draw(settled, seed)
    assert json.dumps(space.check(drawn)) == json.dumps(drawn)
    assert tuple(drawn) == space.names
    assert json.dumps(booleans.draw(settled, seed)) == json.dumps(drawn)
    found = booleans.encode(drawn)
    assert found is not None
    assert {place: int(found[place]) for place in places} == settled


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 2**32 - 1))
def test_patterns_are_what_points_can_have(space, seed):
    booleans = BooleanSpace(space)
    chance = random.Random(seed)
    places = sorted(chance.sample(range(booleans.size), min(booleans.size, 4)))
    patterns = booleans.patterns(places, {})
    assert sum(pattern.shape[1] for pattern in patterns) == len(places)
    row = [int(one) for pattern in patterns for one in pattern[chance.randrange(len(pattern))]]
    found = booleans.encode(booleans.draw(dict(zip(places, row, strict=True)), seed))
    assert found is not None
    assert [int(found[place]) for place in places] == row


def test_cells_that_no_value_lies_in_are_no_pattern():
    few = BooleanSpace(Space.from_parameters({"n": LogIntUniform(1, 20)}))  # 1 takes more than a fifth of the scale
    assert len(few.patterns(range(few.size), {})[0]) < 8
    assert few.draw({0: 1}, 3)["n"] > few.draw({0: -1}, 3)["n"]


def test_settled_or_not_draws_follow_the_distribution():
    space = Space.from_parameters({"c": Categorical(["a", "b", "c"], [0.7, 0.2, 0.1])})
    booleans = BooleanSpace(space)
    drawn = [booleans.draw({0: -1}, seed)["c"] for seed in range(3000)]
    assert "a" not in drawn
    assert 0.6 < drawn.count("b") / len(drawn) < 0.73
