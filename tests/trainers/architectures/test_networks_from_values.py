"""A network is what its architecture says: its shape, its sums, its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import hpsearch as hp
from hpsearch.space import Space
from hpsearch_trainers.architectures import OPERATIONS, ArchitectureError, network, shape_after
from tests.trainers.architectures.drawn import architectures, edge_cells, images, keeping, node_cells

IMAGES = torch.rand(3, 8, 6, 6, generator=torch.Generator().manual_seed(0))

SHAPES = {"periodic": (6,), "attention": (5, 8), "positions": (5, 8), "dense": (8,)}
PARAMS: dict[str, Any] = {"residual": {"body": "conv"}, "projection": {"channels": 3}, "group_norm": {"groups": 4}}


def body(value: Any, shape: tuple[int, ...] = (8, 6, 6)) -> Any:
    made = network(value, shape).eval()
    return made.body


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(value=architectures, inputs=images, outputs=st.integers(1, 4))
def test_every_architecture_gives_its_outputs_for_each_row(value: Any, inputs: Any, outputs: int) -> None:
    made: Any = network(value, inputs, outputs).eval()
    rows = torch.rand(3, *inputs)
    with torch.no_grad():
        assert made(rows).shape == (3, outputs)
        assert made.body(rows).shape == (3, *shape_after(value, inputs))
        again = network(value, inputs, outputs).eval()
        again.load_state_dict(made.state_dict())
        assert torch.equal(again(rows), made(rows))


@settings(max_examples=15)
@given(value=keeping, shape=images)
def test_what_keeps_the_shape_stands_in_a_cell(value: Any, shape: Any) -> None:
    assert shape_after(value, shape) == shape
    assert shape_after({"0-1": value, "0-2": value, "1-2": "skip"}, shape) == shape


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_stands_in_a_chain_and_its_weights_learn(name: str) -> None:
    shape = SHAPES.get(name, (8, 6, 6))
    made = network([{name: PARAMS.get(name, {})}, "skip"], shape, 4)
    rows = torch.rand(3, *shape)
    out = made(rows)
    assert out.shape == (3, 4)
    out.square().sum().backward()
    assert [weight for weight, parameter in made.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_stands_in_a_cell_if_it_keeps_the_shape(name: str) -> None:
    shape = SHAPES.get(name, (8, 6, 6))
    value = {name: PARAMS.get(name, {})}
    after = shape_after(value, shape)
    nodes = {"1": [{"from": 0, "operation": value}, {"from": 0, "operation": "skip"}]}
    for cell, place in (({"0-1": value}, "0-1"), (nodes, "1[0]")):
        if after == shape:
            assert network(cell, shape, 4)(torch.rand(3, *shape)).shape == (3, 4)
        else:
            with pytest.raises(ArchitectureError) as told:
                network(cell, shape)
            assert (
                str(told.value) == f"architecture.{place}.{name}: must keep the shape in a cell, {shape}, got {after}"
            )


@pytest.mark.some_cases(28)
@pytest.mark.parametrize("side", range(1, 10))
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    "value", ["conv", "separable", "mbconv", "max_3x3", "avg_3x3", "sep_5x5", "dil_3x3", "conv_1x7_7x1", "none"]
)
def test_a_stride_leaves_a_side_over_the_stride_rounded_up(value: str, stride: int, side: int) -> None:
    expected = (side + stride - 1) // stride
    assert shape_after({value: {"stride": stride}}, (2, side, 4)) == (2, expected, (4 + stride - 1) // stride)


@pytest.mark.parametrize("side", range(1, 10))
def test_reductions_and_pools_halve_and_leave_a_single_pixel(side: int) -> None:
    half = (side + 1) // 2
    for name, channels in (("reduction", 6), ("residual_reduction", 6), ("pool", 3), ("avg_pool", 3)):
        assert shape_after(name, (3, side, side)) == (channels, half, half)
    assert shape_after({"skip": {"stride": 2}}, (3, side, side)) == (3, half, half)


def test_a_factorized_reduction_sees_every_other_diagonal_pixel_in_each_half() -> None:
    made = body({"reduction": {"channels": 2}}, (1, 3, 3))
    for convolution in (made.straight, made.shifted):
        nn.init.ones_(convolution.weight)
    image = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    straight, shifted = made(image)[0] * (1 + made.norm.eps) ** 0.5
    assert torch.allclose(straight, torch.tensor([[1.0, 3.0], [7.0, 9.0]]))
    assert torch.allclose(shifted, torch.tensor([[5.0, 0.0], [0.0, 0.0]]))  # beyond the border there are zeros


def test_attention_is_that_of_torch() -> None:
    made = body({"attention": {"heads": 2}}, (5, 8))
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    theirs.in_proj_weight.data.copy_(made.inward.weight)
    theirs.in_proj_bias.data.copy_(made.inward.bias)
    theirs.out_proj.load_state_dict(made.outward.state_dict())
    tokens = torch.rand(3, 5, 8)
    assert torch.allclose(made(tokens), theirs(tokens, tokens, tokens)[0], atol=1e-6)


FIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "skip": lambda values: values,
    "none": torch.zeros_like,
    "relu": functional.relu,
    "tanh": torch.tanh,
    "max_3x3": lambda values: functional.max_pool2d(values, 3, 1, 1),
}
"""Operations without weights, as one writes them by hand."""

fixed = st.sampled_from(sorted(FIXED))


@given(cell=edge_cells(fixed))
def test_a_node_of_an_edge_cell_is_the_sum_of_its_edges(cell: Any) -> None:
    def node(number: int) -> Tensor:
        if number == 0:
            return IMAGES - 0.5
        edges = [(int(edge.split("-")[0]), name) for edge, name in cell.items() if edge.endswith(f"-{number}")]
        return sum((FIXED[name](node(start)) for start, name in edges), torch.zeros_like(IMAGES))

    last = max(int(edge.split("-")[1]) for edge in cell)
    assert torch.allclose(body(cell)(IMAGES - 0.5), node(last), atol=1e-5)


def by_hand(cell: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Return the outputs of the nodes that no other node takes as input."""

    def node(number: int) -> Tensor:
        if number < len(inputs):
            return inputs[number]
        sides = cell[str(number)]
        return sum((FIXED[side["operation"]](node(side["from"])) for side in sides), torch.zeros_like(inputs[0]))

    taken = {side["from"] for sides in cell.values() for side in sides}
    return [node(number) for number in sorted(map(int, cell)) if number not in taken]


