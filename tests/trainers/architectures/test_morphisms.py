"""A child whose outputs are said to be its parent's has them; and it is said of all that Net2Net knows, and more."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from hpsearch_trainers.architectures import ArchitectureError, architecture_of, network, operation
from hpsearch_trainers.inheritance import FATES, Inherited, inherit
from tests.trainers.architectures.drawn import architectures, images
from tests.trainers.architectures.mutated import mutations, trained

HEAD: Any = [{"adaptive_pool": {"side": 2}}, "flatten"]
IMAGE = (2, 8, 8)


def inherited(parent: Any, child: Any, shape: Any = IMAGE, **given: Any) -> tuple[Inherited, float]:
    """Return what was inherited, and how far the outputs differ, relative to the parent's largest."""
    before = trained(network(parent, shape, 3, **given))
    after = network(child, shape, 3, **given).eval()
    found = inherit(after, before.state_dict(), architecture_of(before), seed=1)
    rows = torch.randn(4, *shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected, got = before(rows), after(rows)
    assert set(found.fates) == set(after.state_dict())
    assert set(found.fates.values()) <= set(FATES)
    return found, float((got - expected).abs().max() / expected.abs().max())


def check_a_mutation(data: Any, value: Any, shape: Any, head: Any) -> None:
    child = data.draw(mutations(value))
    try:
        found, apart = inherited(value, child, shape, head=head)
    except ArchitectureError:
        assume(False)
    assert found.preserving or child != value
    if found.preserving:
        assert apart < 1e-5


@pytest.mark.exhaustive
@settings(max_examples=10)
@given(st.data(), architectures, images, st.sampled_from([None, HEAD]))
def test_outputs_are_the_parents_where_it_is_said_so(data: Any, value: Any, shape: Any, head: Any) -> None:
    check_a_mutation(data, value, shape, head)


@pytest.mark.exhaustive
@settings(max_examples=200)
@given(st.data(), architectures, images, st.sampled_from([None, HEAD]))
def test_outputs_of_many_are_the_parents_where_it_is_said_so(data: Any, value: Any, shape: Any, head: Any) -> None:
    check_a_mutation(data, value, shape, head)


@pytest.mark.exhaustive
@settings(max_examples=10)
@given(architectures, architectures, images)
def test_so_are_those_of_a_child_that_has_nothing_of_its_parent(value: Any, child: Any, shape: Any) -> None:
    found, apart = inherited(value, child, shape)
    if found.preserving:
        assert apart < 1e-5


def conv(channels: int, kernel: int = 3, name: str = "conv", **params: Any) -> Any:
    return {name: {"channels": channels, "kernel": kernel, **params}}


def dense(features: int, **params: Any) -> Any:
    return {"dense": {"features": features, **params}}


def edges(first: str, second: str) -> Any:
    return {"0-1": first, "0-2": second, "1-2": "skip"}


def nodes(first: Any, second: Any) -> Any:
    return {"2": [{"from": 0, "operation": first}, {"from": 1, "operation": second}]}


def following(node: int) -> Any:
    first = {"from": 0, "operation": "conv_3x3"}
    return {"1": [first], "2": [{"from": 1, "operation": "conv_1x1"}, {"from": node, "operation": "skip"}]}


def stack(cell: Any, channels: int, **params: Any) -> Any:
    return [conv(channels), {"cells": {"cell": cell, "repeats": 2, "channels": channels, **params}}]


def attending(features: int) -> Any:
    body = ["layer_norm", {"attention": {"heads": 2}}]
    return [{"residual": {"body": body}}, dense(features), "relu"]


CHAIN = [conv(4), "pool", conv(6)]

EXACT: dict[str, tuple[Any, Any, Any]] = {
    "the same": (CHAIN, CHAIN, IMAGE),
    "wider": (CHAIN, [conv(7), "pool", conv(6)], IMAGE),
    "wider throughout": (CHAIN, [conv(8), "pool", conv(20)], IMAGE),
    "a larger kernel": (CHAIN, [conv(4, 5), "pool", conv(6, 7)], IMAGE),
    "deeper": (CHAIN, [conv(4), conv(4), "pool", conv(6), conv(6, 5)], IMAGE),
    "deeper in front": ([conv(4)], [conv(9), conv(4)], IMAGE),
    "deeper and wider at once": (CHAIN, [conv(6), conv(9, 5), "pool", conv(9)], IMAGE),
    "deeper behind a pool": (CHAIN, [conv(4), "pool", conv(4), conv(6)], IMAGE),
    "a narrower layer that holds all": ([conv(8), "pool"], [conv(12), conv(8), "pool"], IMAGE),
    "without activation": (["tanh"], ["tanh", conv(2, activation="none")], IMAGE),
    "with biases": (
        [conv(4, norm="none"), conv(5, norm="none")],
        [conv(6, norm="none"), *[conv(7, norm="none")] * 2],
        IMAGE,
    ),
    "a bias that is new": ([conv(4), "conv_3x3"], [conv(4), "relu", "conv_3x3"], IMAGE),
    "separable": ([conv(4), conv(6, name="separable")], [conv(6), conv(9, 5, name="separable")], IMAGE),
    "separable and deeper": ([conv(4)], [conv(4), conv(6, name="separable")], IMAGE),
    "an inverted bottleneck": (
        [conv(4), {"mbconv": {"channels": 4}}],
        [conv(5), {"mbconv": {"channels": 7, "expansion": 7}}],
        IMAGE,
    ),
    "a dilated one": ([conv(4, dilation=2)], [conv(6, 5, dilation=2)], IMAGE),
    "a kernel that had no neighbours": ([conv(4, 1)], [conv(4, 3, dilation=2)], IMAGE),
    "a stride": ([conv(4, 3, stride=2)], [conv(5, 5, stride=2)], IMAGE),
    "groups": ([conv(4), conv(4, groups=2)], [conv(4), conv(4, 5, groups=2)], IMAGE),
    "dropout, skip and relu": (CHAIN, ["skip", conv(4), "relu", "dropout", "pool", conv(6)], IMAGE),
    "a norm": (CHAIN, ["batch_norm", conv(4), "pool", conv(6)], IMAGE),
    "what did nothing is gone": ([conv(4), "skip", "relu", "dropout", conv(6)], [conv(4), conv(6)], IMAGE),
    "pools of a single pixel": ([conv(4), "pool", "pool"], [conv(4), "pool", "max_3x3"], (2, 2, 2)),
    "dense": ([dense(8), dense(6)], [dense(11), dense(9)], (5,)),
    "dense and deeper": ([dense(8)], [dense(8), dense(8), dense(12, dropout=0.5)], (5,)),
    "dense behind a dropout": ([dense(8, dropout=0.5)], [dense(9, dropout=0.1)], (5,)),
    "dense behind pixels": ([conv(4), "flatten", dense(6)], [conv(6), "flatten", dense(8)], IMAGE),
    "reductions": ([conv(4), "reduction"], [conv(6), {"reduction": {"channels": 11}}], IMAGE),
    "residual reductions": ([conv(4), "residual_reduction"], [conv(6), "residual_reduction"], IMAGE),
    "residuals": (
        [conv(4), {"residual": {"body": [conv(4)]}}],
        [conv(6), {"residual": {"body": [conv(9), conv(6)]}}],
        IMAGE,
    ),
    "a residual that is new": (CHAIN, [conv(4), {"residual": {"body": [conv(4), "conv_3x3"]}}, "pool", conv(6)], IMAGE),
    "tokens": ([dense(8), {"attention": {}}], [dense(8), {"attention": {}}, dense(8, activation="none")], (5, 6)),
    "positions": ([dense(8), dense(6)], [dense(9), "positions", dense(6)], (5, 6)),
    "tokens behind each other": ([dense(4), "flatten", dense(6)], [dense(5), "flatten", dense(7)], (5, 6)),
    "a transformer": (attending(6), [*attending(6), dense(9)], (5, 6)),
    "an edge that wasn't there": ([conv(4), edges("conv_3x3", "none")], [conv(4), edges("conv_3x3", "sep_3x3")], IMAGE),
    "a cell behind a wider layer": (
        [conv(4), edges("conv_3x3", "avg_3x3")],
        [conv(7), edges("conv_5x5", "avg_3x3")],
        IMAGE,
    ),
    "a stack that is wider": (stack(edges("conv_3x3", "sep_3x3"), 4), stack(edges("conv_3x3", "sep_3x3"), 6), IMAGE),
    "stages that are wider": (
        stack(edges("conv_3x3", "skip"), 4, stages=2),
        stack(edges("conv_3x3", "skip"), 6, stages=2),
        IMAGE,
    ),
    "nodes that are wider": ([conv(4), nodes("sep_3x3", "skip")], [conv(7), nodes("sep_3x3", "skip")], IMAGE),
    "another operation of the same kind": ([conv(4), "sep_3x3", "conv_1x1"], [conv(4), "sep_7x7", "conv_5x5"], IMAGE),
    "side by side": (
        [conv(4), {"cells": {"cell": nodes("sep_3x3", "conv_1x1")}}],
        [conv(7), {"cells": {"cell": nodes("sep_3x3", "conv_1x1")}}],
        IMAGE,
    ),
}


@pytest.mark.some_cases(10)
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("head", [None, HEAD], ids=["mean", "pixels"])
def test_what_can_be_exact_is(name: str, head: Any) -> None:
    parent, child, shape = EXACT[name]
    if head is not None and len(shape) < 3:
        pytest.skip("there are no pixels")
    if head is not None and "flatten" in parent:
        head = "skip"
    found, apart = inherited(parent, child, shape, head=head)
    assert found.preserving, str(found)
    assert apart < 1e-5
    assert str(found).endswith("; outputs are the parent's")


DIFFERING: dict[str, tuple[Any, Any, Any, str]] = {
    "narrower": (CHAIN, [conv(3), "pool", conv(6)], IMAGE, "body.2.0 (Conv2d) lacks units"),
    "narrower at the end": (CHAIN, [conv(4), "pool", conv(5)], IMAGE, "head.1 (Linear) lacks units"),
    "a smaller kernel": ([conv(4, 5)], [conv(4)], IMAGE, "body.0.0 (Conv2d) has a smaller kernel"),
    "a ReLU in front": (["tanh"], ["relu", "tanh"], IMAGE, "body.0 (ReLU) is new, and changes values"),
    "deeper behind a ReLU that was shifted": (
        [conv(4), "batch_norm"],
        [conv(4), "batch_norm", conv(4)],
        IMAGE,
        "(ReLU)",
    ),
    "deeper behind another activation": (
        [conv(4, activation="gelu")],
        [conv(4, activation="gelu")] * 2,
        IMAGE,
        "(GELU)",
    ),
    "a pool": (CHAIN, [*CHAIN, "pool"], IMAGE, "(MaxPool2d) is new, and pools"),
    "a pool that is gone": (CHAIN, [conv(4), conv(6)], IMAGE, "(MaxPool2d) of the parent's was taken out"),
    "another pool": (["pool"], [{"pool": {"kernel": 3}}], IMAGE, "(MaxPool2d) pools otherwise"),
    "another stride": ([conv(4)], [conv(4, stride=2)], IMAGE, "takes other pixels"),
    "another dilation": ([conv(4)], [conv(4, dilation=2)], IMAGE, "takes other pixels"),
    "another activation": ([conv(4)], [conv(4, activation="tanh")], IMAGE, "(ReLU) of the parent's was taken out"),
    "no norm": ([conv(4)], [conv(4, norm="none")], IMAGE, "(BatchNorm2d) of the parent's was taken out"),
    "repeated units that are normalized": ([conv(4), "layer_norm"], [conv(5), "layer_norm"], IMAGE, "(GroupNorm)"),
    "a new edge that can't be silent": (
        edges("conv_3x3", "none"),
        edges("conv_3x3", "conv"),
        IMAGE,
        "(Zero) of the parent's",
    ),
    "another node": (
        nodes("conv_3x3", "skip"),
        {"1": [{"from": 0, "operation": "conv_3x3"}] * 2},
        IMAGE,
        "number of inputs",
    ),
    "one cell more": (
        stack(edges("conv_3x3", "skip"), 4),
        stack(edges("conv_3x3", "skip"), 4, repeats=3),
        IMAGE,
        "(Step)",
    ),
    "a skip from another node": (following(1), following(0), IMAGE, "(Identity) takes another node than the parent's"),
    "inputs of a cell that were widened apart": (
        {"cells": {"cell": nodes("sep_3x3", "skip"), "stages": 2, "repeats": 2, "channels": 4}},
        {"cells": {"cell": nodes("sep_3x3", "skip"), "stages": 2, "repeats": 2, "channels": 7}},
        IMAGE,
        "joins values that repeat other units",
    ),
    "another number of heads": (["attention"], [{"attention": {"heads": 2}}], (5, 8), "was made otherwise"),
}


@pytest.mark.some_cases(7)
@pytest.mark.parametrize("name", DIFFERING)
def test_what_cannot_be_exact_is_not_said_to_be(name: str) -> None:
    parent, child, shape, why = DIFFERING[name]
    found, apart = inherited(parent, child, shape)
    assert not found.preserving
    assert apart > 1e-3
    assert why in found.reasons[0]
    assert found.reasons[0] in str(found)


def test_each_layer_says_what_became_of_it() -> None:
    before = trained(network([conv(4), conv(4), conv(6)], IMAGE, 3))
    after = network([conv(4), conv(4, 5), conv(3), conv(3)], IMAGE, 3)
    found = inherit(after, before.state_dict(), architecture_of(before))
    layers = {name: found.layers[name] for name in found.layers if name.endswith(".0")}
    assert layers == {"body.0.0": "same", "body.1.0": "padded", "body.2.0": "sliced", "body.3.0": "identity"}
    assert torch.equal(after.state_dict()["body.2.0.weight"], before.state_dict()["body.2.0.weight"][:3])
    assert "body.0.0.weight" in found.taken
    assert found.left == ()


def test_repeated_units_learn_to_differ() -> None:
    before = trained(network([dense(4)], (5,), 3))
    after: Any = network([dense(8)], (5,), 3)
    inherit(after, before.state_dict(), architecture_of(before), seed=3)
    rows, targets = torch.randn(64, 5), torch.randint(3, (64,))
    for _ in range(50):
        after.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(after(rows), targets))
        with torch.no_grad():
            for parameter in after.parameters():
                parameter -= 0.1 * parameter.grad
    units = after.body[0][0].weight.detach()
    assert float(torch.pdist(units).min()) > 1e-3


