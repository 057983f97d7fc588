"""Rates that a user sets, by hand or by a scheduler of torch's, are the rates that a trainer's steps have."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.trainer import Trainer
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import FakeTrial

ROWS, BATCH, EPOCHS = 8, 4, 5
STEPS = EPOCHS * ROWS // BATCH

Make = Callable[[torch.optim.Optimizer], LRScheduler]


def falling_lambda(count: int) -> float:
    return 1 / (count + 2)


def sequential(optimizer: torch.optim.Optimizer) -> LRScheduler:
    first = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 2)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, 3)], [2])


def chained(optimizer: torch.optim.Optimizer) -> LRScheduler:
    first = lr_scheduler.ConstantLR(optimizer, 0.1, 3)
    return lr_scheduler.ChainedScheduler([first, lr_scheduler.ExponentialLR(optimizer, 0.9)], optimizer)


def chain_of_sequences(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return lr_scheduler.ChainedScheduler([sequential(optimizer), lr_scheduler.StepLR(optimizer, 2)], optimizer)


SCHEDULERS: dict[str, Make] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, falling_lambda),
    "LambdaLR from 0": lambda o: lr_scheduler.LambdaLR(o, lambda count: count / 4),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, falling_lambda),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "SequentialLR": sequential,
    "ChainedScheduler of SequentialLR": chain_of_sequences,
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 7, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4, 0.001),
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o, patience=0, cooldown=1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, step_size_up=3),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, [0.3, 0.06], total_steps=STEPS + 1),
    "SWALR": lambda o: SWALR(o, 0.01, anneal_epochs=3),
}


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1)), torch.arange(ROWS) % 2


def made(lr: float = 0.1, tensor: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias], "lr": lr / 5}]
    if tensor:
        groups[1]["lr"] = torch.tensor(lr / 5)
        return model, torch.optim.Adam(groups, lr=torch.tensor(lr), foreach=False)
    return model, torch.optim.SGD(groups, lr=lr, momentum=0.9)


def advance(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


class Scheduled(Trainer):
    """Params: `make`, where it is called (`build` or `__init__`), what steps it (`epoch` or `batch`), and parts."""

    def __init__(self, trial: Any) -> None:
        super().__init__(trial)
        if self.params["where"] == "__init__":
            self.scheduler = self.params["make"](self.optimizer)

    def build(self, params: Mapping[str, Any]) -> Parts:
        model, optimizer = made(params.get("lr", 0.1), params.get("tensor", False))
        if params["where"] == "build":
            self.scheduler = params["make"](optimizer)
        if params["by"] == "batch":
            optimizer.register_step_post_hook(lambda *_: advance(self.scheduler))
        self.rates: list[list[float]] = []
        optimizer.register_step_pre_hook(lambda *_: self.rates.append([float(g["lr"]) for g in optimizer.param_groups]))
        schedule = params.get("schedule")
        return Parts(model, optimizer, functional.cross_entropy, data(), batch_size=BATCH, schedule=schedule)

    def step(self) -> dict[str, float]:
        found = super().step()
        assert found["learning_rate"] == self.rates[-1][0]
        if self.params["by"] == "epoch":
            advance(self.scheduler)
        return found


def stored(state: Any) -> Any:
    """Return a state as a checkpoint brings it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def trained(
    params: Mapping[str, Any], width: int, *, loaded: bool, scaling: Mapping[str, Any] | None = None
) -> tuple[list[list[float]], list[Tensor]]:
    """Return the rates of all steps, and the weights; `loaded` before every epoch but the first."""

    def train(group: Group | None) -> tuple[list[list[float]], list[Tensor]]:
        trainer, rates = Scheduled(FakeTrial(params, group, scaling or {})), []
        for epoch in range(EPOCHS):
            if loaded and epoch > 0:
                state = stored(trainer.state_dict())
                rates += trainer.rates
                trainer = Scheduled(FakeTrial(params, group, scaling or {}))
                trainer.load_state_dict(state)
            trainer.step()
        return rates + trainer.rates, [one.detach() for one in trainer.model.parameters()]

    return train(None) if width == 1 else run_ranks(width, train)[0]


def plain(make: Make, by: str, tensor: bool = False) -> tuple[list[list[float]], list[Tensor]]:
    """Return the same of a loop without a trainer."""
    (model, optimizer), (inputs, targets), rates = made(tensor=tensor), data(), []
    scheduler, shard = make(optimizer), Shard(ROWS, BATCH, 7)
    for epoch in range(EPOCHS):
        for rows in shard.epoch(epoch):
            rates.append([float(group["lr"]) for group in optimizer.param_groups])
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if by == "batch":
                advance(scheduler)
        if by == "epoch":
            advance(scheduler)
    return rates, [one.detach() for one in model.parameters()]


