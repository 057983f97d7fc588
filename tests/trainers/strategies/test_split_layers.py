"""How layers of a model are split among ranks, and which can't be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor, nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.split_layers import plan_of
from tests.comm.process_ranks import ProcessRanks


def linear(inputs: int = 4, outputs: int = 4) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def again(layer: nn.Module) -> nn.Module:
    """Call a layer twice, with others around it."""
    return nn.Sequential(linear(), layer, linear(), layer, linear())


def tied() -> nn.Module:
    model = nn.Sequential(linear(), linear(), linear())
    model[1].weight = model[0].weight
    return model


PLANS: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    "a pair": (lambda: nn.Sequential(linear(), nn.GELU(), linear(4, 3)), {"0": "colwise", "2": "rowwise"}),
    "a pair without anything between": (lambda: nn.Sequential(linear(), linear()), {"0": "colwise", "1": "rowwise"}),
    "two pairs": (
        lambda: nn.Sequential(linear(), linear(), nn.ReLU(), linear(), nn.ReLU(), linear()),
        {"0": "colwise", "1": "rowwise", "3": "colwise", "5": "rowwise"},
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Dropout(), linear(), nn.ReLU(), nn.Dropout(), linear()),
        {"1": "colwise", "3": "dropout", "4": "rowwise"},
    ),
    "dropout without a second": (lambda: nn.Sequential(linear(), nn.Dropout(), nn.Softmax(-1)), {"0": "gathered"}),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(linear(), nn.ReLU()), nn.Sequential(nn.Sequential(linear()))),
        {"0.0": "colwise", "1.0.0": "rowwise"},
    ),
    "a norm between": (
        lambda: nn.Sequential(linear(), nn.LayerNorm(4), linear(4, 6)),
        {"0": "gathered", "2": "gathered"},
    ),
    "odd outputs": (lambda: nn.Sequential(linear(4, 3), linear(3, 4)), {"0": "summed", "1": "gathered"}),
    "a norm used twice": (lambda: again(nn.LayerNorm(4)), {"0": "gathered", "2": "gathered", "4": "gathered"}),
    "a function used twice": (lambda: again(nn.ReLU()), {"0": "colwise", "2": "rowwise", "4": "gathered"}),
    "dropout used twice": (lambda: again(nn.Dropout()), {"0": "gathered", "2": "gathered", "4": "gathered"}),
    "shared parameters": (tied, {"2": "gathered"}),
    "a parametrized one": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(linear()), linear()),
        {"1": "gathered"},
    ),
    "other modules": (
        lambda: nn.Sequential(nn.Embedding(4, 4), nn.TransformerEncoderLayer(4, 2, 8), linear()),
        {"2": "gathered"},
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_a_sequential_is_split_by_rule(case):
    model, plan = PLANS[case]
    assert plan_of(model(), None, 2) == plan


class Own(nn.Sequential):
    def forward(self, inputs: Tensor) -> Any:
        return self[0](inputs) * 2


@pytest.mark.parametrize("model", [linear(), Own(linear())])
def test_another_model_must_name_its_layers(model):
    message = rf"takes an nn.Sequential, or a model whose layers Parts.tensor names, got {type(model).__name__}: give"
    with pytest.raises(ConfigurationError, match=message):
        plan_of(model, None, 2)


def test_a_sequential_without_a_layer_to_split_is_refused():
    with pytest.raises(ConfigurationError, match="outputs or inputs are a multiple of 3 workers, got none that are"):
        plan_of(nn.Sequential(linear(), linear()), None, 3)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"0": "colwize"},
            "one of colwise, rowwise, gathered, summed, dropout, got 'colwize' for 0; did you mean 'colwise'",
        ),
        ({"1.linear": "colwise"}, "must name modules of the model, got '1.linear', which it hasn't"),
        ({"2": "colwise"}, "must name an nn.Linear to be colwise, got 2, of class LayerNorm"),
        ({"0": "dropout"}, "must name an nn.Dropout to be dropout, got 0, of class Linear"),
        ({"3": "rowwise"}, "its inputs must be a multiple of 2 workers, got 5 for 3"),
        ({"4": "gathered"}, "its outputs must be a multiple of 2 workers, got 3 for 4"),
        ({"5": "colwise"}, "once in the model and share no parameters, got 5"),
    ],
)
def test_what_can_not_be_split_as_named_is_refused(named, message):
    twice = linear()
    model = nn.Sequential(linear(), nn.Dropout(), nn.LayerNorm(4), linear(5), linear(4, 3), twice, twice)
    with pytest.raises(ConfigurationError, match=message):
        plan_of(model, named, 2)


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.tensor_ranks") as server:
        yield server


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("width", [2, 3])
def test_split_layers_compute_what_whole_ones_do(ranks, width):
    """Outputs, and gradients of parameters and inputs."""
    outcomes = ranks.call(width, "computes", timeout=60.0)
    assert [outcome.result for outcome in outcomes] == [8] * width, outcomes
