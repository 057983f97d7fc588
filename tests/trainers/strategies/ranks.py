"""What a rank of any strategy does in a test of the suite; called on the ranks of process_ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked

from hpsearch_comm import Group
from hpsearch_trainers.strategies import strategy_of
from tests.trainers.strategies.problems import ODD, Problem, Watch
from tests.trainers.test_trainer import FakeTrial

__all__ = ["disturbed", "trains", "validates", "working"]


def trains(
    group: Group | None,
    parallel: Mapping[str, Any],
    odd: str = "plain",
    epochs: int = 2,
    load: str | None = None,
    save: str | None = None,
) -> list[dict[str, float]]:
    """Train; give each epoch's metrics.

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


def validates(odd: str, load: str) -> dict[str, float]:
    """Give the metrics of a state on one rank."""
    trainer = Problem(FakeTrial({"odd": odd}, scaling=ODD[odd].scaling))
    trainer.load_state_dict(torch.load(load))
    return trainer.validate()


def working(group: Group, parallel: Mapping[str, Any]) -> bool:
    """Say whether this rank trains."""
    return strategy_of(parallel, group).trains


def disturbed(group: Group, parallel: Mapping[str, Any], how: str, victim: int) -> list[dict[str, float]]:
    """Train for three epochs, in the midst of which something happens to a rank; give each epoch's metrics.

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
