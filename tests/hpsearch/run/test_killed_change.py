"""kill -9 before and after the event of a changed space: it is there whole or not at all, and the table is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.events import Changed
from hpsearch.journal.journal import Journal
from hpsearch.searchers import Search
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.command_line import environment
from tests.hpsearch.support.scripted import events_of, of_kind

FROM, AFTER = 24, 40
"""The first trial of the new space, and after how many events the first process is killed."""

NEW: dict[str, Any] = {
    "lr": hpsearch.LogUniform(1e-3, 10),
    "dropout": hpsearch.Uniform(0, 0.5, default=0),
    "width": hpsearch.Constant(8),
}


class Slope(hpsearch.Curves):
    """Its searcher needs no process of its own, and each trial takes another time."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        loss = abs(params["lr"] - 2) + params.get("dropout", 0) + params["width"] / 100
        return hpsearch.Curve({"loss": [loss + 1 / i for i in range(1, 10)]}, 1.0 + seed % 7)


def run(directory: Path | str, workers: int) -> hpsearch.Study:
    """Begin the search, or resume it with the space that it has by then."""
    known = hpsearch.load(directory).sweep.parameters if Path(directory, "study.db").exists() else None
    return hpsearch.search(
        Slope,
        parameters=known or {"lr": hpsearch.LogUniform(1e-3, 1), "width": [4, 8, 16]},
        metric="loss",
        method="tpe",
        search=Search(lag=5, startup=4),
        early_terminate=hpsearch.Hyperband(9),
        run_cap=40,
        directory=directory,
        backend="simulated",
        resources={"workers": workers},
        observers=[],
        progress=False,
    )


def die_at(number: int) -> None:
    """Let this process be killed once the journal holds so many events."""
    append = Journal.append

    def append_and_die(journal: Journal, events: Sequence[Any], followed: Sequence[Any], when: Any = None) -> Any:
        (written,) = journal._connection.execute("SELECT count(*) FROM events").fetchone()
        room = number - written
        given = append(journal, events[:room], followed[:room], *([] if when is None else [when]))
        if written + len(events) >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return given

    Journal.append = append_and_die  # type: ignore[method-assign, assignment]


def call(code: str) -> int:
    lines = f"from tests.hpsearch.run.test_killed_change import *; {code}"
    done = subprocess.run([sys.executable, "-c", lines], env=environment(), capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def table(study: Path) -> str:
    loaded = hpsearch.load(study)
    assert loaded.state == "finished"
    return rows_to_csv(loaded.trials, loaded.names)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of a study that is changed and then runs to its end on one worker."""
    study = tmp_path_factory.mktemp("whole") / "study"
    assert call(f"die_at(30); run({str(study)!r}, 1)") == -signal.SIGKILL
    hpsearch.change(study, NEW, from_trial=FROM)
    assert call(f"run({str(study)!r}, 1)") == 0
    return table(study)


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_killed_around_the_change_a_study_ends_with_the_same_table(tmp_path, workers, whole):
    study = tmp_path / "study"
    assert call(f"die_at({AFTER}); run({str(study)!r}, {workers})") == -signal.SIGKILL
    change = f"hpsearch.change({str(study)!r}, NEW, from_trial=FROM)"
    # Before the transaction that holds the event: nothing is written. After it: the change holds.
    assert call(f"Journal.append = lambda *args: os.kill(os.getpid(), 9); {change}") == -signal.SIGKILL
    assert not of_kind(study, Changed)
    assert call(f"die_at({len(events_of(study)) + 2}); {change}") == -signal.SIGKILL
    assert len(of_kind(study, Changed)) == 1
    assert len(hpsearch.load(study).trials) <= FROM
    begun = len(events_of(study))
    for events in (begun + 1, begun + 20):
        assert call(f"die_at({events}); run({str(study)!r}, {workers})") == -signal.SIGKILL
    assert call(f"run({str(study)!r}, {workers})") == 0
    assert table(study) == whole
    rows = hpsearch.load(study).trials
    assert all(row.params["dropout"] == 0 for row in rows[:FROM])
    assert {row.params["width"] for row in rows[FROM:]} == {8}
