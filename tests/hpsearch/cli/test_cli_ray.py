"""`hpsearch run` on a local Ray as a newcomer starts it, killed in mid-sweep and resumed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import hpsearch
from hpsearch.errors import JournalError
from hpsearch.events import Finished
from tests.hpsearch.support.command_line import PROGRAM, begin, environment, wait_for
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


def hpsearch_command(here: Path, *words: str) -> str:
    done = subprocess.run(
        [PROGRAM, *words], cwd=here, env=environment(), capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


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
    driver.kill()


def finished(study: Path) -> int:
    """Count the segments that the journal holds."""
    try:
        return sum(isinstance(event, Finished) for event in events_of(study))
    except JournalError:
        return 0


def run_and_kill(here: Path, kill: Callable[[psutil.Process], None], *words: str) -> set[str]:
    """Run a command until the study has gained five segments, and kill it; give the epochs that count by then."""
    study = here / "runs" / "sweep-1"
    before = finished(study)
    with begin(*words, cwd=here) as driver:
        wait_for(lambda: finished(study) >= before + 5, driver)
        kill(psutil.Process(driver.pid))
        driver.communicate()
        assert driver.returncode == -signal.SIGKILL
    left = hpsearch.load(study)
    assert left.state == "interrupted"
    assert len(left.trials) <= TRIALS
    return {f"{row.number} {i}" for row in left.trials for i in range(1, row.iterations + 1)}


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_that_is_killed_twice_is_resumed_to_the_table_of_a_run_without_ray(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    hpsearch_command(tmp_path, "run", "sweep.yaml", "--backend", "inline", "--dir", "inline")
    epochs = tmp_path / "epochs.txt"
    whole = sorted(epochs.read_text().splitlines())
    assert len(whole) == ITERATIONS
    epochs.unlink()

    first = run_and_kill(tmp_path, kill_tree, "run", "sweep.yaml", "--workers", "2")
    before = len(epochs.read_text().splitlines())
    second = run_and_kill(tmp_path, kill_driver, "resume", "runs/sweep-1", "--workers", "2")
    between = len(epochs.read_text().splitlines())
    assert first < second < set(whole)

    out = hpsearch_command(tmp_path, "resume", "runs/sweep-1", "--workers", "2")
    assert "best:        trial" in out
    tables = [hpsearch_command(tmp_path, "trials", name, "--format", "csv") for name in ("inline", "runs/sweep-1")]
    assert tables[0] == tables[1]
    assert len(tables[0].splitlines()) == 1 + TRIALS
    ran = epochs.read_text().splitlines()
    assert set(ran) == set(whole)
    assert not first & set(ran[before:]), "a finished segment ran again"
    assert not second & set(ran[between:]), "a finished segment ran again"


@pytest.mark.ray
def test_sigterm_ends_at_the_next_reports_on_ray_too(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    with begin("run", "sweep.yaml", "--workers", "1", "--dir", "study", cwd=tmp_path) as process:
        wait_for((tmp_path / "epochs.txt").exists, process)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ending at the next reports" in out
    assert hpsearch.load(tmp_path / "study").state == "interrupted"
