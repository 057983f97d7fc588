"""What each part of a network is: its shape, its parameters and its FLOPs, as a tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from hpsearch_trainers.architectures import Layer, costs, layers, network, shape_after
from tests.trainers.architectures.drawn import architectures, images


@pytest.mark.exhaustive
@settings(max_examples=8, deadline=None)
@given(architectures, images)
def test_the_parts_add_up_to_what_the_network_costs(value, shape) -> None:
    tree = layers(value, shape, 3)
    known = costs(value, shape, 3, batch=2)
    assert (tree.parameters, tree.flops, tree.shape) == (known.parameters, known.flops, (3,))
    for part in walked(tree):
        if part.kind != "operation" and part.parts:
            assert sum(one.parameters for one in part.parts) == part.parameters
            assert sum(one.flops for one in part.parts) == part.flops
    (body,) = (part for part in tree.parts if part.place == "body")
    assert body.shape == shape_after(value, shape)
    assert len(body.parts) == len(value)


def walked(layer: Layer) -> Iterator[Layer]:
    yield layer
    for part in layer.parts:
        yield from walked(part)


def test_shapes_stand_after_each_layer_and_nodes_name_what_they_take() -> None:
    cell = {"2": [{"from": 0, "operation": "skip"}, {"from": 1, "operation": "conv_3x3"}]}
    chain = ["pool", {"residual": {"body": ["conv"]}}, {"cells": {"cell": cell, "stages": 2, "channels": 4}}]
    tree = layers(chain, (2, 8, 8), 10, stem={"conv": {"channels": 3}}, path="layers")
    stem, body, head, outputs = tree.parts
    assert (stem.name, stem.settings, stem.shape) == ("conv", {"channels": 3}, (3, 8, 8))
    assert (body.place, head.parts[0].name, outputs.shape) == ("layers", "global_pool", (10,))
    pool, residual, stack = body.parts
    assert [pool.shape, residual.shape, stack.shape] == [(3, 4, 4), (3, 4, 4), (8, 2, 2)]
    assert (residual.settings, residual.parts[0].place, residual.parts[0].parts[0].name) == ({}, "body", "conv")
    assert [step.place for step in stack.parts] == ["cell", "reduction", "cell"]
    assert [[part.place for part in step.parts] for step in stack.parts] == [
        ["input 0", "input 1", "cell"],
        ["cell"],
        ["input 0", "cell"],
    ]
    node = stack.parts[0].parts[-1].parts[0]
    assert [(part.takes, part.name) for part in node.parts] == [(0, "skip"), (1, "conv_3x3")]
    made = network(chain, (2, 8, 8), 10, stem={"conv": {"channels": 3}})
    assert tree.parameters == sum(one.numel() for one in made.parameters())