def test_a_layer_that_was_put_in_changes_little_while_the_network_trains() -> None:
    torch.manual_seed(0)
    before = network([conv(8), "pool"], IMAGE, 3).train()
    rows = torch.randn(256, *IMAGE)
    for _ in range(20):
        before(rows)  # until statistics are those of the rows
    after = network([conv(8), conv(8), "pool"], IMAGE, 3).train()
    assert inherit(after, before.state_dict(), architecture_of(before)).preserving
    with torch.no_grad():
        expected, got = before(rows), after(rows)
    assert float((got - expected).abs().mean() / expected.abs().mean()) < 0.1


def test_the_same_seed_gives_the_same_child_and_another_one_another() -> None:
    before = trained(network(CHAIN, IMAGE, 3))
    made = network([conv(9), "pool", conv(6)], IMAGE, 3)
    one, same, other = (copy.deepcopy(made) for _ in range(3))
    for model, seed in ((one, 5), (same, 5), (other, 6)):
        assert inherit(model, before.state_dict(), architecture_of(before), seed).preserving
    assert all(torch.equal(value, same.state_dict()[name]) for name, value in one.state_dict().items())
    assert not torch.equal(one.state_dict()["body.0.0.weight"], other.state_dict()["body.0.0.weight"])


def test_of_weights_that_are_no_numbers_nothing_is_taken_over() -> None:
    before, after = network(CHAIN, IMAGE, 3), network(CHAIN, IMAGE, 3)
    made = copy.deepcopy(after.state_dict())
    before.state_dict()["body.2.0.weight"][0, 0, 0, 0] = float("nan")
    found = inherit(after, before.state_dict(), architecture_of(before))
    assert not found.preserving
    assert found.taken == ()
    assert "the parent's body.2.0.weight isn't a number: nothing of it is taken over" in str(found)
    assert all(torch.equal(value, made[name]) for name, value in after.state_dict().items())


