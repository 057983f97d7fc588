"""Checkpoints that vanish, disks that fill, and processes that come back twice: nothing that counted is lost."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.errors import StorageError
from hpsearch.events import Dropped, Failed, Started
from hpsearch.journal.journal import Journal
from hpsearch.results.study import Study
from hpsearch.tables.trials import rows_to_csv

STOP_AFTER = 11
"""Segments: all of the first bracket's first rung, and some more."""


def total(trial: hpsearch.RunningTrial) -> None:
    state = {"total": 0.0} if trial.checkpoint is None else trial.checkpoint
    for _ in trial.iterations():
        state["total"] += trial.params["x"]
        trial.report({"value": state["total"]}, checkpoint=lambda: {**state, "ballast": "x" * trial.params["ballast"]})


def search(directory: Path, train: Callable[..., object] = total, ballast: int = 0, **options: Any) -> Study:
    return hpsearch.search(
        train,
        parameters={"parameters": {"x": hpsearch.Uniform(0.0, 1.0), "ballast": ballast}, "name": "broken"},
        metric={"name": "value", "goal": "maximize"},
        early_terminate=hpsearch.Hyperband(max_iter=9, eta=3),
        directory=directory,
        **{"backend": "inline", "progress": False, "observers": [], **options},
    )


def csv(study: Study) -> str:
    return rows_to_csv(study.trials, ["x"])


def events(study: Path, kind: type) -> list[Any]:
    with Journal.read(study / "study.db") as journal:
        return [entry.event for entry in journal.entries() if isinstance(entry.event, kind)]


@pytest.fixture
def expected(tmp_path: Path) -> str:
    return csv(search(tmp_path / "whole"))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A study that was stopped while trials waited with their checkpoints."""
    study = tmp_path / "begun"

    def stopping(trial: hpsearch.RunningTrial) -> None:
        if len(events(study, Started)) == STOP_AFTER:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C, once
        total(trial)

    stopping.__module__, stopping.__qualname__ = total.__module__, total.__qualname__
    with pytest.raises(KeyboardInterrupt):
        search(study, stopping)
    assert hpsearch.load(study).state == "interrupted"
    assert list(study.glob("trials/*/*/hpsearch-checkpoint-*"))
    return study


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("harm", ["gone", "state.pt", "random.pt", "no random.pt", "a FIFO"])
def test_a_checkpoint_that_is_gone_or_damaged_costs_its_iterations_and_nothing_else(begun, expected, harm):
    for checkpoint in begun.glob("trials/*/*/hpsearch-checkpoint-*"):
        if harm == "gone":
            shutil.rmtree(checkpoint)
        elif harm == "no random.pt":
            (checkpoint / "random.pt").unlink()
        elif harm == "a FIFO":
            (checkpoint / "state.pt").unlink()
            os.mkfifo(checkpoint / "state.pt")
        else:
            (checkpoint / harm).write_bytes(b"not a checkpoint")
    assert csv(search(begun)) == expected
    assert events(begun, Dropped)
    assert not events(begun, Failed)


def test_storage_that_gives_no_checkpoint_ends_the_sweep_and_no_trial_is_blamed(begun, expected, monkeypatch):
    real = io.open

    def opened(file: Any, *arguments: Any, **options: Any) -> Any:
        if Path(str(file)).name == "state.pt" and arguments[0] == "rb":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return real(file, *arguments, **options)

    monkeypatch.setattr(io, "open", opened)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"Permission denied.*See that it can be read, then resume\.$"):
            search(begun)
    monkeypatch.undo()
    assert csv(search(begun)) == expected
    assert not events(begun, Failed)
    assert not events(begun, Dropped)


def offers_a_dangling_link(trial: hpsearch.RunningTrial) -> None:
    if trial.number == 3:
        (trial.directory / "model").mkdir()
        (trial.directory / "model" / "latest").symlink_to("nowhere")
        for _ in trial.iterations():
            trial.report({"value": 1.0}, checkpoint=trial.directory / "model")
    total(trial)


def test_a_checkpoint_that_cant_be_copied_fails_its_own_trial_alone(tmp_path):
    study = search(tmp_path / "dangling", offers_a_dangling_link)
    assert study.state == "finished"
    failures = {row.number: row.failure.message for row in study.trials if row.failure is not None}
    assert list(failures) == [3]
    assert "model/latest is a link that leads nowhere" in failures[3]


@pytest.mark.exhaustive
def test_a_disk_that_is_full_ends_the_sweep_and_no_trial_is_blamed(tmp_path, expected):
    """The limit on a file's size stands for the disk: writing beyond it is an OSError as well."""
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_broken_storage import search
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
search(Path({str(tmp_path / "full")!r}), ballast=400_000)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "StorageError" in ran.stderr
    assert "Make room, then resume." in ran.stderr
    assert not events(tmp_path / "full", Failed)
    assert csv(search(tmp_path / "full", ballast=400_000)) == expected
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


ROOM = Path("room")
"""A file of the test's folder: while it is missing, the disk of trial 5 is full."""


def writes_itself(trial: hpsearch.RunningTrial) -> None:
    if trial.number == 5 and not ROOM.exists():
        Path("/dev/full").write_text("its own measurements")
    total(trial)


def test_a_disk_that_is_full_for_what_a_trial_writes_itself_ends_the_sweep_likewise(tmp_path, expected, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=r"No space left on device.*Make room, then resume\."):
        search(tmp_path / "full", writes_itself)
    assert not events(tmp_path / "full", Failed)
    ROOM.touch()
    assert csv(search(tmp_path / "full", writes_itself)) == expected


def forks(trial: hpsearch.RunningTrial) -> None:
    child = os.fork()
    if child == 0:
        return  # a mistake: the child goes back into whoever called the trainable
    os.waitpid(child, 0)
    total(trial)


@pytest.mark.exhaustive
def test_a_forked_child_that_returns_does_not_become_a_second_driver(tmp_path, expected):
    assert csv(search(tmp_path / "forks", forks)) == expected


class ClosesBadly:
    def __init__(self, trial: hpsearch.RunningTrial) -> None:
        self._x = trial.params["x"]
        self._total = 0.0

    def step(self) -> dict[str, float]:
        self._total += self._x
        return {"value": self._total}

    def state_dict(self) -> dict[str, float]:
        return {"total": self._total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._total = state["total"]

    def close(self) -> None:
        raise SystemExit("nobody's failure")


def test_a_close_that_exits_is_no_failure_of_the_next_trial(tmp_path, expected):
    assert csv(search(tmp_path / "closes", ClosesBadly)) == expected


def closes_its_streams(trial: hpsearch.RunningTrial) -> None:
    sys.stderr.close()
    raise ValueError("said all the same")


def test_a_trial_that_closes_its_streams_keeps_its_traceback(tmp_path):
    study = hpsearch.search(
        closes_its_streams,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric="value",
        run_cap=2,
        max_iter=1,
        directory=tmp_path / "closes",
        backend="inline",
        progress=False,
    )
    failures = [row.failure for row in study.trials]
    assert [failure.message for failure in failures if failure] == ["ValueError: said all the same"] * 2
    assert "said all the same" in (tmp_path / "closes/trials/00001/1/output.log").read_text()
