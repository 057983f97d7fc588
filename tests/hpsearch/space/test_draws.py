"""Draws of a space: on what they depend, and that they are distributed as they say."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.searchers import RandomSearcher, Suggestion
from hpsearch.space import (
    Categorical,
    Declared,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from tests.hpsearch.support.any_life import problem_of
from tests.hpsearch.support.first_then import FirstThen

PARAMETERS = {
    "lr": LogUniform(1e-4, 1.0),
    "optimizer": {"momentum": Uniform(0.0, 0.99), "name": ["adam", "sgd"]},
    "depth": IntUniform(1, 1000),
    "width": LogIntUniform(16, 512, step=16),
    "noise": Normal(0.0, 0.5),
    "decay": LogNormal(-3.0, 1.0),
    "epochs": 3,
}
SPACE = Space.from_parameters(PARAMETERS)
PINNED = [
    {
        "lr": 0.0799191988489334,
        "optimizer.momentum": 0.765631486423776,
        "optimizer.name": "adam",
        "depth": 537,
        "width": 192,
        "noise": 0.5197461224488139,
        "decay": 0.06850451306161036,
        "epochs": 3,
    },
    {
        "lr": 0.02223063379718616,
        "optimizer.momentum": 0.3396541071291769,
        "optimizer.name": "sgd",
        "depth": 306,
        "width": 224,
        "noise": -0.4342789969165221,
        "decay": 0.27570411429238034,
        "epochs": 3,
    },
]


def drawn(distribution: Distribution, count: int, seed: int = 0) -> list:
    searcher = RandomSearcher(problem_of(Space.from_parameters({"x": distribution}), seed))
    return [searcher.suggest(number).params["x"] for number in range(count)]


def assert_distributed(values: list, shares: dict) -> None:
    """Hold counts to shares, by six deviations: one seed in 10**8 would fail, and the seed is fixed."""
    assert math.isclose(sum(shares.values()), 1.0)
    counts = Counter(values)
    assert set(counts) <= set(shares)
    for value, share in shares.items():
        expected = len(values) * share
        assert abs(counts[value] - expected) < 6 * math.sqrt(expected * (1 - share) + 1), value


@settings(deadline=None, max_examples=40)
@given(
    kept=st.permutations(SPACE.declared).flatmap(lambda order: st.integers(1, len(order)).map(lambda n: order[:n])),
    seed=st.integers(0, 2**32 - 1),
    number=st.integers(0, 10**9),
)
def test_a_parameters_draw_is_the_same_whatever_stands_beside_it(kept, seed, number):
    whole = RandomSearcher(problem_of(SPACE, seed)).suggest(number).params
    some = RandomSearcher(problem_of(Space((Declared(("more",), Normal()), *kept)), seed)).suggest(number).params
    assert {name: some[name] for name in some if name != "more"} == {
        name: whole[name] for name in map(".".join, (one.path for one in kept))
    }


def test_a_name_with_a_dot_and_a_nested_one_are_two_parameters():
    dotted = Space((Declared(("a.b",), Uniform(0, 1)),))
    nested = Space((Declared(("a", "b"), Uniform(0, 1)),))
    assert (
        RandomSearcher(problem_of(dotted, 0)).suggest(0).params
        != RandomSearcher(problem_of(nested, 0)).suggest(0).params
    )


def test_parameters_of_one_distribution_are_drawn_apart():
    space = Space.from_parameters({name: Uniform(0, 1) for name in "abcdef"})
    columns = np.array(
        [list(RandomSearcher(problem_of(space, 0)).suggest(number).params.values()) for number in range(4000)]
    )
    correlations = np.corrcoef(columns.T)[np.triu_indices(6, 1)]
    assert np.all(np.abs(correlations) < 6 / math.sqrt(4000))


def test_neighbouring_trials_and_seeds_are_drawn_apart():
    searchers = [RandomSearcher(problem_of(Space.from_parameters({"x": Uniform(0, 1)}), seed)) for seed in range(40)]
    table = np.array([[searcher.suggest(number).params["x"] for number in range(100)] for searcher in searchers])
    assert np.unique(table).size == 4000
    for one, other in ((table[:, 1:], table[:, :-1]), (table[1:], table[:-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 6 / math.sqrt(3900)


def test_no_trial_is_drawn_from_a_stream_that_users_draw_from():
    space = Space.from_parameters({"a": Uniform(0, 1), "b": Uniform(0, 1)})
    for number in range(5):
        params = RandomSearcher(problem_of(space, 0)).suggest(number).params
        for seed in (0, number, [0, number]):
            assert not set(np.random.default_rng(seed).random(100)) & set(params.values())


@pytest.mark.parametrize(
    ("low", "high", "step"), [(16, 100, 16), (1, 7, None), (10, 79, 20), (5, 29, 10), (64, 200, 64), (3, 3000, 1000)]
)
def test_each_multiple_has_its_share_of_the_logarithmic_range(low, high, step):
    size = step or 1
    first, last = -(-low // size), high // size
    whole = math.log((last + 1) / first)
    shares = {k * size: math.log((k + 1) / k) / whole for k in range(first, last + 1)}
    assert_distributed(drawn(LogIntUniform(low, high, step=step), 6000), shares)


@settings(deadline=None, max_examples=40)
@given(
    first=st.integers(1, 1000),
    count=st.integers(1, 1000),
    step=st.integers(2, 10**6),
    below=st.floats(0, 1, exclude_max=True),
    above=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 1000),
)
def test_a_step_only_multiplies_what_is_drawn_without_one(first, count, step, below, above, seed):
    low = max(first * step - int(below * step), 1)
    high = (first + count) * step + int(above * step)
    stepped = drawn(LogIntUniform(low, high, step=step), 20, seed)
    assert stepped == [step * k for k in drawn(LogIntUniform(first, first + count), 20, seed)]


def test_neighbouring_large_integers_are_all_drawn_and_equally_often():
    low = 2**60 + 1
    for make in (LogIntUniform, IntUniform):
        assert_distributed(drawn(make(low, low + 9), 4000), {low + k: 0.1 for k in range(10)})


def test_integers_of_the_largest_range_fill_it():
    values = sorted(drawn(IntUniform(-(2**63), 2**63 - 1), 1000))
    assert len({value % 1024 for value in values}) > 500  # and not the multiples that floats reach
    assert max(b - a for a, b in pairwise(values)) < 2**64 // 40


def test_normals_are_normal_to_their_tails():
    values = np.array(drawn(Normal(1.0, 2.0), 20000))
    shares = {-2: 0.0227501, -1: 0.1586553, 0: 0.5, 1: 0.8413447, 2: 0.9772499, 3: 0.9986501}
    for deviations, share in shares.items():
        got = float(np.mean(values < 1.0 + 2.0 * deviations))
        assert abs(got - share) < 6 * math.sqrt(share * (1 - share) / 20000)
    logs = np.log(drawn(LogNormal(1.0, 2.0), 2000))
    assert abs(logs.mean() - 1.0) < 6 * 2.0 / math.sqrt(2000)


@pytest.mark.parametrize("bits", [0, 1, 2**127, 2**128 - 1])
@pytest.mark.parametrize(
    "distribution", [p.distribution for p in SPACE.parameters] + [Categorical([1, 2, 3], [0.5, 0, 0.5])]
)
def test_the_first_and_the_last_bits_are_values_like_all_others(distribution, bits):
    value = distribution.draw(bits)
    assert distribution.accept(value) == value


def test_points_are_completed_with_the_draws_of_their_own_trial():
    plain = RandomSearcher(problem_of(SPACE, 3))
    points: list[dict[str, Any]] = [{"lr": 0.5}, {"optimizer.name": "sgd", "depth": 7}, {}]
    for order in permutations(points):
        tried = FirstThen(plain, order, SPACE, 3)
        suggested = [tried.suggest(number) for number in range(9)]
        for number, suggestion in enumerate(suggested):
            assert isinstance(suggestion, Suggestion)
            point = order[number] if number < 3 else {}
            assert suggestion.params == {**plain.suggest(number).params, **point}
            assert tuple(suggestion.params) == SPACE.names


def test_draws_stay_what_they_are():
    # Equal sweeps give equal tables across versions; what changes a draw is another law, beside this one.
    assert [
        RandomSearcher(problem_of(SPACE, seed)).suggest(number).params for seed, number in ((0, 0), (7, 12))
    ] == PINNED
