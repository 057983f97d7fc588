"""A sweep that `hpsearch` runs as a newcomer would start it, on a Ray of its own."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpsearch.errors import JournalError
from hpsearch.events import Finished
from tests.hpsearch.support.command_line import PATIENCE, PROGRAM, environment
from tests.hpsearch.support.scripted import events_of

TRAIN = """
import random
import time


def train(trial):
    place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
    for epoch in trial.iterations():
        with open("epochs.txt", "a") as epochs:
            epochs.write(f"{trial.number} {epoch}\\n")
        time.sleep(0.02)
        place += trial.params["x"] * random.random()
        trial.report({"loss": place / epoch}, checkpoint=lambda: {"place": place})
"""

SWEEP = """
trainable: train:train
metric: {name: loss}
method: random
early_terminate: {type: hyperband, max_iter: 9}
parameters:
  x: {min: 0.0, max: 1.0}
"""

TRIALS, ITERATIONS = 17, 69


@dataclass(frozen=True)
class Undisturbed:
    """What the sweep gives without Ray and without trouble."""

    table: str
    epochs: list[str]
    """Trial and epoch of each, sorted."""


def hpsearch_command(here: Path, *words: str, **variables: str) -> str:
    """Run a command to its end, which must be a good one; return what it prints."""
    env = environment(**variables)
    done = subprocess.run(
        [PROGRAM, *words], cwd=here, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def run_undisturbed(here: Path) -> Undisturbed:
    """Run the sweep to its end in one process."""
    (here / "train.py").write_text(TRAIN)
    (here / "sweep.yaml").write_text(SWEEP)
    hpsearch_command(here, "run", "sweep.yaml", "--backend", "inline", "--dir", "inline")
    table = hpsearch_command(here, "trials", "inline", "--format", "csv")
    return Undisturbed(table, sorted((here / "epochs.txt").read_text().splitlines()))


def finished(study: Path) -> int:
    """Count the segments that the journal holds."""
    try:
        return sum(isinstance(event, Finished) for event in events_of(study))
    except JournalError:
        return 0


def kill_tree(driver: psutil.Process) -> None:
    """Kill the driver, its Ray and its workers at once, as losing the machine would."""
    family = [driver, *driver.children(recursive=True)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in [*family, *driver.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_driver(driver: psutil.Process) -> None:
    """Kill the driver alone."""
    driver.kill()
