"""Structures one by one: what a point of each holds, what a trainable sees, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpsearch.config.checks import InvalidKey
from hpsearch.space import (
    Categorical,
    Chain,
    Choice,
    Derived,
    IntUniform,
    MissingParameter,
    Ordinal,
    Repeat,
    Space,
    Uniform,
    When,
)
from hpsearch.space.structures import Copies


def space_of(constraints: tuple[str, ...] = (), **parameters: Any) -> Space:
    return Space.from_parameters(parameters, constraints)


def test_a_choice_has_its_branch_and_what_is_in_it():
    space = space_of(o=Choice({"sgd": {"m": [0.1, 0.9]}, "adam": {}}))
    point = {"o": "sgd", "o.sgd.m": 0.9}
    assert space.check(point) == point
    assert space.nest(point) == {"o": {"sgd": {"m": 0.9}}}
    assert space.nest({"o": "adam"}) == {"o": {"adam": {}}}
    assert space.flatten({"o": {"adam": None}}) == space.flatten({"o": "adam"}) == {"o": "adam"}
    with pytest.raises(InvalidKey, match=r"o\.sgd\.m: doesn't apply with the other values, got 0\.9"):
        space.check({"o": "adam", "o.sgd.m": 0.9})
    with pytest.raises(MissingParameter, match=r"o\.sgd\.m: is required"):
        space.check({"o": "sgd"})
    assert space.check({"o.sgd.m": 0.9}, partial=True) == point  # what is in a branch says which is taken
    assert space.size == 3


def test_copies_have_values_of_their_own():
    space = space_of(blocks=Repeat({"w": [1, 2], "kind": ["a", "b"]}, 0, 2), widths=Repeat([8, 16], 1, 2))
    point = {"blocks": 1, "blocks.0.w": 2, "blocks.0.kind": "b", "widths": 2, "widths.0": 8, "widths.1": 16}
    assert space.check(point) == point
    assert space.nest(point) == {"blocks": [{"w": 2, "kind": "b"}], "widths": [8, 16]}
    assert space.size == (1 + 4 + 16) * (2 + 4)
    with pytest.raises(InvalidKey, match=r"blocks\.1\.w: doesn't apply"):
        space.check({**point, "blocks.1.w": 1})
    assert space.find("blocks.2.w") is space.find("blocks.01.w") is space.find("blocks.w") is None


def test_layers_are_values_or_names_to_parameters():
    plain, own = Chain(["conv", "pool"], 1, 2), Chain({"conv": {"k": [3, 5]}, "pool": {}}, 1, 2)
    assert space_of(c=plain).nest({"c": 1, "c.0": "conv"}) == {"c": ["conv"]}
    point = {"c": 2, "c.0": "conv", "c.0.conv.k": 3, "c.1": "pool"}
    assert space_of(c=own).nest(point) == {"c": [{"conv": {"k": 3}}, {"pool": {}}]}
    assert space_of(c=own).size == 3 + 9
    assert space_of(c=Chain(["a"], 3, 3)).draw(0, 0) == {"c": 3, "c.0": "a", "c.1": "a", "c.2": "a"}


def test_without_a_bound_each_further_copy_has_a_probability_of_one_half():
    space = space_of(c=Chain(["a", "b"], 2))
    counts = [space.draw(0, number)["c"] for number in range(2_000)]
    assert min(counts) == 2
    assert 900 < counts.count(2) < 1_100
    assert 420 < counts.count(3) < 580
    assert space.size is None
    assert not space.bounded
    assert space.find("c.999") is not None
    with pytest.raises(InvalidKey, match=r"c\.max: is required"):
        _ = space.parameters


@pytest.mark.parametrize("copies", range(2, 40))
def test_the_place_of_a_number_of_copies_is_that_of_the_draws_that_give_it(copies):
    distribution = Copies(2)
    assert distribution.draw(int(distribution.position(copies) * 2**128)) == copies


def test_conditions_look_around_themselves_first_and_then_further_out():
    space = space_of(
        kind=["a", "b"],
        n=[1, 2],
        blocks=Repeat({"kind": ["c", "d"], "x": When("kind == 'c'", [1]), "y": When("n == 2", [1])}, 2, 2),
    )
    point = {"kind": "a", "n": 2, "blocks": 2, "blocks.0.kind": "c", "blocks.0.x": 1, "blocks.0.y": 1}
    point |= {"blocks.1.kind": "d", "blocks.1.y": 1}
    assert space.check(point) == point
    with pytest.raises(InvalidKey, match="must compare kind with what it may be"):
        space_of(kind=["a", "b"], blocks=Repeat({"kind": ["c"], "x": When("kind == 'a'", [1])}, 2, 2))


def test_what_stands_behind_may_name_what_is_in_a_structure():
    space = space_of(
        o=Choice({"s": {"m": Uniform(0, 1)}, "a": {}}),
        group=When("o == 's'", {"x": [1, 2]}),
        far=When("o.s.m > 0.5", [1]),
        both=When("group.x == 2 and present(o.s.m)", [1]),
        blocks=Repeat([8, 16], 0, 3),
        second=When("blocks.1 == 16", [1]),
        any16=When("16 in blocks.*", [1]),
        none=When("not present(blocks.0)", [1]),
    )
    point = {"o": "s", "o.s.m": 0.75, "group.x": 2, "far": 1, "both": 1, "blocks": 2, "blocks.0": 8, "blocks.1": 16}
    point |= {"second": 1, "any16": 1}
    assert space.check(point) == point
    other = {"o": "a", "blocks": 0, "none": 1}
    assert space.check(other) == other
    assert space.nest(other) == {"o": {"a": {}}, "blocks": [], "none": 1}


def test_a_derived_value_is_part_of_the_point_where_it_has_one():
    space = space_of(a=[1, 2], b=When("a > 1", [3]), c=Derived("a * b"), d=Derived("a + 1"))
    assert space.check({"a": 2, "b": 3}) == {"a": 2, "b": 3, "c": 6, "d": 3}
    assert space.check({"a": 1}) == {"a": 1, "d": 2}
    with pytest.raises(InvalidKey, match=r"d: must be what a \+ 1 gives, 2, got 5"):
        space.check({"a": 1, "d": 5})
    with pytest.raises(InvalidKey, match="c: must be what a \\* b gives, which isn't known yet, got 6"):
        space.check({"c": 6}, partial=True)


def test_a_value_that_cannot_be_computed_breaks_a_point():
    space = space_of(a=[0, 1], q=Derived("1 / a"))
    assert {space.draw(0, number)["a"] for number in range(20)} == {1}
    assert space.size == 1
    assert space.count_valid(0, 200) < 150


def test_constraints_are_kept_by_draws_moves_and_points():
    space = space_of(("a + b <= 3",), a=IntUniform(1, 3), b=IntUniform(1, 3))
    points = [space.draw(0, number) for number in range(50)]
    assert {(point["a"], point["b"]) for point in points} == {(1, 1), (1, 2), (2, 1)}
    assert space.size == 3
    assert all(near["a"] + near["b"] <= 3 for point in points for near in space.neighbours(point))
    assert all(space.mutate(point, seed)["a"] < 3 for point in points[:5] for seed in range(20))
    with pytest.raises(InvalidKey, match=r"a \+ b <= 3 must hold, but doesn't: a is 3, b is 3"):
        space.check({"a": 3, "b": 3})


def test_the_first_draw_is_as_without_constraints_where_it_keeps_them():
    free, bound = space_of(a=Uniform(0, 1)), space_of(("a > 0.3",), a=Uniform(0, 1))
    for number in range(50):
        first = free.draw(7, number)
        if first["a"] > 0.3:
            assert bound.draw(7, number) == first
        assert bound.draw(7, number)["a"] > 0.3


def test_a_mutation_puts_a_layer_in_anywhere_and_takes_any_out():
    space = space_of(c=Chain(["a", "b", "c", "d"], 1, 4))
    point = space.check(space.flatten({"c": ["a", "b", "c"]}))
    children = [space.nest(space.mutate(point, seed))["c"] for seed in range(400)]
    shorter = {tuple(child) for child in children if len(child) == 2}
    assert shorter == {("a", "b"), ("a", "c"), ("b", "c")}
    longer = [tuple(child) for child in children if len(child) == 4]
    places = {
        place for child in longer for place in range(4) if (*child[:place], *child[place + 1 :]) == ("a", "b", "c")
    }
    assert places == {0, 1, 2, 3}
    assert {len(child) for child in children} == {2, 3, 4}


def test_neighbours_of_ordered_values_stand_beside_them():
    space = space_of(w=Ordinal([8, 16, 32, 64]), c=Categorical(["x", "y"], [1.0, 0.0]))
    near = [point["w"] for point in space.neighbours({"w": 32, "c": "x"})]
    assert near == [16, 64]
    assert [point["w"] for point in space.neighbours({"w": 8, "c": "x"})] == [16]
    moved = [space.mutate({"w": 8, "c": "x"}, seed)["w"] for seed in range(200)]
    assert moved.count(16) > 140
    assert set(moved) == {16, 32, 64}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Choice({}), "must hold at least one branch, got none"),
        (lambda: Choice(["a"]), "must be a mapping of branches to their parameters, got a list of 1"),  # type: ignore[arg-type]
        (lambda: Choice({"a": 3}), "a: must be a mapping of names to distributions, got 3"),
        (lambda: Choice({"a.b": {}}), "a.b: must be a branch's name without dots"),
        (lambda: Choice({"1": {}}), "must be named with letters"),
        (lambda: Repeat({}, 1, 2), "must hold at least one parameter"),
        (lambda: Repeat([1], 2, 1), "max: must be between 2, as min is 2, and 1000, got 1"),
        (lambda: Repeat([1], 0, 0), "max: must be between 1, as min is 0, and 1000, got 0"),
        (lambda: Repeat([1], -1), "min: must be between 0 and 1000, got -1"),
        (lambda: Repeat([1], 1, 1001), "max: must be between 1, as min is 1, and 1000, got 1001"),
        (lambda: Repeat(When("a > 1", [1])), "must not be conditional as a whole"),
        (lambda: Chain("conv", 1), "must be a list of operations, or a mapping of them to their parameters"),
        (lambda: Ordinal([1, 1]), "must be distinct where they are ordered"),
        (lambda: Ordinal([1, 2], [0.5, 0.5]), "probabilities: must not be given where the values are ordered"),
        (lambda: Derived("a +"), "expression: must be an expression"),
        (lambda: space_of(a=1, b=When("c > 1", [1])), "b.when: must name parameters, but c isn't one"),
        (
            lambda: space_of(b=When("a > 1", [1]), a=1),
            "b.when: must name parameters that are above it, but a isn't",
        ),
        (lambda: space_of(a=When("a > 1", [1, 2])), "a.when: must name parameters that are above it, but a isn't"),
        (lambda: space_of(a=When("1 > 0", When("1 > 0", [1]))), "a: must have one condition"),
        (
            lambda: space_of(r=Repeat({"x": [1], "y": Derived("sum(r.*.x)")}, 1, 2)),
            "y: must name parameters that are",
        ),
        (lambda: space_of(r=Repeat([1, 2], 1, 2), s=Derived("sum(r)"), t=Derived("r.2")), "t: must name parameters"),
        (lambda: space_of(("x > 1",), a=[1]), "constraints[0]: must name parameters, but x isn't one"),
        (
            lambda: Space.from_parameters({"a": Choice({"b": {"c": [1]}}), "a.b.c": [1]}),
            "a.b.c: has the name of what a holds (a.b.c)",
        ),
        (lambda: space_of(a=Repeat(Repeat({"x": [1, 2]}, 1, 200), 1, 200)), "must hold at most 10,000 parameters"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(make, told):
    with pytest.raises(InvalidKey) as caught:
        make()
    assert told in str(caught.value)


def test_structures_nest_to_a_depth():
    nested: Any = {"x": [1, 2]}
    for _ in range(15):
        nested = {"c": Choice({"b": nested})}
    space = Space.from_parameters(nested)
    assert len(space.draw(0, 0)) == 16
    for _ in range(15):
        nested = {"c": Choice({"b": nested})}
    with pytest.raises(InvalidKey, match="must not be nested deeper than 20 structures"):
        Space.from_parameters(nested)
