"""Spaces whose parameters hang on each other: what holds of every point of every one of them."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.space import Broken, Derived, Space
from hpsearch.trial import Params
from tests.hpsearch.support.trees import trees

SEEDS = st.integers(0, 2**32 - 1)


_FEW = 500


def not_few(space: Space) -> bool:
    """Whether there are many points, or many that conditions and constraints leave out."""
    return space._every._count(space.declared, ()) > _FEW


def drawn(space: Space, seed: int, number: int) -> dict[str, Any] | None:
    """A point, where not all of the first draws break a constraint: to find that of 10,000 takes its time."""
    return space.draw(seed, number) if not space.constraints or space.count_valid(0, 20) else None


def is_derived(space: Space, name: str) -> bool:
    found = space.find(name)
    assert found is not None
    assert found.name == name
    return isinstance(found.distribution, Derived)


def applying(space: Space, point: Params) -> list[str]:
    """The names that a walk asks for or derives, where these are the values: an oracle by another way."""
    asked = []

    def choose(parameter):
        asked.append(parameter.name)
        return point[parameter.name]

    built = space.build(choose)
    derived = [name for name in built if is_derived(space, name)]
    assert sorted(built) == sorted(asked + derived)
    return list(built)


@settings(max_examples=30)
@given(trees(bounded=False), SEEDS, st.integers(0, 99))
def test_a_point_is_itself_after_all_that_is_done_to_it(space, seed, number):
    point = drawn(space, seed, number)
    if point is None:
        return
    assert json.loads(json.dumps(point)) == point
    assert space.check(point) == point
    assert list(space.check(point)) == list(point) == applying(space, point)
    assert space.flatten(space.nest(point)) == point
    assert space.flatten(json.loads(json.dumps(space.nest(point)))) == point
    assert space.flatten(point) == point
    assert space.complete(point, seed + 1, number + 1) == point
    assert space.check({name: point[name] for name in reversed(point)}) == point


@settings(max_examples=30)
@given(trees(bounded=False), SEEDS, st.integers(0, 99))
def test_stored_or_sent_a_space_is_the_same(space, seed, number):
    stored = Space.from_json(json.loads(json.dumps(space.to_json())))
    sent = pickle.loads(pickle.dumps(space))
    assert stored == space == sent
    assert drawn(stored, seed, number) == drawn(space, seed, number) == drawn(sent, seed, number)
    assert stored.to_json() == space.to_json()


@settings(max_examples=30)
@given(trees(), SEEDS, st.lists(st.integers(0, 99), max_size=5))
def test_columns_are_the_parameters_in_order(space, seed, numbers):
    points = [point for number in numbers if (point := drawn(space, seed, number)) is not None]
    columns = space.columns(points)
    assert set(columns) >= {name for point in points for name in point}
    assert [name for name in space.names if name in columns] == list(columns)
    for point in points:
        assert [name for name in columns if name in point] == list(point)
    always = space.columns([])
    assert all(set(always) - set(point) <= derived_names(space) for point in points)
    assert space.conditional or set(always) == set(space.names)


def derived_names(space: Space) -> set[str]:
    return {one.name for one in space.parameters if isinstance(one.distribution, Derived)}


@settings(max_examples=30)
@given(trees(), SEEDS, st.integers(0, 9), st.randoms(use_true_random=False))
def test_part_of_a_point_is_kept_and_the_rest_is_drawn(space, seed, number, random):
    point = drawn(space, seed, number)
    if point is None:
        return
    part = {name: value for name, value in point.items() if random.random() < 0.7}
    try:
        checked = space.check(part, partial=True)
    except InvalidKey as error:  # what decides whether it applies was left out
        told = error.problem
    else:
        told = ""
    if told:
        assert "doesn't apply" in told or "must be what" in told
        return
    assert checked.items() >= part.items()
    try:
        whole = space.complete(checked, seed, number)
    except InvalidKey:
        return
    assert whole.items() >= part.items()
    assert space.check(whole) == whole


@settings(max_examples=30)
@given(trees(constrained=False), trees(constrained=False, most=2), SEEDS, st.integers(0, 99))
def test_a_draw_hangs_on_nothing_that_stands_beside_it(space, other, seed, number):
    point = drawn(space, seed, number)
    renamed = tuple(
        type(one)((f"other-{one.path[0]}", *one.path[1:]), one.holds) for one in other.declared if one.when is None
    )
    if point is None or any("p" in str(one.holds) and "Derived" in str(one.holds) for one in renamed):
        return
    try:
        beside = Space((*space.declared, *renamed)).draw(seed, number)
    except InvalidKey:
        return
    assert {name: value for name, value in beside.items() if not name.startswith("other-")} == point


@settings(max_examples=30)
@given(trees(bounded=False), SEEDS, st.integers(0, 99))
def test_a_mutation_is_another_point_and_most_values_stay(space, seed, number):
    point = drawn(space, seed, number)
    if point is None or not space.mutable(point):
        return
    try:
        child = space.mutate(point, seed)
    except Broken:
        return
    assert space.check(child) == child
    assert space.key(child) != space.key(point)
    assert space.mutate(point, seed) == child


@settings(max_examples=30)
@given(trees(bounded=False, most=3), SEEDS)
def test_neighbours_are_other_points_each_once(space, seed):
    point = drawn(space, seed, 0)
    if point is None:
        return
    near = space.neighbours(point, seed)
    keys = [space.key(one) for one in near]
    assert len({*keys, space.key(point)}) == len(keys) + 1
    assert all(space.check(one) == one for one in near)


@settings(max_examples=25)
@given(trees(finite=True, most=2), SEEDS)
def test_who_is_a_neighbour_has_one_as_well(space, seed):
    """Where no parameter appears or goes, a step leads back."""
    point = drawn(space, seed, 0)
    if point is None:
        return
    for near in space.neighbours(point, seed):
        if near.keys() == point.keys():
            changed = [name for name in near if near[name] != point[name]]
            derived = [name for name in changed if name in derived_names(space)]
            if len(changed) - len(derived) == 1:
                assert space.key(point) in {space.key(back) for back in space.neighbours(near, seed)}


@settings(max_examples=30)
@given(trees(bounded=False), SEEDS)
def test_a_crossover_takes_each_value_from_a_parent_that_has_it(space, seed):
    one, other = drawn(space, seed, 0), drawn(space, seed, 1)
    if one is None or other is None:
        return
    try:
        child = space.crossover(one, other, seed)
    except Broken:
        return
    assert space.check(child) == child
    for name, value in child.items():
        having = [parent[name] for parent in (one, other) if name in parent]
        if having and not is_derived(space, name):
            assert value in having
    assert space.crossover(one, one, seed) == one


@settings(max_examples=30)
@given(trees(finite=True, most=3))
def test_all_points_of_a_finite_space_are_those_that_draws_find(space):
    if not_few(space):
        return
    points = space.every_point(_FEW)
    assert points is not None
    keys = {space.key(point) for point in points}
    assert len(keys) == len(points)
    assert all(space.check(point) == point for point in points)
    found = {space.key(point) for number in range(60) if (point := drawn(space, 1, number)) is not None}
    assert found <= keys
    size = space.size
    assert size is not None
    assert size >= len(points)


@settings(max_examples=30)
@given(trees(finite=True, most=3))
def test_a_grid_has_each_point_once_and_the_first_parameter_varies_slowest(space):
    if not_few(space):
        return
    size = space.grid_size
    points = [space.grid_point(index) for index in range(size)]
    assert len({json.dumps(point, sort_keys=True) for point in points}) == size
    assert all(space.check(point) == point for point in points)
    firsts = [place_of(space, point) for point in points]
    assert all(before <= after for before, after in pairwise(firsts))


def place_of(space: Space, point: Params) -> int:
    """Where the first parameter's value stands in its grid; 0 for one that isn't listed itself."""
    name = next(iter(space.columns([])), None)
    parameter = None if name is None else space.find(name)
    if parameter is None or not parameter.distribution.searched or name != space.names[0]:
        return 0
    return [json.dumps(value) for value in parameter.distribution.grid()].index(json.dumps(point[parameter.name]))


def test_a_constraint_that_nothing_keeps_says_how_many_draws_broke_it():
    space = Space.from_parameters({"a": [1, 2], "b": [1, 2]}, ["a < 2", "a + b > 4"])
    with pytest.raises(InvalidKey, match=r"constraints\[1\]: must be kept by more points: of 500 draws none is valid,"):
        space.draw(0, 0, most=500)
    assert space.count_valid(0, 50) == 0