@pytest.mark.usefixtures("registry")
def test_an_operation_of_ones_own_is_copied_where_nothing_changed() -> None:
    @operation()
    def scaled(shape: Any, start: float = 1.0) -> nn.Module:
        made = nn.PReLU(shape[0], start)
        return made

    for child, exact in (
        ([conv(4), "scaled", conv(6)], True),
        ([conv(4), {"scaled": {"start": 1.0}}, conv(9)], True),
        ([conv(4), {"scaled": {"start": 0.5}}, conv(6)], False),
        ([conv(6), "scaled", conv(6)], False),
    ):
        found, apart = inherited([conv(4), "scaled", conv(6)], child)
        assert found.preserving == exact
        assert apart < 1e-5 or not exact


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda shape: nn.LayerNorm(shape), IMAGE),
        (lambda shape: nn.LayerNorm(shape[-1]), IMAGE),
        (lambda shape: nn.Linear(shape[-1], shape[-1]), IMAGE),
        (lambda shape: nn.Flatten(2), IMAGE),
        (lambda shape: nn.BatchNorm1d(shape[0]), (5, 6)),
    ],
)
def test_one_that_takes_another_axis_for_its_units_is_only_copied(build: Any, shape: Any) -> None:
    @operation()
    def own(shape: Any) -> nn.Module:
        made: nn.Module = build(shape)
        return made

    before = conv if len(shape) == 3 else dense
    found, apart = inherited([before(4), "own"], [before(4), "own"], shape)
    assert found.preserving
    assert apart < 1e-5
    found, _ = inherited([before(4), "own"], [before(6), "own"], shape)
    assert not found.preserving