@given(cell=node_cells(fixed))
def test_a_node_cell_gives_the_mean_of_what_no_node_takes(cell: Any) -> None:
    inputs = [IMAGES - 0.5] * min(map(int, cell))
    loose = by_hand(cell, inputs)
    assert torch.allclose(body(cell)(inputs[0]), sum(loose, torch.zeros_like(IMAGES)) / len(loose), atol=1e-5)


@given(cell=node_cells(fixed), repeats=st.integers(1, 4))
def test_a_cell_of_a_stack_takes_the_outputs_of_those_before_it(cell: Any, repeats: int) -> None:
    made = body({"cells": {"cell": cell, "repeats": repeats, "join": "mean"}})
    inputs = min(map(int, cell))
    outputs = [IMAGES - 0.5] * inputs
    for _ in range(repeats):
        loose = by_hand(cell, outputs[-inputs:])
        outputs.append(sum(loose, torch.zeros_like(IMAGES)) / len(loose))
    assert torch.allclose(made(outputs[0]), outputs[-1], atol=1e-4, rtol=1e-4)


def test_a_stack_puts_loose_nodes_side_by_side() -> None:
    cell = {
        "1": [{"from": 0, "operation": "skip"}],
        "2": [{"from": 0, "operation": "skip"}, {"from": 0, "operation": "skip"}],
    }
    assert torch.equal(body({"cells": {"cell": cell}})(IMAGES), torch.cat([IMAGES, 2 * IMAGES], 1))
    tokens = torch.rand(3, 5, 8)
    assert torch.equal(body({"cells": {"cell": cell}}, (5, 8))(tokens), torch.cat([tokens, 2 * tokens], 2))
    assert shape_after({"cells": {"cell": cell}}, (7,)) == (14,)


