"""A mistake in an architecture is told with its place, what must hold, and what was there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_trainers.architectures import (
    OPERATIONS,
    ArchitectureError,
    costs,
    network,
    operation,
    shape_after,
    standalone,
)

KINDS = "must be an operation's name, one name to its parameters, a list of these, or a cell"
ROW = "its input is a row of 64 numbers"
NODES = {"2": [{"from": 0, "operation": "skip"}, {"from": 1, "operation": "skip"}]}


def side(start: Any, name: Any = "skip") -> Any:
    return {"from": start, "operation": name}


MISTAKES: list[tuple[Any, str]] = [
    (None, f"layers: {KINDS}, got None"),
    ([3], f"layers[0]: {KINDS}, got 3"),
    ({}, f"layers: {KINDS}, got a mapping with 0 keys: none"),
    ({"a": 1, "b": 2}, f"layers: {KINDS}, got a mapping with 2 keys: a, b"),
    ({True: {}}, f"layers: {KINDS}, got {{True: {{}}}}"),
    ({"conv": 3}, "layers.conv: must have a mapping of parameters, got 3"),
    (["skip", "konv"], "layers[1]: must be a known operation, got 'konv'; did you mean 'conv'?"),
    ({"cels": {}}, "layers: must be a known operation, got 'cels'; did you mean 'cells'?"),
    (["skip", ["skip", {"conv": {"kernel": 4}}]], "layers[1][1].conv: kernel must be odd, got 4"),
    ({"conv": {"kernl": 3}}, "layers.conv: has no parameter 'kernl'; did you mean 'kernel'?"),
    ({"conv": {"shape": 3}}, "layers.conv: has no parameter 'shape'; it has channels, kernel, stride, "),
    ({"flatten": {"x": 3}}, "layers.flatten: has no parameter 'x'; it has none"),
    ({"projection": {}}, "layers.projection: must have the parameter 'channels', which is missing"),
    ({"conv": {"channels": 1.5}}, "layers.conv: channels must be a whole number of at least 1, got 1.5"),
    ({"conv": {"channels": True}}, "layers.conv: channels must be a whole number of at least 1, got True"),
    ({"conv": {"stride": 0}}, "layers.conv: stride must be a whole number of at least 1, got 0"),
    ({"conv": {"channels": 6, "groups": 3}}, "layers.conv: groups must divide the 1 input and 6 output channels"),
    ({"conv": {"norm": "instance"}}, "layers.conv: norm must be one of batch, none, got 'instance'"),
    ({"dense": {"activation": ["relu"]}}, "layers.dense: needs a row or tokens, but its input is an image of 1"),
    ({"max_pool": {"kernel": 4, "stride": 2}}, "layers.max_pool: kernel must be odd, or the stride, got a kernel of 4"),
    ({"skip": {"stride": 3}}, "layers.skip: stride must be 1 or 2, got 3"),
    (["flatten", "conv"], f"layers[1].conv: needs an image (channels, height, width), but {ROW}"),
    (["flatten", {"none": {"stride": 2}}], f"layers[1].none: needs an image (channels, height, width), but {ROW}"),
    ("attention", "layers.attention: needs tokens (tokens, features), but its input is an image of 1 channels"),
    (["tokens", "attention"], "layers[1].attention: heads must divide the 1 features, got 4"),
    (["tokens", "batch_norm"], "layers[1].batch_norm: needs an image or a row, but its input is 64 tokens of 1"),
    (["conv", {"group_norm": {"groups": 3}}], "layers[1].group_norm: groups must divide the 1 channels, got 3"),
    (["adaptive_pool", "layer_norm"], "layers[1].layer_norm: needs more than one number in a group, but its input is"),
    (["flatten", "global_pool"], f"layers[1].global_pool: needs an image or tokens, but {ROW}"),
    ({"dropout": {"p": "a"}}, "layers.dropout: fails for an image of 1 channels and 8 x 8 pixels as input: TypeE"),
    ({"residual": {"body": "konv"}}, "layers.residual.body: must be a known operation, got 'konv'"),
    (
        ["conv", {"conv": {"channels": 4}}, {"residual": {"body": {"conv": {"channels": 1}}}}],
        "layers[2].residual: body must keep the shape (4, 8, 8), got one that returns (1, 8, 8)",
    ),
    ({"0-1": "conv", "2": []}, "layers: a cell must have edges such as '0-1' or nodes such as '2', and not both"),
    ({"0-1": "conv", "conv": {}}, "layers: a cell must have edges such as '0-1' or nodes such as '2', and not both"),
    ({"1-1": "skip"}, "layers: an edge must lead to a later node, got 1-1"),
    ({"0-2": "skip"}, "layers: an edge must lead to each node from 1 to 2, got none to 1"),
    ({"0-1": {"conv": {"kernel": 2}}}, "layers.0-1.conv: kernel must be odd, got 2"),
    ({"0-1": "pool"}, "layers.0-1.pool: must keep the shape in a cell, (1, 8, 8), got (1, 4, 4)"),
    ({"0-1": ["pool"]}, "layers.0-1: must keep the shape in a cell, (1, 8, 8), got (1, 4, 4)"),
    ({"2": "skip"}, "layers.2: a node must be a list of its inputs, got 'skip'"),
    ({"2": []}, "layers.2: a node must be a list of its inputs, got []"),
    ({"2": [{"from": 0}]}, "layers.2[0]: must be {'from': a node, 'operation': ...}, got {'from': 0}"),
    ({"2": [side(0), side(2)]}, "layers.2[1].from: must be a node from 0 to 1, got 2"),
    ({"2": [side("0")]}, "layers.2[0].from: must be a node from 0 to 1, got '0'"),
    ({"2": [side(0)], "4": [side(2)]}, "layers: nodes must be numbered without a gap, got 2, 4"),
    ({"2": [side(0, {"0-1": "pool"})]}, "layers.2[0].0-1.pool: must keep the shape in a cell, (1, 8, 8), got (1, 4"),
    ({"cells": {}}, "layers.cells: must have the parameter 'cell', which is missing"),
    ({"cells": {"cell": "conv"}}, "layers.cells.cell: must be a cell, got 'conv'"),
    ({"cells": {"cell": NODES, "repeat": 2}}, "layers.cells: has no parameter 'repeat'; did you mean 'repeats'?"),
    ({"cells": {"cell": NODES, "repeats": 0}}, "layers.cells: repeats must be a whole number of at least 1, got 0"),
    ({"cells": {"cell": NODES, "join": "sum"}}, "layers.cells: join must be one of concat, mean, got 'sum'"),
    ({"cells": {"cell": {"0-1": "skip"}, "join": "mean"}}, "layers.cells: join must not be given for a cell with"),
    ({"cells": {"cell": NODES, "reduction": "pool"}}, "layers.cells.reduction: is between two stages, but stages"),
    (
        {"cells": {"cell": NODES, "stages": 2, "reduction": "conv"}},
        "layers.cells.reduction: must halve the sides, to 4 x 4 pixels, got an image of 1 channels and 8 x 8 pixels",
    ),
    (
        {"cells": {"cell": NODES, "stages": 2, "reduction": {"1": [side(0, "relu")]}}},
        "layers.cells.reduction.1[0].relu: must have a parameter 'stride' at a reduction cell's input, and has none",
    ),
    (
        {"cells": {"cell": NODES, "stages": 2, "reduction": {"1": [side(0, ["skip"])]}}},
        "layers.cells.reduction.1[0]: must be a single operation at a reduction cell's input, got ['skip']",
    ),
    (
        {"cells": {"cell": NODES, "stages": 2, "reduction": {"0-1": {"conv": {"stride": 2}}}}},
        "layers.cells.reduction.0-1.conv: must not give 'stride' at a reduction cell's input, got {'stride': 2}",
    ),
    (
        {"cells": {"cell": NODES, "stages": 2, "reduction": {"0-1": {"conv": {"channels": 7}}}}},
        "layers.cells.reduction.0-1.conv: must halve the sides, to (2, 4, 4), got (7, 4, 4)",
    ),
    (["flatten", {"cells": {"cell": NODES, "stages": 2}}], "layers[1].cells: stages must be 1 if the input is a row"),
    ({"cells": {"cell": {"0-1": "pool"}}}, "layers.cells.cell.0-1.pool: must keep the shape in a cell, (1, 8, 8)"),
]


@pytest.mark.parametrize(("value", "told"), MISTAKES, ids=[told for _, told in MISTAKES])
def test_a_mistake_is_told_with_its_place(value: Any, told: str) -> None:
    for use in (network, costs, standalone):
        with pytest.raises(ArchitectureError) as raised:
            use(value, path="layers")
        assert str(raised.value).startswith(told)
    assert raised.value.path == told.split(": ")[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"inputs": (1, 2, 3, 4)}, "inputs: must be (channels, height, width), (tokens, features) or (features,), got"),
        ({"inputs": (0, 8, 8)}, "inputs: each number must be a whole number of at least 1, got 0"),
        ({"inputs": "abc"}, "inputs: each number must be a whole number of at least 1, got 'abc'"),
        ({"outputs": 0}, "outputs: must be a whole number of at least 1, got 0"),
        ({"stem": ["konv"]}, "stem[0]: must be a known operation, got 'konv'; did you mean 'conv'?"),
        ({"head": ["pool"]}, "head: must return a row, got an image of 1 channels and 4 x 4 pixels: end it with"),
        ({"head": ["flatten", "conv"]}, f"head[1].conv: needs an image (channels, height, width), but {ROW}"),
    ],
)
def test_so_is_what_stands_around_it(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ArchitectureError) as raised:
        network("skip", **given)
    assert str(raised.value).startswith(told)


def test_the_operations_that_there_are_are_told_where_none_is_near() -> None:
    with pytest.raises(ArchitectureError, match=r"got 'xyzzy'; there are activation, .* and those that you register"):
        network("xyzzy")


class Scale(nn.Module):
    """Weights that an operation of one's own has."""

    def __init__(self, body: nn.Module | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.body = body or nn.Identity()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.weight * self.body(values)
        return out


def test_an_operation_of_ones_own_stands_wherever_others_do(registry: dict[str, Any]) -> None:
    @operation()
    def scale(shape: Any, body: nn.Module, stride: int = 1) -> nn.Module:
        return nn.Sequential(Scale(body), nn.AvgPool2d(stride))

    @operation("twice", "double")
    def of_any_name(shape: Any, *, by: float = 2.0) -> nn.Module:
        assert shape == (3, 8, 8)
        return Scale()

    value = [{"scale": {"body": {"0-1": "conv"}}}, {"double": {"by": 3.0}}, "twice"]
    reduction = {"0-1": {"scale": {"body": "skip"}}}
    made = network([*value, {"cells": {"cell": {"0-1": "skip"}, "stages": 2, "reduction": reduction}}], (3, 8, 8))
    assert sum(isinstance(one, Scale) for one in made.modules()) == 4
    with pytest.raises(ArchitectureError, match=r"\.double: has no parameter 'bye'; did you mean 'by'\?"):
        network({"double": {"bye": 3.0}}, (3, 8, 8))


def test_an_operation_keeps_its_name(registry: dict[str, Any]) -> None:
    def build(shape: Any) -> nn.Module:
        return Scale()

    for name in ("conv", "skip_connect"):
        with pytest.raises(ValueError, match=rf"'{name}' is there already, hpsearch_trainers\.arch.*: take another"):
            operation(name)(build)
    for name in ("0-1", "12", "cells"):
        with pytest.raises(ValueError, match=rf"must not be that of a node, an edge or cells, got '{name}'"):
            operation(name)(build)
    assert set(registry) & {"0-1", "12", "cells"} == set()
    operation("build")(build)
    operation("build")(build)  # a cell of a notebook that runs again


@pytest.mark.parametrize("build", [lambda: Scale(), lambda *shapes: Scale(), lambda shape, **own: Scale()])
def test_an_operation_takes_a_shape_and_named_parameters(build: Any, registry: object) -> None:
    with pytest.raises(ValueError, match="must take a shape, and then parameters by name, got "):
        operation("odd")(build)


class Gives(nn.Module):
    """A module that returns what a function makes."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, values: torch.Tensor) -> Any:
        return self.make(values)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda values: values.sum(), "a tensor of shape ()"),
        (lambda values: values.flatten(), "a tensor of shape (128,)"),
        (lambda values: values[:1], "a tensor of shape (1, 1, 8, 8)"),
        (lambda values: values[:, :0], "a tensor of shape (2, 0, 8, 8)"),
        (lambda values: [values], "list"),
    ],
)
def test_an_operation_gives_a_tensor_with_numbers_for_each_row(make: Any, got: str, registry: dict[str, Any]) -> None:
    registry["gives"] = lambda shape: Gives(make)
    with pytest.raises(ArchitectureError) as raised:
        shape_after("gives", (1, 8, 8))
    assert str(raised.value).endswith(f"for each of 2 rows of an image of 1 channels and 8 x 8 pixels, got {got}")


def test_the_page_about_networks_tells_every_operation() -> None:
    page = (Path(__file__).parents[3] / "docs/networks.md").read_text()
    assert [name for name in OPERATIONS if f"`{name}`" not in page] == []
