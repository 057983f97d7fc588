"""What a rank of any strategy does in a test of the suite; called on the ranks of process_ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
from torch import nn

from hpsearch_comm import CommError, Group
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.strategies import strategy_of
from tests.trainers.strategies.problems import ODD, Problem, Watch, rows_of
from tests.trainers.test_trainer import FakeTrial


def trains(
    group: Group | None,
    parallel: Mapping[str, Any],
    odd: str = "plain",
    epochs: int = 2,
    load: str | None = None,
    save: str | None = None,
) -> list[dict[str, float]]:
    """Train; return each epoch's metrics.

    Args:
        group: The ranks.
        parallel: The trial's.
        odd: One of `ODD`.
        epochs: More to train.
        load: File with the state to go on from.
        save: File in which rank 0 leaves the state.
    """
    trainer = Problem(FakeTrial({"odd": odd}, group, ODD[odd].scaling, parallel=parallel))
    if load is not None:
        trainer.load_state_dict(torch.load(load))
    metrics = [trainer.step() for _ in range(epochs)]
    if save is not None and (group is None or group.rank == 0):
        torch.save(trainer.state_dict(), save)
    return metrics


def _freezes(trainer: Any) -> None:
    trainer.model[0].requires_grad_(False)


def _replaces_the_model(trainer: Any) -> None:
    trainer.model = ODD["plain"].model()
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.05, momentum=0.9)


def _replaces_the_optimizer(trainer: Any) -> None:
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.05, momentum=0.9)


def _forgets(trainer: Any) -> None:
    trainer.optimizer.state.clear()


def _widens_a_layer(trainer: Any) -> None:
    held = trainer.optimizer.param_groups[0]["params"]
    for one in trainer.model[2].parameters():
        trainer.optimizer.state.pop(one, None)
    trainer.model[2] = nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 8))
    held[2:4] = trainer.model[2].parameters()


def _trains_another_layer(trainer: Any) -> None:
    held = trainer.optimizer.param_groups[0]["params"]
    rest, held[:] = held[:2], held[2:]
    for one in rest:
        trainer.optimizer.state.pop(one, None)
    trainer.optimizer.add_param_group({"params": rest, "lr": 0.02})


def _puts_another_function(trainer: Any) -> None:
    trainer.model[1] = nn.Softmax(dim=1)  # of all features, where tanh was of each


CHANGES: dict[str, Callable[[Any], Any]] = {
    "freezes": _freezes,
    "thaws": lambda trainer: trainer.model[0].requires_grad_(True),
    "replaces the model": _replaces_the_model,
    "replaces the optimizer": _replaces_the_optimizer,
    "forgets": _forgets,
    "widens a layer": _widens_a_layer,
    "trains another layer": _trains_another_layer,
    "draws a layer anew": lambda trainer: trainer.model[2].reset_parameters(),
    "puts another function between two layers": _puts_another_function,
}
"""What a user does between two epochs, by name."""


def changes(
    group: Group | None, parallel: Mapping[str, Any], how: str, drawn: bool = False
) -> tuple[list[dict[str, float]], list[float]]:
    """Train, change something between two epochs, and train on; return the metrics, and a sum of each parameter.

    Args:
        group: The ranks.
        parallel: The trial's.
        how: One of `CHANGES`.
        drawn: New weights are drawn from where each rank's random numbers are; else from the same on all.
    """
    trainer: Any = Problem(FakeTrial({}, group, parallel=parallel))
    if how == "thaws":
        trainer.model[0].requires_grad_(False)
    metrics = [trainer.step(), trainer.step()]
    if not drawn:
        torch.manual_seed(11)
    CHANGES[how](trainer)
    metrics.append(trainer.step())
    # Of asynchronous workers with momentum an epoch may be worse than the one before: they are given some more.
    for _ in range(6):
        metrics.append(trainer.step())
        if metrics[-1]["loss"] < max(metrics[0]["loss"], metrics[2]["loss"]):
            break
    return metrics, [float(parameter.detach().sum()) for parameter in trainer.model.parameters()]


class _ByItself(Problem):
    """Has a loop of its own."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        self.own = params["optimizer"]
        return super().build(params)

    def step(self) -> dict[str, float]:
        loss = torch.tensor(0.0)
        optimizer = self.optimizer if self.own is None else self.own(self.model)
        inputs, classes = rows_of(100, 1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = self.parts.loss(self.model(inputs), classes)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {"loss": float(loss.detach())}


class _StepsOf:
    """A class with a step that isn't a trainer."""

    def step(self) -> dict[str, float]:
        return {"loss": 0.0}


class _Mixed(_StepsOf, Problem):
    pass


class _GoesOn(Problem):
    """Takes a step of its own after the epoch."""

    def step(self) -> dict[str, float]:
        metrics = super().step()
        self.optimizer.step()
        return metrics


class _Around(Problem):
    """Does what it may."""

    def step(self) -> dict[str, float]:
        before = self.epoch
        metrics = super().step()
        if self.group is not None:
            self.group.barrier()
        return metrics | self.validate() | {"epochs": self.epoch - before}


class _TwiceAround(_Around):
    def step(self) -> dict[str, float]:
        return super().step() | {"twice": 2.0}


OWN_STEPS: dict[str, tuple[type[Problem], Any]] = {
    "a loop": (_ByItself, None),
    "another optimizer": (_ByItself, lambda model: torch.optim.SGD(model.parameters(), lr=0.1)),
    "mixed in": (_Mixed, None),
    "a step more": (_GoesOn, None),
}
"""Trainers with a step that trains by itself, by name."""


def own_steps(group: Group, parallel: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Train each of `OWN_STEPS`, and save it as the end of a segment does; return what is said of it."""
    said = []
    for name in names:
        kind, optimizer = OWN_STEPS[name]
        trainer = kind(FakeTrial({"optimizer": optimizer}, group, parallel=parallel))
        try:
            trainer.step()
            trainer.state_dict()
        except CommError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


def around(group: Group, parallel: Mapping[str, Any]) -> list[dict[str, float]]:
    """Train with a step that calls that of Trainer; return each epoch's metrics."""
    trainer = _TwiceAround(FakeTrial({}, group, parallel=parallel))
    return [trainer.step() for _ in range(2)]


def validates(odd: str, load: str) -> dict[str, float]:
    """Return the validation metrics of a state on one rank."""
    trainer = Problem(FakeTrial({"odd": odd}, scaling=ODD[odd].scaling))
    trainer.load_state_dict(torch.load(load))
    return trainer.validate()


def validates_again(group: Group, parallel: Mapping[str, Any], odd: str) -> list[dict[str, float]]:
    """Train for two epochs; return the last one's metrics, and what this rank's trainer validates to afterwards."""
    trainer = Problem(FakeTrial({"odd": odd}, group, parallel=parallel))
    trainer.step()
    return [trainer.step(), trainer.validate()]


def working(group: Group, parallel: Mapping[str, Any]) -> bool:
    """Say whether this rank trains."""
    return strategy_of(parallel, group).trains


def disturbed(group: Group, parallel: Mapping[str, Any], how: str, victim: int) -> list[dict[str, float]]:
    """Train for three epochs, in the midst of which something happens to a rank; return each epoch's metrics.

    Args:
        group: The ranks.
        parallel: The trial's.
        how: `killed`: rank 0 kills the victim; `raises`: a layer of the victim's does; `slow`: each takes it as long as
            many others.
        victim: A rank; one that trains, where it raises or is slow.
    """
    pids = group.allgather_object(os.getpid())

    def kill() -> None:
        os.kill(pids[victim], signal.SIGKILL)

    def fail() -> None:
        raise ValueError("this layer can't be computed")

    def dawdle() -> None:
        square = torch.ones(300, 300)
        square @ square

    watching = 0 if how == "killed" else victim
    watch = {"killed": Watch(60, kill), "raises": Watch(60, fail), "slow": Watch(1, dawdle, on=True)}[how]
    trainer = Problem(FakeTrial({"watch": watch if group.rank == watching else None}, group, parallel=parallel))
    return [trainer.step() for _ in range(3)]