def test_every_scheduler_of_torch_is_tried():
    names = {name.split(" ")[0] for name in SCHEDULERS}
    assert names == {*lr_scheduler.__all__, "SWALR"} - {"LRScheduler"}


@pytest.mark.some_cases(18)
@pytest.mark.parametrize("by", ["epoch", "batch"])
@pytest.mark.parametrize("where", ["build", "__init__"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_sets_the_rates_that_it_sets_in_a_plain_loop(name: str, where: str, by: str) -> None:
    rates, weights = plain(SCHEDULERS[name], by)
    for loaded in (False, True):
        found, ended = trained({"make": SCHEDULERS[name], "where": where, "by": by}, 1, loaded=loaded)
        assert found == rates
        assert all(map(torch.equal, ended, weights))


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("by", ["epoch", "batch"])
@pytest.mark.parametrize("where", ["build", "__init__"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_on_two_workers_a_scheduler_sets_the_same_rates(name: str, where: str, by: str) -> None:
    rates, weights = plain(SCHEDULERS[name], by)
    for loaded in (False, True):
        found, ended = trained({"make": SCHEDULERS[name], "where": where, "by": by}, 2, loaded=loaded)
        assert found == rates
        assert all(map(torch.allclose, ended, weights))


@pytest.mark.parametrize("by", ["epoch", "batch"])
@pytest.mark.parametrize("name", ["LinearLR", "ExponentialLR", "OneCycleLR", "SequentialLR"])
def test_a_rate_that_is_a_tensor_is_set_as_in_a_plain_loop(name: str, by: str) -> None:
    params = {"make": SCHEDULERS[name], "where": "build", "by": by, "tensor": True}
    for loaded in (False, True):
        found, ended = trained(params, 1, loaded=loaded)
        rates, weights = plain(SCHEDULERS[name], by, tensor=True)
        assert found == rates
        assert all(map(torch.equal, ended, weights))


def halving(epoch: float) -> float:
    return 1 / (1 + epoch)


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("by", ["epoch", "batch"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_multiplies_what_a_scheduler_sets(name: str, by: str) -> None:
    params = {"make": SCHEDULERS[name], "where": "build", "by": by, "schedule": halving}
    rates, _ = plain(SCHEDULERS[name], by)
    for loaded in (False, True):
        found, _ = trained(params, 1, loaded=loaded)
        assert found == [[rate * halving(step * BATCH / ROWS) for rate in own] for step, own in enumerate(rates)]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("by", ["epoch", "batch"])
@pytest.mark.parametrize("name", ["LinearLR", "OneCycleLR", "ReduceLROnPlateau"])
def test_scaling_multiplies_what_a_scheduler_sets(name: str, by: str) -> None:
    params = {"make": SCHEDULERS[name], "where": "build", "by": by}
    scaling = {"batch": "per_worker", "warmup_epochs": 2}
    for loaded in (False, True):
        found, _ = trained(params, 2, loaded=loaded, scaling=scaling)  # a step has all rows
        counts = range(EPOCHS)
        rates = plain(SCHEDULERS[name], "batch")[0][:EPOCHS]
        assert found == [[rate * min(1 + count / 2, 2.0) for rate in rates[count]] for count in counts]


@pytest.mark.parametrize("factor", [1.0, 0.0, 3.0])
def test_a_rate_that_is_set_before_an_epochs_first_step_holds(factor: float) -> None:
    class ByHand(Scheduled):
        def step(self) -> dict[str, float]:
            for group in self.optimizer.param_groups:
                group["lr"] = 0.01 * (self.epoch + 1)
            return Trainer.step(self)

    state, told = None, []
    params = {"make": SCHEDULERS["ConstantLR"], "where": "build", "by": "epoch", "schedule": lambda _: factor}
    for _ in range(4):
        trainer = ByHand(FakeTrial(params))
        if state is not None:
            trainer.load_state_dict(state)
        told += [trainer.step()["learning_rate"] for _ in range(2)]
        state = stored(trainer.state_dict())
        assert state["optimizer"]["param_groups"][0]["lr"] == 0.01 * trainer.epoch
    assert told == [0.01 * (epoch + 1) * factor for epoch in range(8)]


def test_a_rate_that_is_set_within_a_step_is_refused_where_it_is_multiplied() -> None:
    def build(schedule: Any) -> Scheduled:
        trainer = Scheduled(FakeTrial(CONSTANT | {"schedule": schedule}))
        group = trainer.optimizer.param_groups[0]
        trainer.optimizer.register_step_pre_hook(lambda *_: group.update(lr=0.5))
        return trainer

    assert build(None).step()["learning_rate"] == 0.5
    with pytest.raises(ConfigurationError, match=r"set between two epochs, .* got 0.5 set within a step, for"):
        build(lambda _: 0.25).step()


CONSTANT = {"make": lambda o: lr_scheduler.ConstantLR(o, 1.0), "where": "build", "by": "epoch"}


def test_velocities_that_have_the_rate_in_them_follow_a_scheduler() -> None:
    class Large(Trainer):
        def build(self, params: Mapping[str, Any]) -> Parts:
            model = made()[0]
            optimizer = LARS(model.parameters(), lr=0.4, trust=0.1)
            self.scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
            return Parts(model, optimizer, functional.cross_entropy, data(), batch_size=BATCH)

        def step(self) -> dict[str, float]:
            found = super().step()
            self.scheduler.step()
            return found

    (model, _), (inputs, targets), shard = made(), data(), Shard(ROWS, BATCH, 7)
    optimizer = LARS(model.parameters(), lr=0.4, trust=0.1)
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.4 * 0.5**epoch
        if epoch > 0:
            for kept in optimizer.state.values():
                kept["momentum_buffer"] *= 0.5
        for rows in shard.epoch(epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for loaded in (False, True):
        trainer = Large(FakeTrial())
        for _ in range(EPOCHS):
            trainer.step()
            if loaded:
                state, trainer = stored(trainer.state_dict()), Large(FakeTrial())
                trainer.load_state_dict(state)
        assert all(map(torch.equal, trainer.model.parameters(), model.parameters()))


@pytest.mark.parametrize("by", ["epoch", "batch"])
@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "ReduceLROnPlateau"])
def test_a_fork_goes_on_with_the_rates_of_its_own_scheduler(name: str, by: str) -> None:
    params = {"make": SCHEDULERS[name], "where": "build", "by": by}
    parent = Scheduled(FakeTrial(params | {"make": lambda o: lr_scheduler.ConstantLR(o, 0.9), "lr": 0.7}))
    for _ in range(2):
        parent.step()
    fork = Scheduled(FakeTrial(params, parent=0))
    fork.load_state_dict(stored(parent.state_dict()))
    for _ in range(2, EPOCHS):
        fork.step()
    assert fork.rates == plain(SCHEDULERS[name], by)[0][2 * ROWS // BATCH :]


def test_a_forks_scheduler_that_follows_a_metric_begins_anew() -> None:
    params = {"make": SCHEDULERS["ReduceLROnPlateau"], "where": "build", "by": "epoch"}
    parent = Scheduled(FakeTrial(params | {"lr": 0.7}))
    for _ in range(3):
        parent.step()
    fork = Scheduled(FakeTrial(params, parent=0))
    fork.load_state_dict(stored(parent.state_dict()))
    assert fork.step()["learning_rate"] == 0.1
    assert fork.scheduler.best == 1.0


def test_a_scheduler_that_nobody_would_save_is_refused() -> None:
    class Hidden(Trainer):
        def build(self, params: Mapping[str, Any]) -> Parts:
            model, optimizer = made()
            scheduler = lr_scheduler.StepLR(optimizer, 1)
            optimizer.register_step_post_hook(lambda *_: scheduler.step())
            return Parts(model, optimizer, functional.cross_entropy, data())

    class Saving(Hidden):
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict()

    with pytest.raises(ConfigurationError, match=r"must be an attribute of the trainer, .* none of this Hidden is"):
        Hidden(FakeTrial()).state_dict()
    assert "schedulers" not in Saving(FakeTrial()).state_dict()


@pytest.mark.parametrize("lost", [True, False])
def test_a_state_of_other_schedulers_is_refused(lost: bool) -> None:
    trainer = Scheduled(FakeTrial(CONSTANT))
    state = trainer.state_dict()
    if lost:
        del state["schedulers"]
    else:
        del trainer.scheduler
    with pytest.raises(ConfigurationError, match="have the schedulers that its state was saved with"):
        trainer.load_state_dict(state)


def test_servers_that_step_a_scheduler_refuse() -> None:
    params = {"make": SCHEDULERS["LinearLR"], "where": "build"}

    def work(by: str) -> Callable[[Group], float]:
        parallel = {"strategy": "parameter_server"}

        def train(group: Group) -> float:
            trainer = Scheduled(FakeTrial(params | {"by": "never"}, group, parallel=parallel))
            if by == "batch":
                trainer.optimizer.register_step_post_hook(lambda *_: advance(trainer.scheduler))
            Trainer.step(trainer)
            advance(trainer.scheduler)
            return Trainer.step(trainer)["learning_rate"]

        return train

    assert run_ranks(2, work("epoch")) == [plain(SCHEDULERS["LinearLR"], "epoch")[0][2][0]] * 2
    problems: list[str] = []

    def refused(group: Group) -> None:
        try:
            work("batch")(group)
        except Exception as error:
            problems.append(str(error))

    run_ranks(2, refused)  # the server says why, and the worker perhaps earlier that the server is gone
    assert any("parameter_server can't be used with a scheduler that a hook of" in problem for problem in problems)
