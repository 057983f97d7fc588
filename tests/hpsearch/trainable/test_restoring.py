"""A fork goes on with its parent's moments under settings of its own; every other trial as it was saved."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch.optim import lr_scheduler

import hpsearch
from hpsearch.errors import TrainableError
from hpsearch.trainable.current import set_current_trial
from hpsearch.trainable.running_trial import RunningTrial
from tests.trainers.test_torch_schedulers import SCHEDULERS, advance, made


@pytest.fixture(params=[None, 3])
def parent(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """Run a trial, with or without a parent to begin from."""
    trial = cast(RunningTrial, types.SimpleNamespace(parent=request.param))
    outer = set_current_trial(trial)
    yield request.param
    set_current_trial(outer)


def trained(name: str, lr: float, epochs: int) -> tuple[torch.optim.Optimizer, Any, list[list[float]]]:
    """Return an optimizer, its scheduler and the rates of its steps."""
    (_, optimizer), rates = made(lr), []
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(epochs):
        rates.append(step(optimizer))
        advance(scheduler)
    return optimizer, scheduler, rates


def step(optimizer: torch.optim.Optimizer) -> list[float]:
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return rates


@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_optimizer_and_its_scheduler_go_on(parent: int | None, name: str) -> None:
    lr = 0.1 if parent is None else 0.3
    former, its_scheduler, _ = trained(name, 0.1, 3)
    states = copy.deepcopy((former.state_dict(), its_scheduler.state_dict()))
    optimizer, scheduler, _ = trained(name, lr, 0)
    hpsearch.restore(optimizer, states[0])
    hpsearch.restore(scheduler, states[1])
    rates = []
    for _ in range(3):
        rates.append(step(optimizer))
        advance(scheduler)
    if name == "ReduceLROnPlateau" and parent is not None:
        assert rates == trained(name, lr, 3)[2]
    else:
        assert rates == trained(name, lr, 6)[2][3:]
    assert all("momentum_buffer" in kept for kept in optimizer.state.values())


@pytest.mark.parametrize("name", ["StepLR", "ExponentialLR", "LambdaLR"])
def test_without_its_scheduler_a_forks_rate_stands_as_far_from_its_beginning(name: str) -> None:
    outer = set_current_trial(cast(RunningTrial, types.SimpleNamespace(parent=3)))
    try:
        former, _, _ = trained(name, 0.1, 3)
        optimizer, _, _ = trained(name, 0.3, 0)
        hpsearch.restore(optimizer, former.state_dict())
        assert optimizer.param_groups[0]["initial_lr"] == 0.3
        assert step(optimizer) == pytest.approx(trained(name, 0.3, 4)[2][3])
    finally:
        set_current_trial(outer)


def test_a_scheduler_that_is_made_afterwards_finds_the_initial_rate(parent: int | None) -> None:
    former, _, _ = trained("ExponentialLR", 0.1, 3)
    lr = 0.1 if parent is None else 0.3
    _, optimizer = made(lr)
    hpsearch.restore(optimizer, former.state_dict())
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda count: 0.7**count, last_epoch=2)
    assert [float(rate) for rate in scheduler.base_lrs] == [lr, lr / 5]


def test_all_settings_of_a_fork_are_its_own(parent: int | None) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    former = torch.optim.Adam([weight], lr=0.1, betas=(0.8, 0.9), weight_decay=0.1)
    step(former)
    optimizer = torch.optim.Adam([weight], lr=0.2, betas=(0.5, 0.6), weight_decay=0.2)
    hpsearch.restore(optimizer, former.state_dict())
    found = optimizer.param_groups[0]
    expected = (0.1, (0.8, 0.9), 0.1) if parent is None else (0.2, (0.5, 0.6), 0.2)
    assert (found["lr"], found["betas"], found["weight_decay"]) == expected
    assert torch.equal(optimizer.state[weight]["exp_avg"], former.state[weight]["exp_avg"])


def test_what_a_fork_cant_use_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    former = torch.optim.Adam([weight], lr=0.1)
    step(former)
    outer = set_current_trial(cast(RunningTrial, types.SimpleNamespace(parent=3)))
    try:
        optimizer = torch.optim.SGD([weight], lr=0.2, momentum=0.9)
        hpsearch.restore(optimizer, former.state_dict())
    finally:
        set_current_trial(outer)
    assert step(optimizer) == [0.2]
    assert "begins anew for 1 parameters" in capsys.readouterr().out


def test_outside_a_sweep_a_state_is_loaded_as_it_is() -> None:
    former, its_scheduler, _ = trained("StepLR", 0.1, 3)
    optimizer, scheduler, _ = trained("StepLR", 0.3, 0)
    hpsearch.restore(optimizer, former.state_dict())
    hpsearch.restore(scheduler, its_scheduler.state_dict())
    assert optimizer.state_dict()["param_groups"] == former.state_dict()["param_groups"]
    assert scheduler.state_dict() == its_scheduler.state_dict()


def test_anything_else_is_refused() -> None:
    with pytest.raises(TrainableError, match=r"restore must get an optimizer or a scheduler of torch's, got Linear"):
        hpsearch.restore(cast(Any, torch.nn.Linear(1, 1)), {})
