"""kill -9 between a request and its answer, and behind it: what was answered holds, and nothing else was asked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch
from hpsearch.events import Pruned
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.scripted import events_of, of_kind

EPOCH, TRIALS = 6, [4, 5]
"""When somebody asks to prune which trials: the best one waits for its rung, and another that would go on runs."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.killed_sweep") as server:
        yield server


def table_of(study: Path) -> str:
    loaded = hpsearch.load(study)
    assert loaded.state == "finished"
    return rows_to_csv(loaded.trials, loaded.sweep.parameters.names)


def rows_but(study: Path, trials: set[int]) -> list[str]:
    return [row for row in table_of(study).splitlines() if not row.startswith(tuple(f"{trial}," for trial in trials))]


@pytest.mark.exhaustive
def test_a_killed_process_has_answered_whole_or_not_at_all(server, tmp_path):
    whole, pruned = (tmp_path / name / "study" for name in ("whole", "pruned"))
    assert server.call("begin", str(whole), None) == 0
    assert server.call("begin_and_prune", str(pruned), EPOCH, TRIALS) == 0
    kinds = events_of(pruned)
    places = [place for place, event in enumerate(kinds, 1) if isinstance(event, Pruned)]
    assert len(places) == len(TRIALS)
    assert {row.state for row in hpsearch.load(pruned).trials if row.number in TRIALS} == {"stopped"}
    assert table_of(pruned) != table_of(whole)

    asked = tmp_path / "asked" / "study"
    assert server.call("begin_and_prune", str(asked), EPOCH, TRIALS, True) == -signal.SIGKILL
    assert server.call("begin", str(asked), None) == 0
    assert table_of(asked) == table_of(whole)
    assert not of_kind(asked, Pruned)
    assert [step.outcome for step in hpsearch.load(asked).history() if step.verb == "prune"] == ["not answered"]

    for number in (places[-1], places[-1] + 1):
        study = tmp_path / str(number) / "study"
        assert server.call("begin_and_prune", str(study), EPOCH, TRIALS, False, number) == -signal.SIGKILL
        assert server.call("begin", str(study), None) == 0
        # What ran when the answer was given reported something that no checkpoint had made count.
        unlike = {5} if number == places[-1] else set()
        assert rows_but(study, unlike) == rows_but(pruned, unlike)
        assert hpsearch.load(study).trials[5].reason == "pruned by ada@there"
