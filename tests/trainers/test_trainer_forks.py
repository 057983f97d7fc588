"""A fork's optimizer goes on with its parent's state where that is what it keeps, and begins anew where it isn't."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.forks import load_from_other
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.rates import Rates
from hpsearch_trainers.weight_decay import decay_groups
from tests.trainers.test_trainer import FakeTrial, Small, data, mlp

Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": torch.optim.SGD,
    "SGD with momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "Adam with amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "Adam with a tensor": lambda parameters, lr: torch.optim.Adam(parameters, lr=torch.tensor(lr)),
    "AdamW": torch.optim.AdamW,
    "NAdam": torch.optim.NAdam,
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "ASGD": torch.optim.ASGD,
    "RMSprop": torch.optim.RMSprop,
    "RMSprop with momentum": partial(torch.optim.RMSprop, momentum=0.9),
    "centered RMSprop": partial(torch.optim.RMSprop, centered=True),
    "Rprop": torch.optim.Rprop,
    "LARS": LARS,
    "LAMB": LAMB,
}


def made(make: Make, lr: float = 0.01, parent: int | None = None, groups: Any = None) -> Small:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return make(groups(model) if groups is not None else model.parameters(), lr=lr)

    return Small(FakeTrial({"optimizer": optimizer}, parent=parent))


def fork(make: Make, state: Any, **options: Any) -> Small:
    trainer = made(make, 0.02, parent=0, **options)
    trainer.load_state_dict(copy.deepcopy(state))
    return trainer


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    """Return a state after one epoch with each optimizer."""
    found = {}
    for name, make in OPTIMIZERS.items():
        trainer = made(make)
        trainer.step()
        found[name] = trainer.state_dict()
    return found


USUAL = ("SGD with momentum", "Adam", "Adam with amsgrad", "RMSprop with momentum", "Adafactor", "LAMB")


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    "child", [pytest.param(name, marks=() if name in USUAL else pytest.mark.exhaustive) for name in OPTIMIZERS]
)
def test_a_fork_goes_on_from_any_parent(child, states):
    """From one whose state it can't use, it does as with the parent's weights and an optimizer that is new."""
    fresh = {}
    for name, state in states.items():
        trainer = fork(OPTIMIZERS[child], state)
        anew = made(OPTIMIZERS[child], 0.02)
        anew.model.load_state_dict(copy.deepcopy(state["model"]))
        anew.epoch = 1
        fresh[name] = trainer.step()["loss"] == anew.step()["loss"]
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
    own = states[child]["optimizer_class"]
    assert all(fresh[name] for name, state in states.items() if state["optimizer_class"] != own)
    assert not fresh[child] or child == "SGD"


@pytest.mark.parametrize(
    ("parent", "child", "goes_on"),
    [
        ("Adam", "Adam with amsgrad", False),
        ("Adam with amsgrad", "Adam", True),
        ("Adam", "Adam with a tensor", True),
        ("Adam with a tensor", "Adam", True),
        ("RMSprop", "RMSprop with momentum", False),
        ("RMSprop", "centered RMSprop", False),
        ("centered RMSprop", "RMSprop", True),
        ("Adam", "SGD with momentum", False),
        ("SGD with momentum", "Adam", False),
        ("LARS", "SGD with momentum", False),  # whose velocity of the same name has no rate in it
        ("LAMB", "Adam", False),
        *((name, name, True) for name in OPTIMIZERS if name != "SGD"),
    ],
)
def test_what_of_a_parents_state_goes_on(parent, child, goes_on, states, capsys):
    trainer = fork(OPTIMIZERS[child], states[parent])
    told = "begins anew for 4 parameters" in capsys.readouterr().out
    assert (bool(trainer.optimizer.state_dict()["state"]), told) == (goes_on, not goes_on)


def test_what_settings_no_longer_use_is_dropped(states):
    trainer = fork(torch.optim.Adam, states["Adam with amsgrad"])
    assert "max_exp_avg_sq" not in trainer.optimizer.state_dict()["state"][0]
    assert not any(fork(torch.optim.SGD, states["SGD with momentum"]).optimizer.state_dict()["state"].values())


def test_a_fork_with_other_groups_begins_anew(states, capsys):
    def groups(model: nn.Module) -> Any:
        return decay_groups(model, 1e-4, biases=False)

    trainer = fork(torch.optim.Adam, states["Adam"], groups=groups)
    assert "begins anew for 4 parameters" in capsys.readouterr().out
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [1e-4, 0.0]
    trainer.step()


def test_a_moving_average_begins_with_the_model_of_a_parent_without_one(states):
    trainer = Small(FakeTrial({"average": 0.9}, parent=0))
    trainer.load_state_dict(copy.deepcopy(states["SGD"]))
    parent = made(torch.optim.SGD)
    parent.load_state_dict(copy.deepcopy(states["SGD"]))
    assert trainer.validate() == parent.validate()


def test_a_trials_own_state_has_its_moving_average(states):
    with pytest.raises(ConfigurationError, match="without its `average`, which would begin anew: keep that entry"):
        Small(FakeTrial({"average": 0.9})).load_state_dict(copy.deepcopy(states["SGD"]))


def test_a_trials_own_state_is_of_its_own_optimizer(states):
    with pytest.raises(
        ConfigurationError, match="must be of the class that its state was saved with, Adam, got SGD: put"
    ):
        made(torch.optim.SGD).load_state_dict(copy.deepcopy(states["Adam"]))


def test_a_state_of_before_classes_were_saved_is_read(states):
    former = {name: value for name, value in copy.deepcopy(states["Adam"]).items() if name != "optimizer_class"}
    trainer = made(torch.optim.Adam)
    trainer.load_state_dict(former)
    assert trainer.optimizer.state_dict()["state"]


def half(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(model.bfloat16().parameters(), lr=0.01)


def in_half(parent: int | None = None) -> Small:
    inputs, targets = data()
    options = {"optimizer": half, "train": (inputs.bfloat16(), targets), "validation": None}
    return Small(FakeTrial(options, parent=parent))


@pytest.mark.parametrize("parent", [None, 0])
def test_what_is_kept_in_another_dtype_than_weights_goes_on_in_that(parent):
    first, second = in_half(), in_half(parent)
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert [second.step()["loss"] for _ in range(2)] == [first.step()["loss"] for _ in range(2)]
    (weight, *_), (other, *_) = first.model.parameters(), second.model.parameters()
    assert torch.equal(weight, other)
    assert first.optimizer.state[weight]["mu_product"].dtype is torch.float32
    assert torch.equal(first.optimizer.state[weight]["mu_product"], second.optimizer.state[other]["mu_product"])


def test_what_is_kept_in_the_weights_dtype_has_that_of_the_forks(states):
    optimizer = torch.optim.NAdam(mlp().double().parameters(), lr=0.02)
    Rates(optimizer)
    assert load_from_other(optimizer, states["NAdam"]["optimizer"]) == 0
    kept = next(iter(optimizer.state.values()))
    dtypes = {"step": torch.float32, "mu_product": torch.float32, "exp_avg": torch.float64, "exp_avg_sq": torch.float64}
    assert {name: value.dtype for name, value in kept.items()} == dtypes


@pytest.mark.parametrize("parent", [None, 0])
def test_a_state_may_be_loaded_more_than_once(parent, states):
    losses = []
    for _ in range(2):
        trainer = made(OPTIMIZERS["Adam"], parent=parent)
        trainer.load_state_dict(states["Adam"])
        losses.append([trainer.step()["loss"] for _ in range(2)])
    assert losses[0] == losses[1]
