"""What a trainer says of parts that it can't use, in place of an error from deep inside torch."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.parts import Parts
from tests.trainers.test_trainer import correct, curve, data

INPUTS, TARGETS = data(20)


@pytest.mark.parametrize(
    ("train", "got"),
    [
        ((INPUTS.numpy(), TARGETS.numpy()), "tuple of ndarray, ndarray"),
        ((INPUTS,), "tuple of Tensor$"),
        (INPUTS, "Tensor$"),
        ((INPUTS, TARGETS, TARGETS), "tuple of Tensor, Tensor, Tensor"),
        ([(INPUTS[0], TARGETS[0])], "list of tuple"),
        (iter(()), "tuple_iterator"),
        (TensorDataset(INPUTS), "tuple of Tensor$"),
    ],
)
def test_data_that_is_no_input_and_target(train, got):
    with pytest.raises(ConfigurationError, match=f"data must be two tensors, .* got {got}"):
        curve(1, train=train)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"validation": data(0)}, "validation data must have at least one row, got 0"),
        ({"metrics": [correct]}, "metrics must be functions by name, got list"),
        ({"metrics": {"validation_loss": correct}}, "a metric must have a name of its own, got 'validation_loss'"),
        ({"optimizer": lambda model: None}, "optimizer must be a torch.optim.Optimizer, .* gives NoneType"),
        ({"optimizer": torch.optim.SGD}, r"optimizer must be .* got the class SGD: create an instance, SGD\(\.\.\.\)"),
        ({"optimizer": nn.CrossEntropyLoss()}, "optimizer must be .* got CrossEntropyLoss: .* in this order"),
        ({"optimizer": None}, "optimizer must be .* got NoneType"),
        (
            {"loss": nn.CrossEntropyLoss},
            r"loss must be a function .* got the class CrossEntropyLoss: create an instance",
        ),
        ({"loss": torch.optim.SGD([INPUTS], lr=0.1)}, "loss must be a function .* got SGD: .* in this order"),
        ({"loss": "cross_entropy"}, "loss must be a function .* got str"),
        (
            {"loss": lambda output, target: correct(output, target).mean().item()},
            "loss must give a tensor, .* got float",
        ),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, r"loss must give one number, .* got the shape \[20\]"),
    ],
)
def test_other_parts(options, words):
    with pytest.raises(ConfigurationError, match=words):
        curve(1, **options)


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.L1Loss(), nn.functional.huber_loss])
def test_a_loss_of_outputs_and_targets_whose_shapes_differ(loss):
    numbers = INPUTS, INPUTS[:, 0]
    with warnings.catch_warnings():
        warnings.resetwarnings()  # of which pytest makes errors
        with pytest.raises(UserWarning, match=r"target size \(torch.Size\(\[20\]\)\) that is different"):
            curve(1, train=numbers, validation=numbers, loss=loss, metrics={})


def test_an_optimizer_of_parameters_that_are_not_the_models():
    centers = nn.Parameter(torch.zeros(2))

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([*model.parameters(), centers], lr=0.1)

    with pytest.raises(
        ConfigurationError, match=r"of the model alone, got 1 that it doesn.t have, .* a part of the model"
    ):
        curve(1, optimizer=optimizer)


def test_a_metric_may_be_a_plain_number():
    plain = {"accuracy": lambda output, target: float(correct(output, target).mean())}
    assert curve(1, metrics=plain)[0]["accuracy"] == pytest.approx(curve(1)[0]["accuracy"])


@pytest.mark.parametrize(
    ("model", "got"), [(nn.Linear, "the class Linear: create an instance"), ((nn.Linear(4, 3),), "tuple")]
)
def test_a_model_that_is_none(model, got):
    with pytest.raises(ConfigurationError, match=f"model must be an nn.Module, got {got}"):
        Parts(model, lambda made: torch.optim.SGD(made.parameters(), lr=0.1), nn.L1Loss(), data(20))
