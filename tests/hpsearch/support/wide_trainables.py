"""Trainables for gangs; each worker imports them by name."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hpsearch.trainable.running_trial import RunningTrial
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer


def adds_ranks(trial: RunningTrial) -> None:
    """Report what the ranks make together."""
    group = trial.group
    assert (group.rank, group.size) == (trial.rank, trial.world_size)
    print(f"rank {trial.rank} of {trial.world_size} with {dict(trial.scaling)}, hosts {group.hosts}")

    def state() -> dict[str, int]:
        assert trial.rank == 0, "only rank 0 is asked for a state"
        return {"iteration": trial.iteration}

    for iteration in trial.iterations():
        total = group.allreduce(torch.tensor([float(trial.rank + iteration)]), op="sum")
        trial.report({"loss": total} if trial.rank == 0 else {"other": "text"}, checkpoint=state)


def own_loop(trial: RunningTrial) -> None:
    """Report in a loop of one's own."""
    while True:
        trial.report({"loss": 1.0}, checkpoint={"done": True})


class Drawing:
    """Draws from all generators, on each rank another number of times, and trains with it."""

    def __init__(self, trial: RunningTrial) -> None:
        self.trial = trial
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self) -> dict[str, float]:
        for _ in range(self.trial.rank):
            torch.rand(1), random.random()
        rows = torch.from_numpy(np.random.rand(2 + self.trial.rank, 3)).float() * random.gauss(1.0, 0.1)
        loss = (self.model(rows) + torch.rand(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            self.trial.group.allreduce(parameter.grad)
        self.optimizer.step()
        return {"loss": loss.item(), "drawn": random.random()}

    def state_dict(self) -> dict[str, Any]:
        torch.rand(3)  # a state that isn't careful with the generators
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def drawing(trial: RunningTrial) -> None:
    """Do the same as a function."""
    drawn = Drawing(trial)
    if trial.checkpoint is not None:
        drawn.load_state_dict(trial.checkpoint)
    for _ in trial.iterations():
        trial.report(drawn.step(), checkpoint=drawn.state_dict)


class Counting:
    """A class that prints when it is built, loaded and closed."""

    def __init__(self, trial: RunningTrial) -> None:
        print(f"build {trial.world_size}")
        self.group = trial.group

    def step(self) -> dict[str, Any]:
        return {"loss": self.group.allreduce(torch.ones(1), op="sum")}

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        print("load")

    def close(self) -> None:
        print(f"close, group closed: {self.group.closed}")


class Small(Trainer):
    """A Trainer."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        rows = torch.randn(37, 4, generator=torch.Generator().manual_seed(5))
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)
        data = (rows, rows.square().sum(1, keepdim=True))
        return Parts(model, optimizer, nn.functional.mse_loss, train=data, validation=data, batch_size=8)


def goes_wrong(trial: RunningTrial) -> None:
    """Go wrong at the second iteration, on the rank and in the way that the trial's parameters say."""
    way = trial.params["way"] if trial.rank == trial.params["rank"] else ""
    for iteration in trial.iterations():
        if iteration == 2:
            match way:
                case "raise":
                    raise ValueError("this rank's own mistake")
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "return":
                    return
                case "mismatch":
                    trial.group.barrier()
        trial.report({"loss": 1.0})


def wraps_losses(trial: RunningTrial) -> None:
    """Make another error of the loss of a peer."""
    if trial.rank == 1:
        raise ValueError("this rank's own mistake")
    try:
        trial.group.barrier()
    except Exception as error:
        raise RuntimeError("the epoch went wrong") from error


def leaves_a_mark(trial: RunningTrial) -> None:
    """Write to the trial's own directory."""
    Path(trial.directory / "mark").write_text(str(trial.rank))
    for _ in trial.iterations():
        trial.report({"loss": 1.0})


def tells_how_it_is_parallel(trial: RunningTrial) -> None:
    """Print what the trial says of it."""
    print(f"rank {trial.rank}: {trial.parallel}")
    for _ in trial.iterations():
        trial.report({"loss": 1.0})
