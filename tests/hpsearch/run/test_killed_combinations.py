"""Features together, killed before and after each new kind of event, and resumed on 1, 2 and 5 workers: one table.

`pytest -s` prints a digest of each table.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.events import Changed, Continued, Event, Failed, Finished, Steered
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.killed_combinations import FROM, SWEEPS
from tests.hpsearch.support.scripted import events_of

WORKERS = (1, 2, 5)
EARLY = 25
"""Events after which a study is stopped for its space to change: fewer than `FROM` trials have begun."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.killed_combinations") as server:
        yield server


def places(events: Sequence[Event], first: int = 0) -> list[int]:
    """Return before and after which events to kill: the first failure, the first NaN, and two others."""
    failed = [place for place, event in enumerate(events) if isinstance(event, Failed)][:1]
    diverged = [
        place
        for place, event in enumerate(events)
        if isinstance(event, Finished)
        and any(report.metrics["loss"] != report.metrics["loss"] for report in event.reports)
    ][:1]
    around = [place + after for place in (*failed, *diverged, len(events) // 2) for after in (0, 1)]
    return sorted({place for place in around if place > first})


def table_of(study: Path) -> str:
    loaded = hpsearch.load(study)
    assert loaded.state == "finished"
    return rows_to_csv(loaded.trials, loaded.names)


class Life:
    """A study that goes through all steps, and may be killed in each."""

    def __init__(self, server: ForkServer, study: Path, name: str, workers: int, source: str = "") -> None:
        self.server, self.study, self.name, self.workers, self.source = server, study, name, workers, source

    def call(self, function: str, *arguments: Any, kill: int = 0) -> None:
        ended = self.server.call(
            function, str(self.study), *arguments, kill, *([self.source] if function == "begin" else [])
        )
        assert ended == (-signal.SIGKILL if kill else 0)

    def steer(self, function: str, kind: type[Event], kills: bool) -> None:
        """Change or extend the study; killed before and after the transaction of the event, where it kills."""
        if kills:
            written = len(events_of(self.study))
            self.call(function, kill=written)
            assert not any(isinstance(event, kind) for event in events_of(self.study)[written:])
            self.call(function, kill=written + 2)
        else:
            self.call(function)
        assert [type(event) for event in events_of(self.study)[-2:]] == [Steered, kind]

    def live(self, kills: Sequence[int] = (), steered: bool = False) -> None:
        steps = SWEEPS[self.name][1]
        if "change" in steps:
            self.call("begin", self.name, self.workers, kill=EARLY)
            assert len(hpsearch.load(self.study).trials) <= FROM
            self.steer("change", Changed, steered)
        for kill in kills:
            self.call("begin", self.name, self.workers, kill=kill)
        self.call("begin", self.name, self.workers)
        if "extend" in steps:
            self.steer("extend", Continued, steered)
            if steered:
                self.call("begin", self.name, self.workers, kill=len(events_of(self.study)) + 2)
            self.call("begin", self.name, self.workers)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SWEEPS)
def test_killed_around_each_new_event_the_table_is_the_same_on_any_workers(server, tmp_path, name):
    source = ""
    if "other space" in SWEEPS[name][1]:
        source = str(tmp_path / "source")
        Life(server, Path(source), "change", 1).live()
    digests = set()
    for workers in WORKERS:
        whole, killed = (tmp_path / f"{kind}-{workers}" / "study" for kind in ("whole", "killed"))
        Life(server, whole, name, workers, source).live()
        first = EARLY + 2 if "change" in SWEEPS[name][1] else 0
        Life(server, killed, name, workers, source).live(places(events_of(whole), first), steered=True)
        for study in (whole, killed):
            digests.add(hashlib.sha256(table_of(study).encode()).hexdigest()[:12])
        shutil.rmtree(whole)
    print(f"\n{name}: {' '.join(sorted(digests))}")
    assert len(digests) == 1
