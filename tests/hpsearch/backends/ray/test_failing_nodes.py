"""What is counted of workers that fail by no trial's doing, and when a sweep has had enough of a node."""

from __future__ import annotations

import pytest

from hpsearch.backends.ray.replacing import MOST_FAILURES, FailingNodes
from hpsearch.errors import BackendError


def fail(nodes: FailingNodes, node: str, times: int) -> None:
    for _ in range(times):
        nodes.failed(node, f"node {node}", "OSError: no room")


def test_the_error_names_the_node_and_what_its_last_worker_failed_with() -> None:
    nodes = FailingNodes("before they began")
    fail(nodes, "10.0.0.1", MOST_FAILURES - 1)
    with pytest.raises(
        BackendError, match=r"3 workers in a row failed on node 10\.0\.0\.1 before they began; .*no room"
    ):
        fail(nodes, "10.0.0.1", 1)


def test_a_node_has_another_go_whenever_a_worker_does_well_there() -> None:
    nodes = FailingNodes("")
    for _ in range(5):
        fail(nodes, "a", MOST_FAILURES - 1)
        nodes.did_well("a")


def test_what_goes_well_elsewhere_doesnt_count() -> None:
    nodes = FailingNodes("")
    fail(nodes, "a", MOST_FAILURES - 1)
    fail(nodes, "b", MOST_FAILURES - 1)
    nodes.did_well("b")
    with pytest.raises(BackendError, match="node a"):
        fail(nodes, "a", 1)
