"""Fronts, crowding and hypervolume, each against the slow way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.objective import Fronts, hypervolume
from hpsearch.objective.fronts import Point, dominates

numbers = st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, math.inf]) | st.floats(allow_nan=False, width=32)


def points_of(goals: int) -> st.SearchStrategy[list[Point]]:
    few = st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0])] * goals)
    return st.lists(few | st.tuples(*[numbers] * goals), max_size=25)


many_points = st.integers(2, 4).flatmap(points_of)


def slowly_sorted(points: list[Point]) -> list[set[int]]:
    """Peel off what nothing dominates, again and again."""
    left, fronts = dict(enumerate(points)), []
    while left:
        front = {
            key
            for key, point in left.items()
            if not any(
                all(a <= b for a, b in zip(other, point, strict=True)) and tuple(other) != tuple(point)
                for other in left.values()
            )
        }
        fronts.append(front)
        left = {key: point for key, point in left.items() if key not in front}
    return fronts


def filled(points: Sequence[Point], order: list[int] | None = None) -> Fronts:
    fronts = Fronts()
    for key in range(len(points)) if order is None else order:
        fronts.add(key, points[key])
    return fronts


@given(many_points, st.randoms(use_true_random=False))
def test_fronts_are_those_of_peeling_in_whatever_order_the_points_come(points: list[Point], chance: Random) -> None:
    order = list(range(len(points)))
    chance.shuffle(order)
    shuffled, straight = filled(points, order), filled(points)
    assert shuffled.sort_keys() == straight.sort_keys()
    assert list(shuffled.ranked()) == list(straight.ranked())
    at_once = Fronts.of(dict(enumerate(points)))
    assert (at_once.sort_keys(), list(at_once.ranked())) == (straight.sort_keys(), list(straight.ranked()))
    levels = {key: level for key, (level, _) in shuffled.sort_keys().items()}
    expected = {key: level for level, front in enumerate(slowly_sorted(points)) for key in front}
    assert levels == expected
    assert len(shuffled) == len(points)


@given(many_points)
def test_ranked_is_by_front_then_by_distance_then_by_key(points: list[Point]) -> None:
    fronts = filled(points)
    places = fronts.sort_keys()
    assert list(fronts.ranked()) == sorted(places, key=lambda key: (places[key], key))
    assert not any(math.isnan(distance) for _, distance in places.values())


def test_crowding_is_as_deb_et_al_have_it() -> None:
    points = [(0.0, 10.0), (1.0, 6.0), (4.0, 5.0), (10.0, 0.0)]
    distances = {key: -distance for key, (_, distance) in filled(points).sort_keys().items()}
    assert distances[0] == distances[3] == math.inf
    assert distances[1] == pytest.approx((4 - 0) / 10 + (10 - 5) / 10)
    assert distances[2] == pytest.approx((10 - 1) / 10 + (6 - 0) / 10)


def test_points_that_differ_by_the_least_float_have_distances() -> None:
    least = math.ulp(0.0)
    places = filled([(0.0, 2.0, 2.0), (0.0, 1.0, 3.0), (least, 0.0, 0.0)]).sort_keys()
    assert places == dict.fromkeys(range(3), (0, -math.inf))


def test_of_equal_points_the_first_stands_for_all() -> None:
    places = filled([(0.0, 1.0), (0.5, 0.5), (0.5, 0.5), (1.0, 0.0)]).sort_keys()
    assert places[2] == (0, 0.0)
    assert places[1][1] < 0
    assert list(filled([(1.0, 1.0), (1.0, 1.0)]).ranked()) == [0, 1]


@given(st.integers(0, 2**32), st.integers(2, 3))
@settings(max_examples=30)
def test_the_first_front_is_optunas(seed: int, goals: int) -> None:
    points = [tuple(row) for row in np.random.default_rng(seed).integers(0, 12, (30, goals)).astype(float).tolist()]
    study = optuna.create_study(directions=["minimize"] * goals)
    study.add_trials([optuna.trial.create_trial(values=point) for point in points])
    first = [key for key, (level, _) in filled(points).sort_keys().items() if level == 0]
    assert sorted(first) == sorted(trial.number for trial in study.best_trials)


def slow_volume(points: list[Point], reference: Point) -> float:
    """Count the unit boxes of a grid, all of whose corners are whole numbers."""
    return sum(
        any(all(p <= c for p, c in zip(point, corner, strict=True)) for point in points)
        for corner in itertools.product(*(range(int(end)) for end in reference))
    )


@given(st.integers(1, 4).flatmap(lambda m: st.lists(st.tuples(*[st.integers(0, 6).map(float)] * m), max_size=12)))
@settings(deadline=None)
def test_the_hypervolume_counts_the_boxes_that_are_dominated(points: list[Point]) -> None:
    reference = (5.0,) * (len(points[0]) if points else 2)
    assert hypervolume(points, reference) == pytest.approx(slow_volume(points, reference))


def test_what_is_no_better_than_the_reference_adds_nothing() -> None:
    assert hypervolume([], (1.0, 1.0)) == 0.0
    assert hypervolume([(1.0, 0.0), (0.5, 2.0)], (1.0, 1.0)) == 0.0
    assert hypervolume([(-math.inf, 0.0)], (1.0, 1.0)) == math.inf


@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers), st.tuples(numbers, numbers))
def test_dominating_is_a_strict_partial_order(one: Point, other: Point, third: Point) -> None:
    assert not dominates(one, one)
    assert not (dominates(one, other) and dominates(other, one))
    assert not (dominates(one, other) and dominates(other, third)) or dominates(one, third)
