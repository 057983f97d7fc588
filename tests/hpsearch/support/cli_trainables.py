"""What the command line's tests run."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import time
from pathlib import Path
from types import FrameType

from hpsearch.trainable.running_trial import RunningTrial

GATE = "HPSEARCH_TEST_GATE"
"""Environment variable: a folder in which `gated` says that it waits, and waits for `open`."""

REACHED = "reached"
OPEN = "open"
HEARD = "heard"
"""What `gated` leaves there when a first Ctrl-C was taken while it waited."""


def steps(trial: RunningTrial) -> None:
    """Walk at random from the last checkpoint on."""
    place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
    for _ in trial.iterations():
        place += trial.params["x"] + random.random()
        trial.report({"loss": place}, checkpoint=lambda: {"place": place})


def gated(trial: RunningTrial) -> None:
    """Walk likewise, and stand still in trial 2 until the gate is open."""
    if trial.number == 2:
        gate = Path(os.environ[GATE])
        take = signal.getsignal(signal.SIGINT)
        assert callable(take)

        def heard(number: int, frame: FrameType | None) -> None:
            take(number, frame)
            (gate / HEARD).touch()

        signal.signal(signal.SIGINT, heard)
        try:
            (gate / REACHED).touch()
            while not (gate / OPEN).exists():
                time.sleep(0.002)
        finally:
            signal.signal(signal.SIGINT, take)
    steps(trial)


_reports = itertools.count(1)


def interrupted(trial: RunningTrial) -> None:
    """Walk likewise, and press Ctrl-C at every seventh report."""
    place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
    for _ in trial.iterations():
        place += trial.params["x"] + random.random()
        if next(_reports) % 7 == 0:
            signal.raise_signal(signal.SIGINT)
        trial.report({"loss": place}, checkpoint={"place": place})


def misnamed(trial: RunningTrial) -> None:
    """Report another metric than the sweep's."""
    for _ in trial.iterations():
        trial.report({"los": 1.0})


def fails(trial: RunningTrial) -> None:
    """Raise, each trial with words of its own."""
    raise ValueError(f"no luck with {trial.params['x']}")


def nan(trial: RunningTrial) -> None:
    """Report no number."""
    for _ in trial.iterations():
        trial.report({"loss": float("nan")})


def niceness(trial: RunningTrial) -> None:
    """Report how low the priority of its process is."""
    for _ in trial.iterations():
        trial.report({"loss": os.nice(0)})


def paced(trial: RunningTrial) -> None:
    """Walk likewise, some steps in each second, so that a sweep of many iterations never ends by itself."""
    place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
    for _ in trial.iterations():
        time.sleep(0.02)
        place += trial.params["x"]
        trial.report({"loss": place}, checkpoint=lambda: {"place": place})


def moody(trial: RunningTrial) -> None:
    """Raise while the folder holds a file `moody`, in trials from its number on; else walk at random."""
    mood = Path("moody")
    if mood.exists() and trial.number >= int(mood.read_text()):
        raise ValueError("not today")
    steps(trial)


def traded(trial: RunningTrial) -> None:
    """Report two goals of which one grows as the other does, in some trials for nothing, and a time."""
    x = trial.params["x"]
    waste = 0.5 * (trial.number % 3)
    for _ in trial.iterations():
        trial.report({"loss": x + waste, "acc": 2 * x - waste, "ms": 30 * (1 - x)}, checkpoint={"x": x})


def traded_to_infinity(trial: RunningTrial) -> None:
    """Report likewise, and in trials 0 and 3 what is infinitely good and infinitely bad."""
    x = trial.params["x"]
    for _ in trial.iterations():
        endless = math.inf if trial.number in (0, 3) else 0.0
        trial.report({"loss": x + endless, "acc": 2 * x + endless})
