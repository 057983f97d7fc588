"""What a trainer measures of its model, beside what that is worth."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.measures import latency, parameters
from tests.trainers.test_trainer import FEATURES, correct, curve, mlp


def test_parameters_are_those_that_are_trained() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    assert parameters(model) == 3 * 4 + 4 + 2 * 4 + 4 * 2
    model[0].weight.requires_grad_(False)
    assert parameters(model) == 4 + 2 * 4 + 4 * 2


class Counting(nn.Module):
    """Counts its calls, and notes what held in each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[tuple[int, ...], bool]] = []

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.calls.append((tuple(len(one) for one in inputs), torch.is_grad_enabled()))
        return inputs[0]


def test_latency_calls_the_model_without_gradients_as_often_as_it_is_told() -> None:
    model = Counting()
    assert latency((torch.zeros(3), torch.zeros(2)), runs=4, warmup=2)(model) > 0
    assert model.calls == [((3, 2), False)] * 6
    with pytest.raises(ValueError, match="runs must be at least 1 and warmup at least 0, got 0 and 5"):
        latency(torch.zeros(1), runs=0)


@pytest.mark.parametrize("options", [{}, {"validation": None}, {"average": 0.9}])
def test_a_trainer_reports_what_is_measured_of_the_model_in_eval_mode_and_trains_on_as_before(options) -> None:
    modes = []

    def mode(model: nn.Module) -> float:
        modes.append(model.training)
        return parameters(model)

    measured = curve(3, measures={"size": mode, "bias": lambda model: float(model[0].bias[0])}, **options)
    plain = curve(3, **options)
    assert modes == [False] * 3
    assert [epoch["size"] for epoch in measured] == [parameters(mlp())] * 3
    assert len({epoch["bias"] for epoch in measured}) == 3
    waits = ("size", "bias", "data_wait")
    assert [{k: v for k, v in epoch.items() if k not in waits} for epoch in measured] == [
        {k: v for k, v in epoch.items() if k not in waits} for epoch in plain
    ]


def test_on_several_workers_it_is_the_mean() -> None:
    calls = itertools.count()
    (epoch,) = curve(1, width=3, measures={"turn": lambda model: float(next(calls))})
    assert epoch["turn"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measures", "words"),
    [
        ([parameters], "measures must be functions by name, got list"),
        ({"loss": parameters}, "a metric must have a name of its own, got 'loss', which a Trainer reports"),
        ({"accuracy": parameters}, "a metric must have a name of its own, got 'accuracy', which is a metric, too"),
    ],
)
def test_measures_that_cant_be_used(measures, words) -> None:
    with pytest.raises(ConfigurationError, match=words):
        curve(1, metrics={"accuracy": correct}, measures=measures)


def test_the_inputs_of_a_latency_may_be_one_tensor() -> None:
    assert latency(torch.zeros(2, FEATURES))(mlp()) > 0
