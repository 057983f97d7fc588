"""Several processes and threads ask and tell, and nothing is lost wherever one is killed."""

from __future__ import annotations

import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

import hpsearch
from hpsearch.errors import SearcherError, TellError
from hpsearch.events import ASK_TELL, Opened, Started
from hpsearch.run.ask_tell import AskTell
from hpsearch.searchers import Search
from hpsearch.trial import TrialState
from tests.hpsearch.support.asking import ask, asked_sweep, by_x, finish, halving, refused, reports, table
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.scripted import events_of, of_kind


def test_many_threads_and_openings_share_a_study(tmp_path):
    """Some share an `AskTell`, others have one of their own, as processes have."""
    sweep = halving()
    shared = AskTell(sweep, directory=tmp_path / "lab")
    given: list[tuple[int, int]] = []

    def work(lab: AskTell) -> None:
        while True:
            trial = lab.ask()
            if trial is not None:
                given.append((trial.number, trial.attempt))
                lab.tell(trial, reports(trial, by_x))
            elif lab.finished:
                return

    labs = [shared, shared, AskTell(directory=tmp_path / "lab")]
    threads = [threading.Thread(target=work, args=[lab]) for lab in labs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(Counter(given).values()) == {1}
    assert len(given) == 9 + 3 + 1
    with AskTell(sweep, directory=tmp_path / "alone") as lab:
        finish(lab)
    assert table(tmp_path / "lab") == table(tmp_path / "alone")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.asked") as server:
        yield server


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["random", pytest.param("tpe", marks=pytest.mark.exhaustive)])
def test_killed_between_ask_and_tell(server, tmp_path, method):
    directory = tmp_path / "lab"
    search = Search(startup=1) if method == "tpe" else Search()
    lab = AskTell(asked_sweep(method=method, search=search), directory=directory)
    for number in range(6):
        assert server.call("ask_and_die_unwritten", str(directory)) == -signal.SIGKILL
        assert lab.open_trials() == []
        assert server.call("ask_and_die", str(directory)) == -signal.SIGKILL
        (trial,) = lab.open_trials()
        assert (tmp_path / "asked.txt").read_text() == f"{number} 1 {trial.flat['x']!r}"
        assert hpsearch.load(directory).state == "open"
        lab.tell(trial, {"loss": by_x(trial, 1)})
    assert lab.finished
    with AskTell(asked_sweep(method=method, search=search), directory=tmp_path / "alone") as alone:
        finish(alone)
    assert table(directory) == table(tmp_path / "alone")
    assert len(of_kind(directory, Opened)) == 1
    assert len(of_kind(directory, Started)) == 6


def test_killed_in_a_tell_nothing_of_it_counts_and_after_it_all_of_it(server, tmp_path):
    directory = tmp_path / "lab"
    lab = AskTell(asked_sweep(), directory=directory)
    trial = ask(lab)
    before = events_of(directory)
    assert server.call("tell_and_die", str(directory), 0, False) == -signal.SIGKILL
    assert events_of(directory) == before
    assert lab.open_trials() == [trial]
    assert server.call("tell_and_die", str(directory), 0, True) == -signal.SIGKILL
    with pytest.raises(TellError, match="it was told and is complete"):
        lab.tell(trial, {"loss": 9.0})
    assert hpsearch.load(directory).trials[0].value == 0.25


def test_killed_between_reports_those_before_count(server, tmp_path):
    directory = tmp_path / "lab"
    lab = AskTell(asked_sweep(max_iter=4), directory=directory)
    trial = ask(lab)
    assert server.call("report_and_die", str(directory), 0, 2) == -signal.SIGKILL
    (half,) = lab.open_trials()
    assert (half.attempt, half.start, half.end) == (1, 2, 4)
    assert lab.tell(trial, [{"loss": 0.3}, {"loss": 0.2}]) is TrialState.COMPLETE
    assert hpsearch.load(directory).curves() == {0: [(1, 1.0), (2, 0.5), (3, 0.3), (4, 0.2)]}


def test_after_a_searcher_has_failed_it_is_asked_again(tmp_path, monkeypatch):
    sweep = asked_sweep(method="tests.hpsearch.support.climbing:Failing")
    with AskTell(sweep, directory=tmp_path / "alone") as alone:
        finish(alone)
    monkeypatch.setenv("TEST_SEARCHER_FAILS", "raises")
    with AskTell(sweep, directory=tmp_path / "lab") as lab:
        for _ in range(3):
            trial = ask(lab)
            lab.tell(trial, reports(trial, by_x))
        for _ in range(2):
            refused(lab, "a searcher must not fail, but .* no model", lab.ask, SearcherError)
        monkeypatch.delenv("TEST_SEARCHER_FAILS")
        finish(lab)
    assert table(tmp_path / "lab") == table(tmp_path / "alone")


def test_a_copied_study_goes_on_where_it_lies(tmp_path):
    lab = AskTell(asked_sweep(), directory=tmp_path / "lab")
    trial = ask(lab)
    shutil.copytree(tmp_path / "lab", tmp_path / "copy")
    assert AskTell(directory=tmp_path / "copy").open_trials() == [trial]
    assert of_kind(tmp_path / "copy", Opened)[0].backend == ASK_TELL