@pytest.mark.usefixtures("registry")
def test_an_operation_that_changed_since_is_told_and_names_and_shapes_count() -> None:
    @operation()
    def mine(shape: Any) -> nn.Module:
        return nn.Linear(shape[0], 4)

    before = trained(network([dense(4), "mine"], (4,), 3))
    weights, architecture = before.state_dict(), architecture_of(before)

    def mine_too(shape: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], 4))

    from hpsearch_trainers.architectures import OPERATIONS

    OPERATIONS["mine"] = mine_too
    after = network([dense(4), "mine"], (4,), 3)
    found = inherit(after, weights, architecture)
    assert not found.preserving
    assert set(found.left) == {"body.1.0.weight", "body.1.0.bias"}
    assert "the parent's weights aren't those of its architecture: body.1.0.weight is missing" in str(found)
    del OPERATIONS["mine"]
    other = network([dense(4)], (4,), 3)
    assert "an architecture can't be built again: architecture[1]: must be a known operation" in str(
        inherit(other, weights, architecture)
    )


def test_a_network_that_was_changed_after_it_was_made_is_no_network_of_its_architecture() -> None:
    before = network([dense(4)], (4,), 3)
    after: Any = network([dense(4)], (4,), 3)
    after.body[0][1] = nn.Tanh()
    found = inherit(after, before.state_dict(), architecture_of(before))
    assert not found.preserving
    assert "the model's body.0.1 was changed after it was made" in str(found)


def test_other_inputs_and_outputs_are_told() -> None:
    before = network([conv(4)], (2, 8, 8), 3)
    for shape, outputs, why in (((3, 8, 8), 3, "inputs have the shape"), ((2, 8, 8), 5, "there are 5 outputs")):
        after = network([conv(4)], shape, outputs)
        found = inherit(after, before.state_dict(), architecture_of(before))
        assert not found.preserving
        assert why in found.reasons[0]
