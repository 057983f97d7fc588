"""What a user puts in place of something else between two epochs, or sets anew, is trained from there on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import MODELS, FakeTrial, Small, building, of


def made(kind: str = "mlp", seed: int = 11) -> nn.Module:
    with building:  # ranks are threads here, which share torch's generator
        torch.manual_seed(seed)
        return MODELS[kind]()


def sgd(parameters: Any, lr: float = 0.02) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def falling(epoch: float) -> float:
    return 1.0 / (1.0 + epoch)


LAST = falling(1 + 10 / 11)
"""By what the rate is multiplied in the last step of the second epoch."""


def another_optimizer(trainer: Small) -> None:
    trainer.optimizer = sgd(trainer.model.parameters())


def one_more_group(trainer: Small) -> None:
    held = trainer.optimizer.param_groups[0]["params"]
    rest, held[:] = held[:2], held[2:]
    for one in rest:
        trainer.optimizer.state.pop(one, None)
    trainer.optimizer.add_param_group({"params": rest, "lr": 0.02})


@pytest.mark.parametrize("change", [another_optimizer, one_more_group])
def test_a_new_optimizer_or_group_follows_the_schedule(change: Callable[[Small], None]):
    trainer = Small(FakeTrial({"schedule": falling}))
    trainer.step()
    change(trainer)
    last, rates = trainer.optimizer.param_groups[-1], []
    trainer.optimizer.register_step_pre_hook(lambda *_: rates.append(last["lr"]))
    trainer.step()
    assert rates[-1] == pytest.approx(0.02 * LAST)
    assert last["lr"] == 0.02


@pytest.mark.parametrize("schedule", [None, falling])
@pytest.mark.parametrize("tensor", [False, True])
def test_a_rate_that_is_set_between_two_epochs_holds_and_goes_on_from_a_checkpoint(schedule, tensor):
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.05) if tensor else 0.05)

    options = {"schedule": schedule, "optimizer": adam}
    trainer, other = (Small(FakeTrial(options)) for _ in range(2))
    trainer.step()
    trainer.optimizer.param_groups[0]["lr"] *= 0.1  # its own rate, and not what the schedule has made of it
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    found = trainer.step()
    assert found["learning_rate"] == pytest.approx(0.005 * (LAST if schedule else 1.0))
    assert other.step()["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_the_moving_average_of_another_model_begins_with_it():
    trainer = Small(FakeTrial({"average": 0.9}))
    trainer.step()
    trainer.model = made()
    trainer.optimizer = sgd(trainer.model.parameters(), lr=0.0)
    found = trainer.step()["validation_loss"]
    alone = Small(FakeTrial())
    alone.model = trainer.model
    assert found == pytest.approx(alone.validate()["validation_loss"], rel=1e-6)


def test_the_moving_average_of_the_layers_that_are_left_goes_on():
    trainer = Small(FakeTrial({"average": 0.9}))
    trainer.step()
    averaged: Any = trainer._average
    kept = averaged.module[0].weight.clone()
    layers: Any = trainer.model
    layers[1], layers[2] = nn.Tanh(), nn.Sequential(nn.Linear(16, 7), nn.Linear(7, 5))
    new = layers[2][0].weight.detach().clone()
    trainer.optimizer = sgd(trainer.model.parameters(), lr=0.0)
    trainer.step()
    averaged = trainer._average
    mixed = kept.lerp(layers[0].weight, 1 - 0.9**11)
    assert torch.allclose(averaged.module[0].weight, mixed, atol=1e-6)
    assert torch.allclose(averaged.module[2][0].weight, new, atol=1e-6)
    assert isinstance(averaged.module[1], nn.Tanh)
    assert int(averaged.n_averaged) == 22


@pytest.mark.parametrize("strategy", ["", "allreduce", "parameter_server", "local_sgd", "locked", "pipeline"])
def test_an_optimizer_that_has_a_former_layer_is_refused(strategy):
    def work(group: Group | None) -> None:
        trainer = Small(FakeTrial({}, group, parallel={"strategy": strategy} if strategy else {}))
        trainer.step()
        trainer.model[2] = nn.Linear(16, 5)  # type: ignore[operator]
        trainer.step()

    with pytest.raises(
        ConfigurationError, match=r"got 2 that it doesn't have, .* give the optimizer the parameters of the new ones"
    ):
        run_ranks(2, work) if strategy else work(None)


def test_another_model_is_normalized_by_the_rows_of_all():
    def work(group: Group | None) -> list[float]:
        trainer = Small(FakeTrial({"model": "cnn", "batch_norm": "sync"}, group))
        metrics = [trainer.step()]
        trainer.model = made("cnn")
        trainer.optimizer = sgd(trainer.model.parameters())
        return of([*metrics, trainer.step()], "loss")

    assert run_ranks(2, work)[0] == pytest.approx(work(None), abs=1e-4)
