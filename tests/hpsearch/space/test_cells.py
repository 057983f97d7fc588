"""Cells: which are equal, by an oracle that tries every order of their nodes, and what they refuse."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.space import Cell, Space, Uniform
from hpsearch.space.cell import Node, canonical_code

LABELS = ("a", "b")


@st.composite
def graphs(draw) -> tuple[int, list[Node]]:
    inputs, count = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    return inputs, [
        tuple((draw(st.integers(0, inputs + place - 1)), draw(st.sampled_from(LABELS))) for _ in range(2))
        for place in range(count)
    ]


def renumbered(inputs: int, nodes: Sequence[Node], order: tuple[int, ...]) -> list[Any] | None:
    """The graph with its nodes in another order; None where one would stand before its input."""
    number = {**{node: node for node in range(inputs)}, **{old: inputs + new for new, old in enumerate(order)}}
    out = []
    for new, old in enumerate(order):
        sides = sorted((number[source], label) for source, label in nodes[old - inputs])
        if sides[-1][0] >= inputs + new:
            return None
        out.append(sides)
    return out


def least(inputs: int, nodes: Sequence[Node]) -> Any:
    """The least of all ways to write the graph down."""
    places = range(inputs, inputs + len(nodes))
    return min(found for order in permutations(places) if (found := renumbered(inputs, nodes, order)) is not None)


@settings(max_examples=60)
@given(graphs(), st.randoms(use_true_random=False))
def test_an_order_that_may_be_taken_gives_the_same_canonical_form(graph, random):
    inputs, nodes = graph
    orders = [order for order in permutations(range(inputs, inputs + len(nodes))) if renumbered(inputs, nodes, order)]
    other = renumbered(inputs, nodes, random.choice(orders))
    assert other is not None
    swapped = [tuple(random.sample(sides, 2)) for sides in other]
    assert canonical_code(inputs, swapped) == canonical_code(inputs, nodes)


def test_two_graphs_have_one_canonical_form_just_where_an_order_makes_one_the_other():
    """Over all graphs of one input and three nodes with one label, and some of two."""
    random = Random(0)
    found: dict[str, set[str]] = {}
    for _ in range(1_500):
        labels = LABELS[: random.choice([1, 1, 2])]
        nodes = [tuple((random.randrange(1 + place), random.choice(labels)) for _ in range(2)) for place in range(4)]
        found.setdefault(json.dumps(canonical_code(1, nodes)), set()).add(json.dumps(least(1, nodes)))
    assert all(len(others) == 1 for others in found.values())
    counts = Counter(other for others in found.values() for other in others)
    assert set(counts.values()) == {1}


def test_many_twins_are_no_matter_of_time():
    nodes = [((0, "a"), (0, "a"))] * 18
    assert canonical_code(1, nodes) == (((0, "a"), (0, "a")),) * 18


def node(one: int, other: int, first: str = "a", second: str = "a") -> list[dict[str, Any]]:
    return [{"from": one, "operation": first}, {"from": other, "operation": second}]


def key_of(space: Space, cell: dict[str, Any]) -> str:
    return space.key(space.check(space.flatten({"cell": cell})))


def test_equal_cells_have_one_key():
    space = Space.from_parameters({"cell": Cell(["a", "b"], 2, "node")})
    one = key_of(space, {"2": node(0, 1, "a", "b"), "3": node(0, 0)})
    assert key_of(space, {"2": node(1, 0, "b", "a"), "3": node(0, 0)}) == one  # a node's inputs have no order
    assert key_of(space, {"2": node(0, 0), "3": node(0, 1, "a", "b")}) == one  # nor have nodes that don't meet
    assert key_of(space, {"2": node(0, 1, "b", "a"), "3": node(0, 0)}) != one  # inputs are what they are
    assert key_of(space, {"2": node(0, 1, "a", "b"), "3": node(2, 2)}) != one


def test_what_computes_the_same_twice_is_not_what_computes_it_once():
    """Twins have weights of their own: who takes both isn't who takes one of them twice."""
    space = Space.from_parameters({"cell": Cell(["a", "b"], 3, "node", 1)})
    twice = key_of(space, {"1": node(0, 0), "2": node(0, 0), "3": node(1, 1)})
    both = key_of(space, {"1": node(0, 0), "2": node(0, 0), "3": node(1, 2)})
    other = key_of(space, {"1": node(0, 0), "2": node(0, 0), "3": node(2, 2)})
    assert twice == other != both


def test_parameters_of_operations_are_part_of_their_labels():
    space = Space.from_parameters({"cell": Cell({"conv": {"k": [3, 5]}, "skip": {}}, 2, "node", 1)})

    def conv(kernel: int) -> list[dict[str, Any]]:
        return [{"from": 0, "operation": {"conv": {"k": kernel}}}, {"from": 0, "operation": {"skip": {}}}]

    assert key_of(space, {"1": conv(3), "2": conv(5)}) == key_of(space, {"1": conv(5), "2": conv(3)})
    assert key_of(space, {"1": conv(3), "2": conv(5)}) != key_of(space, {"1": conv(3), "2": conv(3)})


def test_cells_on_edges_are_equal_where_they_are_written_alike():
    space = Space.from_parameters({"cell": Cell(["skip", "none"], 4)})
    assert space.size == 2**6
    points = space.every_point(100)
    assert points is not None
    assert len(points) == 2**6


def test_cells_inside_of_copies_are_compared_as_well():
    space = Space.from_parameters({"stack": {"cells": Cell(["a", "b"], 2, "node")}, "lr": Uniform(0, 1)})
    point = {"lr": 0.5, **space.flatten({"stack": {"cells": {"2": node(0, 1, "a", "b"), "3": node(0, 0)}}})}
    other = {"lr": 0.5, **space.flatten({"stack": {"cells": {"2": node(0, 0), "3": node(0, 1, "a", "b")}}})}
    assert space.key(point) == space.key(other)
    assert space.key({**other, "lr": 0.6}) != space.key(point)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Cell(["a"], 1), "nodes: must be between 2, the input and the output, and 20, got 1"),
        (lambda: Cell(["a"], 0, "node"), "nodes: must be between 1 and 20, got 0"),
        (lambda: Cell(["a"], 21, "node"), "nodes: must be between 1 and 20, got 21"),
        (lambda: Cell(["a"], 3, cast("Any", "both")), "each: must be edge or node, got 'both'"),
        (lambda: Cell(["a"], 3, "edge", 2), "inputs: must not be given where each is edge"),
        (lambda: Cell(["a"], 3, "node", 0), "inputs: must be between 1 and 20, got 0"),
        (lambda: Cell([], 3), "values: must hold at least one value"),
        (lambda: Cell("conv", 3), "must be a list of operations, or a mapping of them to their parameters, got 'conv'"),
        (lambda: Cell({}, 3), "must hold at least one branch, got none"),
        (lambda: Cell({"3x3": {}}, 3), "must be named with letters"),
    ],
)
def test_what_is_no_cell_is_refused(make, told):
    with pytest.raises(InvalidKey) as caught:
        make()
    assert told in str(caught.value)


def test_a_grid_has_equal_cells_once():
    space = Space.from_parameters({"cell": Cell(["a", "b"], 2, "node", 1)})
    keys = {space.key(space.grid_point(index)) for index in range(space.grid_size)}
    assert len(keys) == space.grid_size
    found = space.every_point(1_000)
    assert found is not None
    assert len(found) == space.grid_size < (space.size or 0)
