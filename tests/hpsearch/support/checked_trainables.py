"""Trainables that `hpsearch check` finds right or wrong, as users write them: tests copy this file."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler

from hpsearch_trainers import Trainer

ROWS = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
SUMS = ROWS.sum(1, keepdim=True)
CONFIG: dict[str, Any] = {"momentum": 0.9, "width": 8}
SEEN: list[float] = []
UNSEEDED = torch.Generator()
UNSEEDED.seed()


class Parts:
    """A model, its optimizer and its schedule."""

    def __init__(self, lr: float, width: int = 8, momentum: float = 0.9) -> None:
        self.model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum)
        self.schedule: LRScheduler = ExponentialLR(self.optimizer, 0.5)

    def epoch(self, generator: torch.Generator | None = None) -> float:
        total = 0.0
        for rows in torch.randperm(96, generator=generator).split(32):  # type: ignore[no-untyped-call]
            self.optimizer.zero_grad()
            loss = functional.mse_loss(self.model(ROWS[rows]), SUMS[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            total += float(loss)
        self.schedule.step()
        return total

    def state(self) -> dict[str, Any]:
        names = ("model", "optimizer", "schedule")
        return {name: getattr(self, name).state_dict() for name in names}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)


def right(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch()}, checkpoint=parts.state)


def timed(trial: Any) -> None:
    """Right, though it reports and saves what it measures with a clock."""
    parts = Parts(trial.params["lr"])
    if trial.checkpoint is not None:
        parts.load({name: value for name, value in trial.checkpoint.items() if name != "clock"})
    for _ in trial.iterations():
        loss, clock = parts.epoch(), time.perf_counter()
        trial.report({"loss": loss, "clock": clock}, checkpoint=lambda clock=clock: {**parts.state(), "clock": clock})


def saves_nothing(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch()})


def forgets_optimizer(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    if trial.checkpoint is not None:
        parts.model.load_state_dict(trial.checkpoint["model"])
        parts.schedule.load_state_dict(trial.checkpoint["schedule"])
        parts.optimizer.param_groups[0]["lr"] = trial.checkpoint["lr"]
    for _ in trial.iterations():
        loss = parts.epoch()
        lr = parts.optimizer.param_groups[0]["lr"]
        state = {"model": parts.model.state_dict(), "schedule": parts.schedule.state_dict(), "lr": lr}
        trial.report({"loss": loss}, checkpoint=state)


def forgets_rate(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
        parts.optimizer.param_groups[0]["lr"] = trial.params["lr"]
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch()}, checkpoint=parts.state)


def forgets_schedule(trial: Any) -> None:
    """The rate is that of the optimizer, until the schedule sets it."""
    parts = Parts(trial.params["lr"])
    parts.schedule = LambdaLR(parts.optimizer, lambda epoch: 1 / (1 + epoch))
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
    for _ in trial.iterations():
        loss = parts.epoch()
        state = {name: value for name, value in parts.state().items() if name != "schedule"}
        trial.report({"loss": loss}, checkpoint=state)


def forgets_order(trial: Any) -> None:
    parts, generator = Parts(trial.params["lr"]), torch.Generator().manual_seed(trial.seed)
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch(generator)}, checkpoint=parts.state)


def ignores_checkpoint(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch()}, checkpoint=parts.state)


def own_loop_ignores_checkpoint(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    for _ in range(9):
        trial.report({"loss": parts.epoch()}, checkpoint=parts.state)


def own_loop(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
    for _ in range(trial.start, 5):
        trial.report({"loss": parts.epoch()}, checkpoint=parts.state)


def depends_on_end(trial: Any) -> None:
    parts = Parts(trial.params["lr"] / trial.end)
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch()}, checkpoint=parts.state)


def leaks_config(trial: Any) -> None:
    """Updates a default in place, for the next trial too."""
    CONFIG["momentum"] *= trial.params["lr"]
    parts = Parts(trial.params["lr"], momentum=CONFIG["momentum"])
    parts_of(trial, parts)


def careless(trial: Any) -> None:
    """Leaks a rate to the next trial, and forgets its optimizer."""
    CONFIG["lr"] = trial.params["lr"] + CONFIG.get("lr", 0.0)
    parts = Parts(CONFIG["lr"])
    if trial.checkpoint is not None:
        parts.model.load_state_dict(trial.checkpoint["model"])
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch()}, checkpoint=lambda: {"model": parts.model.state_dict()})


@functools.cache
def cached_rate() -> float:
    """The rate of the first trial that asks."""
    return float(os.environ["RATE"])


def leaks_cache(trial: Any) -> None:
    os.environ["RATE"] = str(trial.params["lr"])
    parts_of(trial, Parts(cached_rate()))


def parts_of(trial: Any, parts: Parts) -> None:
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch()}, checkpoint=parts.state)


def unseeded(trial: Any) -> None:
    parts = Parts(trial.params["lr"])
    if trial.checkpoint is not None:
        parts.load(trial.checkpoint)
    for _ in trial.iterations():
        trial.report({"loss": parts.epoch(UNSEEDED)}, checkpoint=parts.state)


def fails_restored(trial: Any) -> None:
    if trial.start > 0:
        raise ValueError("there is no way back")
    right(trial)


def fails(trial: Any) -> None:
    raise ValueError("not today")


def hangs(trial: Any) -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("hanging.part").write_text(f"{os.getpid()} {child.pid}")
    Path("hanging.part").rename("hanging")
    while True:
        time.sleep(0.01)


def dies(trial: Any) -> None:
    os.abort()


class Right:
    def __init__(self, trial: Any) -> None:
        self.parts = Parts(trial.params["lr"])

    def step(self) -> dict[str, float]:
        return {"loss": self.parts.epoch()}

    def state_dict(self) -> dict[str, Any]:
        return self.parts.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load(state)


class ForgetsOptimizer(Right):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.load({name: value for name, value in state.items() if name != "optimizer"})


class Leaks(Right):
    def __init__(self, trial: Any) -> None:
        SEEN.append(trial.params["lr"])
        self.parts = Parts(SEEN[0])


def _built(params: Mapping[str, Any], momentum: float = 0.9) -> Any:
    from hpsearch_trainers import Parts as TrainerParts

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=momentum)
    return TrainerParts(model, optimizer, functional.mse_loss, train=(ROWS, SUMS), batch_size=32)


class RightTrainer(Trainer):
    def build(self, params: Mapping[str, Any]) -> Any:
        return _built(params)


class LosesState(Trainer):
    """Halves the rate of each epoch, by a count that no checkpoint holds."""

    count = 0

    def build(self, params: Mapping[str, Any]) -> Any:
        return _built(params)

    def step(self) -> dict[str, float]:
        self.count += 1
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(1 - 0.1 * self.count)
        return super().step()


class LeaksTrainer(Trainer):
    def build(self, params: Mapping[str, Any]) -> Any:
        CONFIG["momentum"] *= params["lr"]
        return _built(params, CONFIG["momentum"])
