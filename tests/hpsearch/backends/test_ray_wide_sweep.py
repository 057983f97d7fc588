"""A whole sweep of wide trials that loses a node in the middle of a segment."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import hpsearch
from hpsearch.events import Lost, Started
from hpsearch.trial import TrialState
from tests.hpsearch.backends.conditions import alive_nodes, wait_until
from tests.hpsearch.backends.trainables import together
from tests.hpsearch.scripted import events_of

WIDTH, ITERATIONS = 3, 4


def ranks_that_printed(directory: Path) -> int:
    return len(list(directory.glob("trials/*/*/rank-*/output.log")))


@pytest.mark.ray
@pytest.mark.slow
def test_a_node_lost_in_the_middle_of_a_wide_segment_costs_an_attempt_and_no_trial(ray_cluster, tmp_path):
    """Three workers of two nodes train each trial; when one node is gone, another takes its place."""
    before = alive_nodes()
    lost = ray_cluster.add_node(num_cpus=1, include_dashboard=False)
    wait_until(lambda: alive_nodes() == before + 1)
    directory = tmp_path / "study"
    spare = []

    def lose_a_node() -> None:
        wait_until(lambda: directory.exists() and ranks_that_printed(directory) >= WIDTH - 1)
        spare.append(ray_cluster.add_node(num_cpus=1, include_dashboard=False))
        wait_until(lambda: alive_nodes() == before + 2)
        ray_cluster.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    study = hpsearch.search(
        together,
        parameters={"x": hpsearch.Uniform(0.0, 1.0), "pause": 1.0},
        metric="value",
        goal="maximize",
        method="random",
        max_iter=ITERATIONS,
        run_cap=6,
        workers=WIDTH,
        workers_per_trial=WIDTH,
        checkpoint_every=1,
        directory=directory,
        tensorboard=False,
        progress=False,
    )
    thread.join()
    ray_cluster.remove_node(spare[0])
    assert {row.state for row in study.trials} == {TrialState.COMPLETE}
    for row in study.trials:
        assert row.value == pytest.approx(WIDTH * ITERATIONS * row.params["x"], rel=1e-6)
    events = events_of(directory)
    assert any(isinstance(event, Lost) for event in events)
    assert {event.segment.width for event in events if isinstance(event, Started)} == {WIDTH}
