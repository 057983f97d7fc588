"""A whole sweep of wide trials that loses a node in the middle of a segment."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import hpsearch
from hpsearch.errors import JournalError
from hpsearch.events import Lost, Saved, Started
from hpsearch.trial import TrialState
from tests.hpsearch.support.backend_trainables import together
from tests.hpsearch.support.conditions import alive_nodes, wait_until
from tests.hpsearch.support.scripted import events_of

WIDTH, ITERATIONS = 3, 4


def workers_seen(directory: Path) -> set[int]:
    """Give the processes of the ranks whose reports are in the journal."""
    try:
        saved = [event for event in events_of(directory) if isinstance(event, Saved)]
    except JournalError:
        return set()
    metrics = [report.metrics for event in saved for report in event.reports]
    return {int(each[f"pid{rank}"]) for each in metrics for rank in range(WIDTH)}


def runs_one_of(node: Any, pids: set[int]) -> bool:
    """Say whether some of these processes belong to a node: they are its raylet's children."""
    children = psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)
    return not pids.isdisjoint(child.pid for child in children)


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_node_lost_in_the_middle_of_a_wide_segment_costs_an_attempt_and_no_trial(ray_cluster, tmp_path):
    """Three workers of two nodes train each trial; when one node is gone, the third takes its place."""
    before = alive_nodes()
    nodes = []
    for _ in range(2):
        nodes.append(ray_cluster.add_node(num_cpus=1, include_dashboard=False))
        wait_until(lambda: alive_nodes() == before + len(nodes))
    directory = tmp_path / "study"

    def lose_a_node() -> None:
        wait_until(lambda: any(runs_one_of(node, workers_seen(directory)) for node in nodes))
        lost = next(node for node in nodes if runs_one_of(node, workers_seen(directory)))
        nodes.remove(lost)
        ray_cluster.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    study = hpsearch.search(
        together,
        parameters={"x": hpsearch.Uniform(0.0, 1.0), "pause": 0.5},
        metric="value",
        goal="maximize",
        method="random",
        max_iter=ITERATIONS,
        run_cap=4,
        workers_per_trial=WIDTH,
        checkpoint_every=1,
        directory=directory,
        tensorboard=False,
        progress=False,
    )
    thread.join()
    ray_cluster.remove_node(nodes.pop())
    assert not nodes, "none was lost"
    assert {row.state for row in study.trials} == {TrialState.COMPLETE}
    for row in study.trials:
        assert row.value == pytest.approx(WIDTH * ITERATIONS * row.params["x"], rel=1e-6)
    events = events_of(directory)
    assert any(isinstance(event, Lost) for event in events)
    assert {event.segment.width for event in events if isinstance(event, Started)} == {WIDTH}
