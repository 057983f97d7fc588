"""Simulations, and the trainables that they stand for."""

from __future__ import annotations

import math
import os
import random
import signal
from itertools import count
from typing import Any

import numpy as np

import hpsearch
from hpsearch.observers.base import Observer, Record
from hpsearch.trainable.running_trial import RunningTrial

LENGTH = 20


def losses(x: float, seed: int) -> list[float]:
    """Return a learning curve: some are short, some contain NaN."""
    chance = random.Random(seed)
    length = chance.choice([LENGTH, LENGTH, LENGTH, 5])
    return [math.nan if chance.random() < 0.05 else x**2 + 1.0 / i for i in range(1, length + 1)]


def fails(seed: int) -> bool:
    return seed % 7 == 0


class Bowl(hpsearch.Curves):
    """A trial takes a second for each iteration, and some fail at their end."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        found = losses(params["x"], seed)
        if fails(seed):
            return hpsearch.Curve({"loss": found[:1]}, 1.0, "ValueError: no luck")
        return hpsearch.Curve({"loss": found}, 1.0)


def bowl(trial: RunningTrial) -> None:
    """The same, trained."""
    found = losses(trial.params["x"], trial.seed)
    for iteration in count(1) if trial.end is None else trial.iterations():
        if fails(trial.seed) and iteration == 2:
            raise ValueError("no luck")
        if iteration > len(found):
            return
        trial.report({"loss": found[iteration - 1]}, checkpoint={"at": iteration})


class Walk(hpsearch.Steps):
    """Its value hangs on all that came before."""

    def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> tuple[Any, dict[str, float], float]:
        path = [] if state is None else state
        path.append(params["x"] * rng.normal())
        return path, {"loss": abs(sum(path) - 1.0)}, 1.0 + rng.random()


class Executioner(Observer):
    """Kills this process at an event."""

    def __init__(self, seq: int) -> None:
        self.seq = seq

    def observe(self, record: Record) -> None:
        if record.seq == self.seq:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None: ...
