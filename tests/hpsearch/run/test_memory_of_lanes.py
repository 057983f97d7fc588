"""A trial that takes all the memory of the process that it shares fails by itself, and says how much there was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch
from hpsearch.events import Lost
from hpsearch.results.study import Study
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.lane_sweeps import results, table
from tests.hpsearch.support.scripted import events_of

SPARE = 512 << 20
"""Bytes: several times what four small networks take."""

COUNT = 5


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.greedy_lanes") as server:
        yield server


def study_of(server: ForkServer, path: Path, fault: str, count: int, lanes: int, spare: int) -> Study:
    """Run trials of which the last one has this fault; without it where they are fewer."""
    faults = [""] * (COUNT - 1) + [fault]
    assert server.call("begin", str(path), faults, count, lanes, spare) == 0
    return hpsearch.load(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["at once", "model", "loss"])
def test_a_trial_that_takes_all_memory_changes_no_row_of_its_neighbours(server, tmp_path, fault):
    without = study_of(server, tmp_path / "without", fault, COUNT - 1, 1, 0)
    study = study_of(server, tmp_path / "study", fault, COUNT, 5, SPARE)
    assert table(study).splitlines()[:COUNT] == table(without).splitlines()
    told = results(study)
    assert {of: told[of] for of in results(without)} == results(without)
    *others, greedy = study.trials
    assert max(row.lanes for row in others) > 1

    assert greedy.failure is not None
    assert greedy.failure.kind == "memory"
    figures = r"its process had [\d.]+ GiB resident, of [\d.]+ GiB \(.+\); it had a worker for itself"
    assert re.search(figures, greedy.failure.message), greedy.failure.message
    lost = [event for event in events_of(study.directory) if isinstance(event, Lost)]
    assert not [event for event in lost if event.counts_against_trial]
    assert COUNT - 1 in {event.trial for event in lost}, "it ran again with a worker for itself"
