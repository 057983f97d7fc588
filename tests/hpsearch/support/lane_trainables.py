"""Trainers for lanes, of which one may do what hurts itself, and must not hurt its neighbours."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer

VARIABLE = "HPSEARCH_TEST_LANE"


class Small(Trainer):
    """A small network; `fault` says what is special about it."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make it; `draws` and `settings` depend on what a process has but once."""
        fault, hidden = params["fault"], params["hidden"]
        if fault == "build":
            raise ValueError("there is no such network")
        if fault == "exit":
            raise SystemExit("it leaves")
        if fault == "endless build":
            time.sleep(1000)
        if fault == "settings":
            os.environ[VARIABLE] = repr(params["lr"])
        if fault == "prints":
            print(f"built with {hidden}")
        rows = torch.randn(48, 6, generator=torch.Generator().manual_seed(7))
        targets = (rows.sum(1) > 0).long()
        model = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Dropout(params["dropout"]), nn.Linear(hidden, 2))
        rate = 1e30 if fault == "nan" else params["lr"]
        return Parts(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), rate, momentum=0.9),
            loss=getattr(self, f"_{fault}_loss", functional.cross_entropy),
            train=(rows[:36], targets[:36]),
            validation=(rows[36:], targets[36:]),
            metrics={"right": _right, "seen": _seen},
            batch_size=8,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return its state; with the fault `state` it has an entry that can't be saved."""
        state = super().state_dict()
        return {**state, "odd": lambda: 0} if self.params["fault"] == "state" else state

    def _step_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.epoch == 1:
            raise RuntimeError("it bursts")
        return functional.cross_entropy(output, targets)

    def _draws_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output, targets) * (1 + random.random() + np.random.rand())

    def _turns_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.epoch == 2 and self.model.training:  # which no try comes to
            os.environ[VARIABLE] = repr(self.params["lr"])
        return functional.cross_entropy(output, targets) * (1 + float(os.environ.get(VARIABLE, "0")))

    def _kill_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return functional.cross_entropy(output, targets)

    def _hangs_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.epoch == 1:
            time.sleep(1000)
        return functional.cross_entropy(output, targets)


class Large(Small):
    """One whose data lie in 100 MiB, its own or those of all; it counts its builds in a file of its folder."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Put the rows at the beginning of what is large and never touched."""
        with (Path(params["folder"]) / "builds").open("a") as file:
            file.write(".")
        parts = super().build(params)
        assert isinstance(parts.train, tuple)
        rows, targets = parts.train
        room = _ROOM if params["shared"] else torch.empty(25 << 20)
        return replace(parts, train=(room[: rows.numel()].view_as(rows).copy_(rows), targets))


_ROOM = torch.empty(25 << 20)


class Patient(Small):
    """One whose time is that of its rows, so that it pays to divide them; it prints in its loss."""

    def _slow_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        time.sleep(0.003 * len(targets))
        print(f"epoch {self.epoch} on {len(targets)} rows")
        return functional.cross_entropy(output, targets)


class Held(Small):
    """One that waits in its second epoch for as long as there is a file `hold` in its folder."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Note where it runs."""
        self.folder = Path(params["folder"])
        return super().build(params)

    def step(self) -> dict[str, float]:
        """Wait, and train."""
        if self.epoch == 1:
            (self.folder / f"{os.getpid()}.held").touch()
            while (self.folder / "hold").exists():
                time.sleep(0.02)
        return super().step()


class Reading(Small):
    """One whose model can't be that of lanes in its third epoch, and rounds otherwise as a lane than alone."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make a convolution over the features, which rounds, and what looks at numbers."""
        parts, trainer = super().build(params), self

        class Reads(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x * float(x.sum() < 1e30) if self.training and trainer.epoch == 2 else x

        hidden = params["hidden"]
        layers = nn.Unflatten(1, (1, 6)), nn.Conv1d(1, hidden, 3), Reads(), nn.Flatten(), nn.Linear(4 * hidden, 2)
        model = nn.Sequential(*layers)
        return replace(parts, model=model, optimizer=torch.optim.SGD(model.parameters(), params["lr"]))


def function(trial: Any) -> None:
    """Train nothing, by a loop of its own."""
    for iteration in trial.iterations():
        trial.report({"loss": trial.params["lr"] / iteration}, checkpoint={"iteration": iteration})


def _right(output: Tensor, targets: Tensor) -> Tensor:
    return (output.argmax(1) == targets).float()


def _seen(output: Tensor, targets: Tensor) -> Tensor:
    """What the process's environment tells, which is another trial's only if it leaks."""
    return torch.full((len(targets),), float(os.environ.get(VARIABLE, "0")))
