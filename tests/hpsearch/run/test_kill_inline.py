"""kill -9 at any moment, resume, and the table is the same to the byte; no finished segment runs again."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import hpsearch
from hpsearch.events import Event, Finished, Opened, Saved, Started
from hpsearch.schedulers.brackets import hyperband_brackets, iterations
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.killed_sweep import EPOCHS
from tests.hpsearch.support.scripted import events_of

EVERY = 2
"""Iterations between checkpoints, in half of the tests."""


@dataclass
class Whole:
    """What a run that nobody killed left."""

    table: str
    epochs: Counter[str]
    events: list[Event]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.killed_sweep") as server:
        yield server


@pytest.fixture(scope="module")
def whole(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, Whole]:
    found = {}
    for every in (None, EVERY):
        study = tmp_path_factory.mktemp("whole") / "study"
        assert server.call("begin", str(study), every) == 0
        found[every] = Whole(table_of(study), epochs_of(study), events_of(study))
    return found


def table_of(study: Path) -> str:
    loaded = hpsearch.load(study)
    assert loaded.state == "finished"
    assert on_disk(study) == {loaded.directory / str(loaded.best_trial.checkpoint)}
    return rows_to_csv(loaded.trials, loaded.sweep.parameters.names)


def on_disk(study: Path) -> set[Path]:
    return set(study.rglob("state.pt"))


def epochs_of(study: Path) -> Counter[str]:
    return Counter((study.parent / EPOCHS).read_text().splitlines())


def test_the_whole_run_is_what_hyperband_says(whole):
    for run in whole.values():
        assert len(run.table.splitlines()) == 1 + 17
        assert set(run.epochs.values()) == {1}
        assert run.epochs.total() == sum(iterations(bracket) for bracket in hyperband_brackets(9))
    assert whole[None].table == whole[EVERY].table  # saving more often changes no bit


SOME = (1, 2, 3, 4, 5, 9, 16, 23, 30)
"""Numbers of events, of every kind that is among the first 30."""


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("every", "numbers"),
    [
        (None, SOME),
        pytest.param(None, sorted({*range(1, 31)} - {*SOME}), marks=pytest.mark.exhaustive),
        (EVERY, range(4, 40, 12)),
        pytest.param(EVERY, sorted({*range(4, 40, 4)} - {*range(4, 40, 12)}), marks=pytest.mark.exhaustive),
    ],
)
def test_killed_after_each_of_the_first_30_events_and_resumed_to_the_same_table(
    server, whole, tmp_path, every, numbers
):
    for number in numbers:
        study = tmp_path / str(number) / "study"
        assert server.call("begin_and_die_after_event", str(study), every, number) == -signal.SIGKILL
        assert len(events_of(study)) == number
        before = hpsearch.load(study)
        assert before.state == "killed"

        assert server.call("begin", str(study), every) == 0
        assert table_of(study) == whole[every].table
        # Each event was written before anything else happened, so nothing at all ran twice.
        assert epochs_of(study) == whole[every].epochs
        shutil.rmtree(study.parent)


def test_some_of_the_first_30_events_are_of_every_kind(whole):
    kinds = [type(event) for event in whole[None].events[:30]]
    assert {kinds[number - 1] for number in SOME} == set(kinds)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("every", "step"),
    [(EVERY, 21), (None, 21), (None, 7), (EVERY, 7)],
)
def test_killed_inside_a_segment_only_what_counted_of_it_isnt_run_again(server, whole, tmp_path, every, step):
    for epoch in range(1, whole[every].epochs.total(), step):
        study = tmp_path / str(epoch) / "study"
        assert server.call("begin_and_die_in_epoch", str(study), every, epoch) == -signal.SIGKILL
        events = events_of(study)
        counted = {
            f"{report.trial} {report.iteration}"
            for event in events
            if isinstance(event, Saved | Finished)
            for report in event.reports
        }
        former = epochs_of(study)
        started = [event.segment for event in events if isinstance(event, Started)]

        assert server.call("begin", str(study), every) == 0
        assert table_of(study) == whole[every].table
        twice = {line for line, count in epochs_of(study).items() if count == 2}
        assert twice == former.keys() - counted
        assert {line.split()[0] for line in twice} == {str(started[-1].trial)}
        assert len(twice) <= (every or 9)
        assert set(epochs_of(study)) == set(whole[every].epochs)
        shutil.rmtree(study.parent)


@pytest.mark.exhaustive
def test_killed_again_and_again(server, whole, tmp_path):
    """Each run gets two events further: it opens, starts a segment, and sees its end at the most."""
    study = tmp_path / "study"
    runs = 0
    while True:
        written = len(events_of(study)) if study.exists() else 0
        runs += 1
        status = server.call("begin_and_die_after_event", str(study), None, written + 3)
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert runs > 15
    assert sum(isinstance(event, Opened) for event in events_of(study)) == runs
    assert table_of(study) == whole[None].table
    assert epochs_of(study) == whole[None].epochs


@pytest.mark.exhaustive
@pytest.mark.parametrize("places", [(1, 2, 5), pytest.param((3, 4, 6), marks=pytest.mark.exhaustive)])
def test_killed_after_an_extension_it_goes_on_with_the_extended_sweep(server, tmp_path, places):
    reference = tmp_path / "reference" / "study"
    assert server.call("begin", str(reference), None, 20) == 0
    assert server.call("begin", str(reference), None, 23) == 0
    first = tmp_path / "first" / "study"
    assert server.call("begin", str(first), None, 20) == 0
    finished = len(events_of(first))
    for number in (finished + place for place in places):
        study = tmp_path / str(number) / "study"
        shutil.copytree(first.parent, study.parent)
        # killed before the extension was written, just after it, and while the segments that it adds run
        assert server.call("begin_and_die_after_event", str(study), None, number, 23) == -signal.SIGKILL
        assert len(events_of(study)) == number
        assert server.call("begin", str(study), None, 23) == 0
        assert table_of(study) == table_of(reference)
        assert epochs_of(study) == epochs_of(reference)
        # What it was extended by is its own from now on: the smaller sweep isn't it any more.
        assert server.call("begin", str(study), None, 20) == 1
