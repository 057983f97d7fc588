"""Values that functions derive: what they see, what they refuse, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpsearch.config.checks import InvalidKey
from hpsearch.space import Broken, Chain, Derived, Space, Uniform
from hpsearch.sweep.parameters import read_parameters
from tests.hpsearch.support.deriving import CALLS, size

HERE = "tests.hpsearch.support.deriving"


def layered(**more: Any) -> Space:
    chain = Chain({"conv": {"width": [1, 2, 4]}, "pool": {}}, min=1, max=3)
    return Space.from_parameters({"layers": chain, "size": Derived(f"{HERE}:size"), **more}, ["size <= 5"])


def test_a_function_sees_what_stands_above_it_as_a_trainable_does_and_its_value_is_part_of_the_point() -> None:
    space = layered(after=[1, 2])
    for number in range(30):
        point = space.draw(3, number)
        layers = space.nest(point)["layers"]
        assert point["size"] == size({"layers": layers}) <= 5
        assert {"layers": layers} in CALLS
        assert not any("after" in params or "size" in params for params in CALLS)
        assert space.check(point) == point
        without = {name: value for name, value in point.items() if name != "size"}
        assert space.check(without) == point
        with pytest.raises(InvalidKey, match=rf"must be what {HERE}:size gives, {point['size']}, got 77"):
            space.check({**point, "size": 77})


def test_grids_moves_and_json_keep_to_it() -> None:
    space = layered()
    again = Space.from_json(json.loads(json.dumps(space.to_json())))
    sizes = [again.grid_point(index)["size"] for index in range(again.grid_size)]
    assert sizes
    assert max(sizes) == 5
    point = space.draw(0, 0)
    for seed in range(40):
        point = space.mutate(point, seed)
        assert point["size"] == size({"layers": space.nest(point)["layers"]}) <= 5
        child = space.crossover(point, space.draw(1, seed), seed)
        assert child["size"] == size({"layers": space.nest(child)["layers"]}) <= 5


def test_a_point_is_asked_for_once_however_often_it_is_gone_through() -> None:
    space = Space.from_parameters({"layers": Chain(["a", "b"], min=7, max=7), "size": Derived(f"{HERE}:size")})
    CALLS.clear()
    point = space.draw(11, 0)
    assert space.check(point) == space.check({k: v for k, v in point.items() if k != "size"}) == point
    assert len(CALLS) == 1


def test_what_it_refuses_is_drawn_again_and_told_where_it_is_given() -> None:
    space = Space.from_parameters({"x": list(range(1, 10)), "half": Derived(f"{HERE}:even")})
    assert {space.draw(0, number)["x"] % 2 for number in range(30)} == {0}
    with pytest.raises(Broken, match=f"{HERE}:even refuses it: x must be even, got 3"):
        space.check({"x": 3})
    odd = Space.from_parameters({"x": [1, 3], "half": Derived(f"{HERE}:even")})
    with pytest.raises(InvalidKey, match=r"of 50 draws none is valid, .* refuses it: x must be even"):
        odd.draw(0, 0, 50)


def test_a_function_that_refuses_every_point_is_asked_some_thousand_times_at_most() -> None:
    space = Space.from_parameters({"x": Uniform(0, 1), "half": Derived(f"{HERE}:never")})
    CALLS.clear()
    with pytest.raises(InvalidKey, match=r"of 5,000 draws none is valid, .* refuses it: no x will do"):
        space.draw(0, 0)
    assert len(CALLS) <= 6_000  # with those of the examples


def test_numpys_numbers_become_plain_and_params_cant_be_spoiled() -> None:
    space = Space.from_parameters({"x": [2], "a": Derived(f"{HERE}:as_numpy"), "b": Derived(f"{HERE}:spoils")})
    assert space.draw(0, 0) == {"x": 2, "a": 0.5, "b": 1}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing_plain", r"must be what .*:nothing_plain gives, a plain value, but that must be a bool, a number"),
        ("no_number", r"must be what .*:no_number gives, a plain value, but that must be a finite number, got nan"),
        ("breaks", r"must be what .*:breaks gives, but that raised KeyError: 'y'"),
        ("sise", r"names 'sise', which isn't in .*did you mean 'size'"),
        ("NOT_CALLABLE", r"must be a function, but .*:NOT_CALLABLE is int"),
    ],
)
def test_functions_that_cant_be_used(name: str, words: str) -> None:
    space = Space.from_parameters({"x": [2], "bad": Derived(f"{HERE}:{name}")})
    with pytest.raises(InvalidKey, match=words) as caught:
        space.draw(0, 0)
    assert caught.value.key[0] == "bad"
    assert not isinstance(caught.value, Broken)


def test_inside_of_a_structure_it_is_refused() -> None:
    given = {"kind": {"choice": {"a": {"x": {"values": [1]}, "y": {"derived": f"{HERE}:even"}}}}}
    with pytest.raises(InvalidKey, match="must be at the top level if it is a function"):
        read_parameters(given, ("parameters",))


def test_what_lies_open_leaves_it_open() -> None:
    space = layered()
    assert "size" not in space.check({"layers": 2}, partial=True)
    whole = space.complete(space.check({"layers": 2}, partial=True), 0, 0)
    assert whole["layers"] == 2
    assert whole["size"] <= 5
