"""Trials on several workers as a user runs them: widened by a bracket that narrows, and killed in the middle."""

from __future__ import annotations

import csv
import io
import os
import signal
from pathlib import Path

import psutil
import pytest

import hpsearch
from hpsearch.errors import JournalError
from hpsearch.events import Finished, Started
from tests.hpsearch.support.command_line import begin, wait_for
from tests.hpsearch.support.local_ray import hpsearch_command, kill_tree
from tests.hpsearch.support.scripted import events_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.exhaustive]

TRAIN = """
import os
import random
import time

import torch


def train(trial):
    place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
    for epoch in trial.iterations():
        with open("ranks.txt", "a") as ranks:
            ranks.write(f"{trial.number} {epoch} {trial.rank} {trial.world_size} {os.getpid()}\\n")
        while len({line.split()[4] for line in open("ranks.txt")}) < int(os.environ.get("WORKERS", 1)):
            time.sleep(0.02)  # a machine at work may start one long after the other
        time.sleep(0.1 / trial.world_size)
        # Ranks that agree have the mean that one of them has alone, to the bit.
        place += trial.params["x"] * float(trial.group.allreduce(torch.tensor(random.random(), dtype=torch.float64)))
        trial.report({"loss": place / epoch}, checkpoint=lambda: {"place": place})
"""

SWEEP = """
trainable: train:train
metric: {name: loss}
method: random
early_terminate: {type: successive_halving, max_iter: 9}
parameters:
  x: {min: 0.0, max: 1.0}
"""

TRIALS = 9

ELASTIC = ("--set", "resources.max_workers_per_trial=2")
WIDE = ("--set", "resources.workers_per_trial=2")


def place_in(folder: Path) -> Path:
    (folder / "train.py").write_text(TRAIN)
    (folder / "sweep.yaml").write_text(SWEEP)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return place_in(tmp_path)


def table(here: Path, study: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(hpsearch_command(here, "trials", study, "--format", "csv"))))


def values(rows: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    return [(row["state"], row["iterations"], row["value"]) for row in rows]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    """Return the table of the sweep when it runs in one process, trial after trial."""
    here = place_in(tmp_path_factory.mktemp("inline"))
    hpsearch_command(here, "run", "sweep.yaml", "--backend", "inline", "--dir", "inline")
    return values(table(here, "inline"))


def widths_started(study: Path) -> list[int]:
    try:
        return [event.segment.width for event in events_of(study) if isinstance(event, Started)]
    except JournalError:
        return []


def test_workers_follow_the_survivors_and_change_no_result(place, expected):
    hpsearch_command(place, "run", "sweep.yaml", "--workers", "2", "--dir", "elastic", *ELASTIC, WORKERS="2")
    rows = table(place, "elastic")
    assert values(rows) == expected
    longest = max(rows, key=lambda row: int(row["iterations"]))
    assert longest["width"] == "2"
    started = [event for event in events_of(place / "elastic") if isinstance(event, Started)]
    assert [event.segment.width for event in started[:2]] == [1, 1]
    assert all(event.reason for event in started)

    hpsearch_command(
        place, "run", "sweep.yaml", "--workers", "2", "--dir", "fixed", *ELASTIC, "--set", "resources.elastic=false"
    )
    rows = table(place, "fixed")
    assert values(rows) == expected
    assert {row["width"] for row in rows} == {"1"}


def test_a_driver_and_a_rank_killed_in_wide_segments_end_in_a_finished_sweep(place, expected):
    study, ranks = place / "runs" / "sweep-1", place / "ranks.txt"

    def finished() -> int:
        return sum(isinstance(event, Finished) for event in events_of(study)) if widths_started(study) else 0

    with begin("run", "sweep.yaml", "--workers", "2", *WIDE, cwd=place) as driver:
        wait_for(lambda: finished() >= 3, driver)
        kill_tree(psutil.Process(driver.pid))
        driver.communicate()
    left = hpsearch.load(study)
    assert left.state == "killed"
    assert set(widths_started(study)) == {2}

    before = len(ranks.read_text().splitlines())
    with begin("resume", "runs/sweep-1", "--workers", "2", cwd=place) as driver:
        wait_for(lambda: len(ranks.read_text().splitlines()) >= before + 4, driver)
        pids = {line.split()[2]: int(line.split()[4]) for line in ranks.read_text().splitlines()[before:]}
        os.kill(pids["1"], signal.SIGKILL)
        out, err = driver.communicate()
        assert driver.returncode == 0, err
    assert "best:        trial" in out
    rows = table(place, "runs/sweep-1")
    assert values(rows) == expected
    assert {row["width"] for row in rows} == {"2"}
    # The worker that lived was kept: it ran what came after, beside a new one.
    after = {int(line.split()[4]) for line in ranks.read_text().splitlines()[before:]}
    assert pids["0"] in after
    assert len(after) == 3
