"""What a run finds of its study's directory: it was taken away, another process came in, the disk is full."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import hpsearch
from hpsearch.backends.base import Backend
from hpsearch.decision import Followed
from hpsearch.errors import JournalError, StorageError, StudyInUseError
from hpsearch.events import Ended, Entry, Exhausted, Opened
from hpsearch.journal.history import seconds_spent
from hpsearch.journal.journal import Journal
from hpsearch.observers.display import SilentDisplay
from hpsearch.results.study import Study, load
from hpsearch.run.study_run import RunSettings, create_study, run_study
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Task
from hpsearch.worker.job import Job
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted, sweep_of


def csv(study: Study) -> str:
    return rows_to_csv(study.trials, ["x"])


@pytest.fixture
def expected(tmp_path: Path) -> str:
    return csv(run_scripted(tmp_path / "whole", sweep_of(), ScriptedBackend(lambda task: [done(task)])))


def doing(backend: ScriptedBackend, number: int, act: Callable[[], object]) -> ScriptedBackend:
    """Do something beside the run while its task of this number runs."""

    def answer(task: Task) -> Sequence[Message]:
        if len(backend.tasks) == number:
            act()
        return [done(task)]

    backend.answer = answer
    return backend


def backend() -> ScriptedBackend:
    return ScriptedBackend(lambda task: [done(task)])


def test_a_study_that_is_moved_ends_its_run_at_the_next_commit_and_goes_on_where_it_lies(tmp_path, expected):
    study, moved = tmp_path / "study", tmp_path / "moved"
    ran = doing(backend(), 5, lambda: study.rename(moved))
    with pytest.raises(JournalError, match=r"moved or deleted while its study ran.*hpsearch resume DIR"):
        run_scripted(study, sweep_of(), ran)
    assert len(ran.tasks) == 5
    assert ran.closed == [True]
    assert not study.exists()
    assert csv(run_scripted(moved, None, backend())) == expected


def test_a_study_that_is_deleted_ends_its_run_and_is_not_brought_back(tmp_path):
    study = tmp_path / "study"
    ran = doing(backend(), 5, lambda: shutil.rmtree(study))
    with pytest.raises(JournalError, match="moved or deleted"):
        run_scripted(study, sweep_of(), ran)
    assert len(ran.tasks) == 5
    assert not study.exists()


@pytest.mark.parametrize("network", [False, True])
def test_with_its_lock_deleted_a_run_is_followed_by_another_and_never_writes_beside_it(
    tmp_path, expected, monkeypatch, network
):
    study = tmp_path / "study"
    monkeypatch.setattr("hpsearch.journal.journal.is_network_filesystem", lambda path: network)

    def second_driver() -> None:
        (study / "run.lock").unlink()
        assert csv(run_scripted(study, None, backend())) == expected

    with pytest.raises(StudyInUseError, match="another process has written this journal"):
        run_scripted(study, sweep_of(), doing(backend(), 5, second_driver))
    assert csv(load(study)) == expected
    assert load(study).state == "finished"


def test_where_locks_do_nothing_the_journal_itself_refuses_the_second_to_write(tmp_path, expected, monkeypatch):
    """Over NFS without locks, say, or from a container with a lock service of its own."""
    study = tmp_path / "study"
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    ran = doing(backend(), 5, lambda: run_scripted(study, None, backend()))
    with pytest.raises(StudyInUseError, match="another process has written this journal"):
        run_scripted(study, sweep_of(), ran)
    assert csv(load(study)) == expected


def test_a_stop_that_comes_before_anything_is_started_counts(tmp_path):
    """While the workers of a former run are outwaited, say, or a long journal is replayed."""
    place = create_study(sweep_of(), tmp_path / "study")

    def asked_to_stop(_: Sweep) -> Backend:
        with Journal.read(place.journal) as journal:
            journal.request("stop")
        return backend()

    run = RunSettings("package.module:function", asked_to_stop, SilentDisplay(), tensorboard=False)
    assert run_study(place, None, run).state == "stopped"
    assert run_scripted(place.path, None, backend()).state == "finished"


class Unopenable(ScriptedBackend):
    def __init__(self, error: OSError) -> None:
        super().__init__(lambda task: [done(task)])
        self.error = error

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        raise self.error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
def test_a_directory_that_cant_be_written_any_more_is_an_error_of_ours(tmp_path, number, expected):
    token = str(tmp_path / "study" / "sight.token")
    with pytest.raises(StorageError, match=rf"{os.strerror(number)}.*sight\.token.*then resume"):
        run_scripted(tmp_path / "study", sweep_of(), Unopenable(OSError(number, os.strerror(number), token)))
    assert csv(run_scripted(tmp_path / "study", None, backend())) == expected


def test_another_error_of_the_system_is_passed_on_as_it_is(tmp_path):
    with pytest.raises(ConnectionRefusedError):
        run_scripted(tmp_path / "study", sweep_of(), Unopenable(ConnectionRefusedError(errno.ECONNREFUSED, "refused")))


def test_a_clock_that_was_set_back_takes_nothing_off_the_time_spent():
    opened = Opened("inline", None, "me@here:1", "hpsearch run")
    first = [
        Entry(100.0, opened, Followed()),
        Entry(160.0, Exhausted(), Followed()),
        Entry(40.0, Exhausted(), Followed()),
        Entry(50.0, Ended("interrupted"), Followed()),
    ]
    assert seconds_spent(first) == 70.0
    more = [Entry(1000.0, opened, Followed()), Entry(1005.0, Exhausted(), Followed())]
    assert seconds_spent([*first, *more]) == 75.0
    assert seconds_spent([]) == 0.0


def test_a_study_whose_time_is_used_up_goes_on_with_more_alone(tmp_path):
    calls = []

    def search(max_time: float) -> int:
        def train(trial: hpsearch.RunningTrial) -> None:
            calls.append(trial.number)
            for iteration in trial.iterations():
                trial.report({"loss": trial.params["x"] / iteration})

        study = hpsearch.search(
            train,
            parameters={"x": hpsearch.Uniform(0, 1)},
            metric="loss",
            max_iter=10**9,
            run_cap=1,
            limits={"max_time": max_time},
            backend="inline",
            directory=tmp_path / "study",
            observers=[],
            progress=False,
        )
        assert study.state == "max_time"
        with Journal.read(tmp_path / "study/study.db") as journal:
            return len(list(journal.entries()))

    first = search(0.05)
    assert search(0.05) == search(0.01) == first
    assert len(calls) == 1
    assert search(seconds_of(tmp_path / "study") + 0.05) > first
    assert len(calls) == 2


def seconds_of(directory: Path) -> float:
    with Journal.read(directory / "study.db") as journal:
        return seconds_spent(list(journal.entries()))