def two_inputs(*names: str) -> Any:
    return {"2": [{"from": place, "operation": name} for place, name in enumerate(names)]}


def test_stages_halve_the_sides_and_double_the_channels() -> None:
    stack = {"cell": two_inputs("sep_3x3", "skip"), "stages": 3, "repeats": 2, "channels": 4}
    for reduction in ({}, {"reduction": two_inputs("sep_3x3", "skip")}, {"reduction": "reduction"}):
        assert shape_after({"cells": stack | reduction}, (3, 9, 8)) == (16, 3, 2)
    edges = {"cell": {"0-1": "nor_conv_3x3"}, "stages": 3, "channels": 4}
    assert shape_after({"cells": edges}, (3, 9, 8)) == (16, 3, 2)
    assert shape_after({"cells": edges | {"reduction": {"0-1": "nor_conv_3x3"}}}, (3, 9, 8)) == (16, 3, 2)


def test_a_reduction_cell_halves_what_reads_its_inputs_alone() -> None:
    reduction = {
        "2": [{"from": 0, "operation": "max_3x3"}, {"from": 1, "operation": "avg_3x3"}],
        "3": [{"from": 2, "operation": "max_3x3"}, {"from": 1, "operation": "max_3x3"}],
    }
    stack = {"cell": two_inputs("skip", "skip"), "reduction": reduction, "stages": 2, "join": "mean"}
    made = body({"cells": stack}, (8, 6, 6))
    strides = [one.stride for one in made.steps[1].cell.modules() if isinstance(one, nn.MaxPool2d | nn.AvgPool2d)]
    assert strides == [2, 2, 1, 2]


def test_an_input_of_a_stack_that_no_node_takes_has_no_weights() -> None:
    newest = {"2": [{"from": 1, "operation": "conv_1x1"}]}
    made = network({"cells": {"cell": newest, "stages": 2, "repeats": 2, "channels": 5}}, (3, 8, 8))
    made(torch.rand(2, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_a_stem_stands_before_and_a_head_behind() -> None:
    made: Any = network("skip", (1, 8, 8), 4, stem={"conv": {"channels": 6}}, head=["pool", "flatten"])
    assert made.head[-1].in_features == 6 * 16
    assert made(torch.rand(2, 1, 8, 8)).shape == (2, 4)


def test_it_has_torchs_own_initialization_of_the_seed() -> None:
    torch.manual_seed(3)
    made: Any = network([{"conv": {"channels": 4, "norm": "none"}}, {"conv_1x1": {}}], (2, 6, 6), 5)
    torch.manual_seed(3)
    expected: list[Any] = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1, bias=False), nn.Linear(4, 5)]
    ours: list[Any] = [one for one in made.modules() if isinstance(one, nn.Conv2d | nn.Linear)]
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(ours, expected, strict=True))


STRUCTURES: dict[str, Any] = {
    "chain": hp.Chain({"conv": {"channels": hp.Ordinal([4, 8]), "kernel": [1, 3]}, "pool": {}}, max=5),
    "names": hp.Chain(["identity", "mbconv"], min=3, max=3),
    "choice": hp.Choice({"sep_3x3": {}, "conv": {"stride": [1, 2]}}),
    "edges": hp.Cell(["none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"], nodes=4),
    "nodes": hp.Cell(["skip", "sep_3x3", "sep_5x5", "avg_3x3", "max_3x3"], each="node", nodes=4, inputs=2),
    "own parameters": hp.Cell({"conv": {"kernel": [1, 3]}, "skip": {}}, each="node", nodes=2),
    "repeat": hp.Repeat(hp.Choice({"conv": {"channels": [4, 8]}, "relu": {}}), min=0, max=3),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_whatever_a_structure_gives_is_an_architecture(name: str) -> None:
    space = Space.from_parameters({"it": STRUCTURES[name]})
    for number in range(10):
        value = space.nest(space.draw(0, number)).get("it", [])
        assert network(value)(torch.rand(2, 1, 8, 8)).shape == (2, 10)
