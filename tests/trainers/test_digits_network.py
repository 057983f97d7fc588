"""Networks whose architecture is a parameter: each that a sweep may draw trains, and is the one that was asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch.sweep.file import load_sweep
from hpsearch_trainers.digits_network import CellNetwork, ChainNetwork, Perceptron
from hpsearch_trainers.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))

NETWORKS = {
    "conditional_digits": Perceptron,
    "chain_digits": ChainNetwork,
    "edge_cell_digits": CellNetwork,
    "node_cell_digits": CellNetwork,
}


def network(kind: type[Any], params: dict[str, Any]) -> nn.Sequential:
    trial: Any = SimpleNamespace(params=params, seed=0)
    made: nn.Sequential = kind(trial).network(params)
    return made


def kinds(module: nn.Module) -> list[str]:
    return [type(one).__name__ for one in module.children()]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_draw_of_a_config_gives_a_network_with_a_class_for_each_image(name: str) -> None:
    space = load_sweep(CONFIGS / f"{name}.yaml").parameters
    for number in range(30):
        params = space.nest(space.draw(0, number))
        model = network(NETWORKS[name], params)
        assert model(IMAGES).shape == (3, 10)


@pytest.mark.parametrize("name", NETWORKS)
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
    assert [(one.in_channels, one.out_channels) for one in model if isinstance(one, nn.Conv2d)] == [
        (1, 4),
        (4, 4),
        (4, 6),
    ]


def test_a_chain_pools_until_one_pixel_is_left() -> None:
    model = network(ChainNetwork, {"layers": ["pool"] * 5})
    assert kinds(model).count("MaxPool2d") == 3
    assert model(IMAGES).shape == (3, 10)


def test_the_output_of_an_edge_cell_is_the_sum_over_its_paths() -> None:
    none = dict.fromkeys(["0-1", "0-2", "1-2"], "none")
    model = network(CellNetwork, {"cell": {**none, "0-1": "skip", "1-2": "skip"}, "channels": 2})
    cell: Any = next(one for one in model if type(one).__name__ == "EdgeCell")
    values = torch.rand(1, 2, 4, 4)
    assert torch.equal(cell(values), values)
    twice: Any = network(CellNetwork, {"cell": dict.fromkeys(none, "skip"), "channels": 2})
    assert torch.equal(next(one for one in twice if type(one).__name__ == "EdgeCell")(values), 2 * values)


def test_the_output_of_a_node_cell_is_the_mean_of_what_no_node_takes() -> None:
    def node(one: int, other: int) -> list[dict[str, Any]]:
        return [{"from": one, "operation": "skip"}, {"from": other, "operation": "skip"}]

    model = network(CellNetwork, {"cell": {"2": node(0, 1), "3": node(2, 2), "4": node(0, 0)}, "channels": 2})
    cell: Any = next(one for one in model if type(one).__name__ == "NodeCell")
    values = torch.rand(1, 2, 4, 4)
    assert cell.loose == [3, 4]
    assert torch.allclose(cell(values), 3 * values)  # (4 + 2) / 2


@pytest.mark.parametrize(
    ("kind", "params", "told"),
    [
        (ChainNetwork, {"layers": ["jump"]}, "a layer must be conv, separable, pool or skip, got 'jump'"),
        (CellNetwork, {"cell": {"0-1": "jump"}}, "an operation must be none, skip, .* got 'jump'"),
        (Perceptron, {"optimizer": {"lion": {}}}, "an optimizer must be sgd or adam, got 'lion'"),
    ],
)
def test_what_there_isnt_is_said(kind: type[Any], params: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        kind(SimpleNamespace(params=params, seed=0))
