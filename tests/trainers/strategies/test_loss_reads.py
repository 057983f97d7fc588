"""A loss is computed of the model's output, where other ranks hold weights: one that reads them is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.divided import of_output_alone
from tests.comm.process_ranks import ProcessRanks

INPUTS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, how: Callable[[Any], Tensor], elsewhere: str) -> Tensor:
    """Compute a loss of which one rank may know all but one parameter."""
    held = {id(model.get_parameter(elsewhere))}
    return of_output_alone(how, held, "pipeline")(model(INPUTS))


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "how",
    [
        lambda output: output.sum(),
        lambda output: functional.cross_entropy(output, torch.zeros(6, dtype=torch.int64)),
        lambda output: (output - output.mean(0)).square().mean() + output[:, :1].mean(),
    ],
)
def test_a_loss_of_the_output_alone_is_what_it_was(model, how):
    assert loss_of(model, how, "0.weight").equal(how(model(INPUTS)))


def test_an_output_may_be_the_loss_itself():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    assert loss_of(model, lambda output: output[0], "0.weight").dim() == 0
    total = of_output_alone(lambda output: output, {id(model[0].weight)}, "pipeline")
    assert total(model(INPUTS).sum()).dim() == 0


@pytest.mark.parametrize(("whole", "elsewhere"), [("0.weight", "2.weight"), ("2.bias", "0.bias")])
def test_it_may_read_what_the_rank_has_whole(model, whole, elsewhere):
    def how(output: Tensor) -> Any:
        return output.mean() + model.get_parameter(whole).norm()

    assert loss_of(model, how, elsewhere).equal(how(model(INPUTS)))
    with pytest.raises(ConfigurationError, match="pipeline a loss must be computed of the model's output"):
        loss_of(model, how, whole)


def test_it_is_found_however_far_it_is(model):
    def how(output: Tensor) -> Any:
        weights: Any = model[0].weight.t()[:2].clone()
        for _ in range(5000):
            weights = weights * 1.0
        return (output.mean(0) @ weights).sum()

    with pytest.raises(ConfigurationError, match="leave a penalty on weights to the optimizer"):
        loss_of(model, how, "0.weight")


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.tensor_ranks") as server:
        yield server


@pytest.mark.parametrize("strategy", ["pipeline", "tensor"])
def test_a_trial_with_a_penalty_on_weights_is_refused(ranks, strategy):
    first, last = ranks.call(2, "penalizes", strategy, timeout=60.0)
    assert last.error == "ConfigurationError"
    assert f"under parallel.strategy {strategy} a loss must be computed of the model's output" in last.text
    assert "a loss must be computed of the model's output" in first.text
