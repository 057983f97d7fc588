"""Networks whose architecture is a parameter: each that a sweep may draw trains, and is the one that was asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch.sweep.file import load_sweep
from hpsearch_trainers.digits_network import CellNetwork, ChainNetwork, MeasuredChain, Perceptron
from hpsearch_trainers.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))

Nothing = nn.Identity | nn.Sequential

NETWORKS = {
    "conditional_digits": Perceptron,
    "chain_digits": ChainNetwork,
    "edge_cell_digits": CellNetwork,
    "node_cell_digits": CellNetwork,
    "goals_digits": MeasuredChain,
}


def network(kind: type[Any], params: dict[str, Any]) -> Any:
    trial: Any = SimpleNamespace(params=params, seed=0)
    return kind(trial).network(params)


def kinds(module: nn.Module) -> list[str]:
    """Return the layers in sequence."""
    return [type(one).__name__ for one in module.modules() if not list(one.children()) and not isinstance(one, Nothing)]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_draw_of_a_config_gives_a_network_with_a_class_for_each_image(name: str) -> None:
    space = load_sweep(CONFIGS / f"{name}.yaml").parameters
    for number in range(12):
        params = space.nest(space.draw(0, number))
        model = network(NETWORKS[name], params)
        assert model(IMAGES).shape == (3, 10)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.exhaustive if "cell" in n else ()) for n in NETWORKS]
)
def test_it_learns(name: str) -> None:
    space = load_sweep(CONFIGS / f"{name}.yaml").parameters
    torch.manual_seed(0)
    params = {**space.nest(space.draw(0, 1)), "lr": 0.01}
    training: Trainer = NETWORKS[name](SimpleNamespace(params=params, seed=0))
    losses = [training.step()["loss"] for _ in range(2)]
    assert losses[1] < losses[0] or losses[0] < 0.1


def test_the_layers_of_a_chain_stand_in_order() -> None:
    layers = [
        {"conv": {"channels": 4, "kernel": 5}},
        {"pool": {}},
        {"skip": {}},
        {"separable": {"channels": 6, "kernel": 3}},
    ]
    model = network(ChainNetwork, {"layers": layers})
    convolution = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds(model) == [*convolution, "MaxPool2d", "Conv2d", *convolution, "AdaptiveAvgPool2d", "Flatten", "Linear"]
    convolutions = [one for one in model.modules() if isinstance(one, nn.Conv2d)]
    assert [(one.in_channels, one.out_channels) for one in convolutions] == [(1, 4), (4, 4), (4, 6)]


def test_a_chain_pools_until_one_pixel_is_left() -> None:
    model = network(ChainNetwork, {"layers": ["pool"] * 5})
    assert model.body(IMAGES).shape == (3, 1, 1, 1)
    assert model(IMAGES).shape == (3, 10)


def test_a_cell_stands_before_and_behind_a_pool_with_weights_of_its_own() -> None:
    model = network(CellNetwork, {"cell": {"0-1": "nor_conv_3x3"}, "channels": 2})
    convolution = ["Conv2d", "BatchNorm2d", "ReLU"]
    cell = ["ReLU", "Conv2d", "BatchNorm2d"]
    assert kinds(model) == [*convolution, *cell, "MaxPool2d", *cell, "AdaptiveAvgPool2d", "Flatten", "Linear"]
    first, second = (one for one in model.body if not isinstance(one, nn.MaxPool2d))
    assert first is not second


def test_a_perceptron_has_the_widths_it_is_given() -> None:
    model = network(Perceptron, {"hidden": [16, 32], "dropout": 0.25})
    layer = ["Linear", "ReLU", "Dropout"]
    assert kinds(model) == ["Flatten", *layer, *layer, "Linear"]
    assert [(one.in_features, one.out_features) for one in model.modules() if isinstance(one, nn.Linear)] == [
        (64, 16),
        (16, 32),
        (32, 10),
    ]
    assert {one.p for one in model.modules() if isinstance(one, nn.Dropout)} == {0.25}


def test_a_measured_chain_reports_its_parameters() -> None:
    training: Trainer = MeasuredChain(SimpleNamespace(params={"layers": ["pool"], "batch_size": 512}, seed=0))
    metrics = training.step()
    assert metrics["parameters"] == 4 * 10 + 10
    assert metrics["latency_ms"] > 0


@pytest.mark.parametrize(
    ("kind", "params", "told"),
    [
        (ChainNetwork, {"layers": ["jump"]}, r"^layers\[0\]: must be a known operation, got 'jump'"),
        (CellNetwork, {"cell": {"0-1": "jump"}}, r"^cell\[0\]\.0-1: must be a known operation, got 'jump'"),
        (Perceptron, {"optimizer": {"lion": {}}}, "an optimizer must be sgd or adam, got 'lion'"),
    ],
)
def test_what_there_isnt_is_said(kind: type[Any], params: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        kind(SimpleNamespace(params=params, seed=0))
