"""Quasi-random points, and what is tried before a searcher is asked."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.searchers.first_trials import FirstTrials
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.searchers.qmc import QMC
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.space import Categorical, LogUniform, Space, Uniform
from hpsearch.study.build import build_searcher
from hpsearch.trial import Value
from tests.hpsearch.support.any_life import problem_of
from tests.hpsearch.support.spaces import FINITE, spaces
from tests.hpsearch.support.steady import sweep_over

CUBE = Space.from_parameters(
    {"x": Uniform(0.0, 1.0), "k": 3, "y": LogUniform(1.0, 16.0), "c": Categorical(["a", "b", "c", "d"])}
)


def key(params: object) -> str:
    return json.dumps(params, sort_keys=True)


def test_the_first_points_of_a_sequence_lie_once_in_each_cell_of_each_axis():
    for seed in (0, 7, 2**32 - 1):
        points = [QMC(problem_of(CUBE, seed)).suggest(n).params for n in range(64)]  # type: ignore[union-attr]
        for power in range(7):
            cells = 2**power
            for share in (lambda p: p["x"], lambda p: math.log(p["y"], 16)):
                assert {int(share(point) * cells) for point in points[:cells]} == set(range(cells))
        assert set(Counter(point["c"] for point in points).values()) == {16}
        assert all(point["k"] == 3 for point in points)


def test_a_point_of_a_sequence_hangs_on_seed_and_number_alone():
    one, other = QMC(problem_of(CUBE, 7)), QMC(problem_of(CUBE, 7))
    forward = [one.suggest(n) for n in range(20)]
    assert [other.suggest(n) for n in reversed(range(20))] == forward[::-1]
    assert QMC(problem_of(CUBE, 8)).suggest(0) != forward[0]


@settings(deadline=None, max_examples=25)
@given(spaces(), st.integers(0, 2**32 - 1), st.integers(0, 10**5))
def test_a_sequence_lies_in_any_space(space, seed, number):
    params = QMC(problem_of(space, seed)).suggest(number).params  # type: ignore[union-attr]
    assert key(space.check(params)) == key(params)
    assert tuple(params) == space.names


@pytest.mark.exhaustive
def test_a_sequence_has_all_the_points_of_its_size():
    searcher = QMC(problem_of(CUBE))
    assert searcher.suggest(searcher.size - 1) is not None
    assert searcher.suggest(searcher.size) is None


def test_a_sequence_of_constants_has_but_one_point():
    space = Space.from_parameters({"a": 1, "b": ["only"]})
    assert QMC(problem_of(space)).suggest(5).params == {"a": 1, "b": "only"}  # type: ignore[union-attr]


def decoded(codec: OptunaSpace, point: Mapping[str, Any]) -> dict[str, Value]:
    return codec.build(lambda name, _: point[name])


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 2**32 - 1), st.integers(0, 99))
def test_a_point_is_itself_again_after_optuna(space, seed, number):
    codec = OptunaSpace(space)
    params = space.draw(seed, number)
    point = codec.encode(params)
    assert point is not None
    assert all(one._contains(one.to_internal_repr(point[name])) for name, one in codec.distributions.items())
    again = decoded(codec, point)
    for name, value in params.items():
        if isinstance(value, float):
            # Places on a scale have the digits of a float from 0 to 1.
            twice = decoded(codec, codec.encode(again) or {})[name]
            assert type(again[name]) is float
            assert twice == again[name] or abs(twice - again[name]) <= 1e-6 * max(abs(twice), abs(again[name]))
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**6:
            assert abs(again[name] - value) <= abs(value) * 1e-9 + 2**12
        else:
            assert key(again[name]) == key(value)


@settings(deadline=None, max_examples=25)
@given(spaces(FINITE, most=2), st.integers(0, 2**32 - 1))
def test_what_wasnt_tried_is_drawn_till_nothing_is_left(space, seed):
    points = space.every_point(300)
    if points is None:
        return
    tried = TriedConfigurations(space)
    for number in range(len(points)):
        drawn = tried.draw(seed, number)
        assert drawn is not None
        assert drawn not in tried
        assert key(space.check(drawn)) == key(drawn)
        tried.add(drawn)
    assert {key(point) for point in points if point in tried} == {key(point) for point in points}
    assert tried.draw(seed, len(points)) is None


def test_a_draw_that_wasnt_tried_is_the_one_that_random_makes():
    tried = TriedConfigurations(CUBE)
    assert tried.draw(3, 5) == CUBE.draw(3, 5)
    tried.add(CUBE.draw(3, 5))
    assert tried.draw(3, 5) not in (None, CUBE.draw(3, 5))


def test_first_trials_are_the_points_and_then_draws_that_are_unlike_them_and_each_other():
    space = Space.from_parameters({"x": [1, True, 1.0], "y": ["a", "b"]})
    searcher = build_searcher(sweep_over("tpe", parameters=space, early_terminate=None, max_iter=1, run_cap=9))
    first = FirstTrials(searcher, [{"x": True, "y": "b"}, {"y": "a"}], space, 7)
    assert first.count == 10
    found = [first.suggest(number) for number in range(first.count)]
    assert [s and s.origin for s in found] == ["points_to_try"] * 2 + ["random"] * 4 + [None] * 4
    assert len({key(s.params) for s in found if s is not None}) == 6
    assert found == [FirstTrials(searcher, first._points, space, 7).suggest(number) for number in range(first.count)]
