"""The sweeps that come with hpsearch give one table, however many trials train on a worker, and however they get there.

Lanes are fused where they were quicker when that was tried: narrow perceptrons with small batches are by a factor of
two or three, and each of these sweeps has several of one shape. So it can be asserted that some were.
"""

from __future__ import annotations

import csv
import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from tests.hpsearch.support.command_line import ROOT, call, environment
from tests.hpsearch.support.scripted import events_of

CONFIGS = ("fused_digits", "digits")

SMALL = ("--set", "early_terminate.max_iter=9", "--no-tensorboard", "-q")

Rows = list[dict[str, str]]


class Runs:
    """Runs one of the sweeps as the command line does."""

    def __init__(self, config: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = str(ROOT / "configs" / f"{config}.yaml")
        self._capsys = capsys

    def words(self, study: Path, lanes: int | str, *more: str) -> list[str]:
        """Return a command that runs the study, or resumes it if it exists."""
        number = ("--set", f"resources.trials_per_worker={lanes}")
        if study.exists():
            return ["resume", str(study), *number, *more, *SMALL[2:]]
        return ["run", self._config, "--dir", str(study), *number, *more, *SMALL]

    @property
    def has_large_packs(self) -> bool:
        """Whether many trials have one shape: a pack of few may be slower, which is measured."""
        return "fused" in self._config

    def run(self, study: Path, lanes: int | str, *more: str) -> tuple[Rows, int]:
        """Return the rows, without the columns on lanes, and the number of lanes of the largest pack."""
        answer = call(self._capsys, *self.words(study, lanes, *more))
        assert answer.code == 0, answer.err
        answer = call(self._capsys, "trials", study, "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(answer.out)))
        most = max(int(row.pop("lanes", "1")) for row in rows)  # no column where none shared
        return rows, most


@pytest.fixture(params=CONFIGS)
def runs(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(request.param, capsys)


_WHOLE: dict[str, Rows] = {}


@pytest.fixture
def whole(runs: Runs, tmp_path: Path, request: pytest.FixtureRequest) -> Rows:
    """What one trial at a time gives; run once for each of the sweeps."""
    config = request.node.callspec.params["runs"]
    if config not in _WHOLE:
        _WHOLE[config], most = runs.run(tmp_path / "whole", 1, "--backend", "inline")
        assert most == 1
    return _WHOLE[config]


@pytest.mark.exhaustive
def test_in_one_process(runs, whole, tmp_path):
    assert len(whole) == 17
    for lanes in ("auto", 7):
        rows, most = runs.run(tmp_path / str(lanes), lanes, "--backend", "inline")
        assert rows == whole
        assert most <= (16 if lanes == "auto" else 7)
        assert most > 1 or not runs.has_large_packs


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.slow
def test_on_ray(ray_cluster: Any, runs, whole, tmp_path):
    for workers in (1, 2):
        for lanes in ("auto", 7):
            rows, most = runs.run(tmp_path / f"{lanes}-{workers}", lanes, "--workers", str(workers))
            assert rows == whole
            assert most <= (16 if lanes == "auto" else 7)
            assert most > 1 or workers == 2 or not runs.has_large_packs  # the few of one shape may each have a worker


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "number"), [("auto", 7, 22), (7, "auto", 30), (1, "auto", 12)])
def test_killed_on_ray_and_resumed_with_another_number(ray_cluster: Any, runs, whole, tmp_path, first, second, number):
    study = tmp_path / "study"
    words = runs.words(study, first, "--workers", "2", "--address", ray_cluster.address)
    command = [sys.executable, "-m", "tests.hpsearch.support.killed_command", str(number), *words]
    killed = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert hpsearch.load(study).state == "killed"
    assert len(events_of(study)) >= number
    rows, _ = runs.run(study, second, "--workers", "2")
    assert rows == whole
