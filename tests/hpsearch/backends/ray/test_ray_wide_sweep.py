"""A whole sweep of wide trials that loses a node in the middle of a segment."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpsearch
from hpsearch.errors import JournalError
from hpsearch.events import Event, Lost, Saved, Started
from hpsearch.trial import TrialState
from tests.hpsearch.support.backend_trainables import together
from tests.hpsearch.support.conditions import beside, wait_until
from tests.hpsearch.support.scripted import events_of

WIDTH, ITERATIONS = 3, 4


def saves(directory: Path) -> list[Saved]:
    """Return the checkpoints that the journal has so far."""
    try:
        return [event for event in events_of(directory) if isinstance(event, Saved)]
    except JournalError:  # it is only about to be made
        return []


def starts(events: list[Event], trial: int) -> list[int]:
    """Return the iterations after which the attempts of a trial began."""
    segments = [event.segment for event in events if isinstance(event, Started)]
    return [segment.start for segment in segments if segment.trial == trial]


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_node_lost_in_the_middle_of_a_wide_segment_costs_an_attempt_and_no_trial(ray_cluster, tmp_path, add_node):
    """Three workers of two nodes train each trial; when one node is gone, the third takes its place."""
    nodes = [add_node(1) for _ in range(2)]
    directory, hold = tmp_path / "study", tmp_path / "hold"
    hold.touch()

    def gang() -> set[int]:
        return {int(path.stem) for path in tmp_path.glob("*.held")}

    def lose_a_node() -> None:
        try:
            wait_until(lambda: len(gang()) == WIDTH and len(saves(directory)) > 0)
            next(node for node in nodes if gang() & node.workers()).lose()
        finally:
            hold.unlink()  # until now nobody came through the second iteration

    losing = beside(lose_a_node)
    study = hpsearch.search(
        together,
        parameters={"x": hpsearch.Uniform(0.0, 1.0), "hold": str(hold)},
        metric={"name": "value", "goal": "maximize"},
        method="random",
        max_iter=ITERATIONS,
        run_cap=4,
        resources={"workers_per_trial": WIDTH},
        checkpoints={"every": 1},
        directory=directory,
        observers=[],
        progress=False,
    )
    losing.result()
    assert {row.state for row in study.trials} == {TrialState.COMPLETE}
    for row in study.trials:
        assert row.value == pytest.approx(WIDTH * ITERATIONS * row.params["x"], rel=1e-6)
    events, saved = events_of(directory), saves(directory)[0]
    assert {event.trial for event in events if isinstance(event, Lost)} == {saved.trial}
    assert starts(events, saved.trial)[:2] == [0, saved.iteration]
    assert {event.segment.width for event in events if isinstance(event, Started)} == {WIDTH}
