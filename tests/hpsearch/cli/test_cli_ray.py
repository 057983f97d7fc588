"""`hpsearch run` on a local Ray as a newcomer starts it, killed in mid-sweep and resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import hpsearch
from tests.hpsearch.support.command_line import PATIENCE, begin, wait_for, write_sweep
from tests.hpsearch.support.local_ray import (
    ITERATIONS,
    SWEEP,
    TRAIN,
    TRIALS,
    Undisturbed,
    finished,
    hpsearch_command,
    kill_driver,
    kill_tree,
)
from tests.rarely import rarely


def run_and_kill(here: Path, kill: Callable[[psutil.Process], None], *words: str) -> set[str]:
    """Run a command until the study has gained five segments, and kill it; return the epochs that count by then."""
    study = here / "runs" / "sweep-1"
    before = finished(study)
    with begin(*words, cwd=here) as driver:
        wait_for(lambda: finished(study) >= before + 5, driver)
        kill(psutil.Process(driver.pid))
        driver.communicate()
        assert driver.returncode == -signal.SIGKILL
    left = hpsearch.load(study)
    assert left.state == "killed"
    assert len(left.trials) <= TRIALS
    return {f"{row.number} {i}" for row in left.trials for i in range(1, row.iterations + 1)}


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "workers"), [([kill_tree], "1"), *rarely(([kill_tree], "2"), ([kill_tree, kill_driver], "2"))]
)
def test_a_run_that_is_killed_is_resumed_to_the_table_of_a_run_without_ray(
    tmp_path, undisturbed: Undisturbed, kills, workers
):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    epochs, whole = tmp_path / "epochs.txt", undisturbed.epochs
    assert len(whole) == ITERATIONS

    counted: set[str] = set()
    left: list[tuple[set[str], int]] = []
    for kill in kills:
        words = ("resume", "runs/sweep-1") if left else ("run", "sweep.yaml")
        known = run_and_kill(tmp_path, kill, *words, "--workers", workers)
        assert counted < known < set(whole)
        counted = known
        left.append((counted, len(epochs.read_text().splitlines())))

    out = hpsearch_command(tmp_path, "resume", "runs/sweep-1", "--workers", workers)
    assert "best:        trial" in out
    assert hpsearch_command(tmp_path, "trials", "runs/sweep-1", "--format", "csv") == undisturbed.table
    assert len(undisturbed.table.splitlines()) == 1 + TRIALS
    ran = epochs.read_text().splitlines()
    assert set(ran) == set(whole)
    for counted, before in left:
        assert not counted & set(ran[before:]), "a finished segment ran again"


@pytest.mark.exhaustive
@pytest.mark.ray
def test_sigterm_ends_at_the_next_reports_on_ray_too(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    with begin("run", "sweep.yaml", "--workers", "1", "--dir", "study", cwd=tmp_path) as process:
        wait_for((tmp_path / "epochs.txt").exists, process)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "ending at the next reports" in out
    assert hpsearch.load(tmp_path / "study").state == "interrupted"


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.parametrize(("told", "niceness"), [({}, 5), ({"RAY_worker_niceness": "3"}, 3)])
def test_workers_of_a_local_ray_stand_back_a_little_behind_other_programs(tmp_path, monkeypatch, told, niceness):
    monkeypatch.delenv("RAY_worker_niceness", raising=False)  # the tests' own
    sweep = write_sweep(tmp_path / "sweep.yaml", "niceness", run_cap=1, max_iter=1)
    with begin("run", sweep, "--dir", "study", cwd=tmp_path, **told) as process:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    (trial,) = hpsearch.load(tmp_path / "study").trials
    assert trial.value == min(os.nice(0) + niceness, 19)
