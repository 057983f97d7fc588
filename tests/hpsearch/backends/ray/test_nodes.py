"""Which workers nodes hold, by their resources alone; no Ray runs."""

from __future__ import annotations

from typing import Any

import pytest

from hpsearch.backends.ray.nodes import Shape, waiting_text


@pytest.mark.parametrize(
    ("shape", "resources", "count"),
    [
        (Shape(1, 0.0), {"CPU": 4.0}, 4),
        (Shape(3, 0.0), {"CPU": 8.0, "GPU": 2.0}, 2),
        (Shape(1, 0.15), {"CPU": 16.0, "GPU": 2.0}, 12),  # six of each device, and 0.1 of each is left
        (Shape(1, 0.4), {"CPU": 16.0, "GPU": 2.0}, 4),
        (Shape(1, 1 / 3), {"CPU": 16.0, "GPU": 2.0}, 6),
        (Shape(1, 0.1), {"CPU": 64.0, "GPU": 3.0}, 30),
        (Shape(1, 0.6), {"CPU": 16.0, "GPU": 3.0}, 3),
        (Shape(1, 1.0), {"CPU": 16.0, "GPU": 3.0}, 3),
        (Shape(1, 2.0), {"CPU": 16.0, "GPU": 3.0}, 1),
        (Shape(4, 0.15), {"CPU": 16.0, "GPU": 2.0}, 4),
        (Shape(1, 0.15), {"CPU": 16.0}, 0),
    ],
)
def test_a_fraction_of_a_gpu_is_of_one_device(shape: Shape, resources: dict[str, float], count: int) -> None:
    assert shape.fit(resources) == count


def node(address: str, cpus: int, gpus: int = 0) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Resources": {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}}


def test_a_worker_is_on_one_node() -> None:
    nodes = [node("10.0.0.1", 3), node("10.0.0.2", 3)]
    assert Shape(2, 0.0).room(nodes) == 2
    assert Shape(2, 0.0).shortage(nodes, 2) is None
    assert Shape(2, 0.0).shortage(nodes, 3) == (
        "a trial needs 3 workers at once, each of 2 CPUs; the nodes hold 1 (10.0.0.1: 3 CPUs) + 1 (10.0.0.2: 3 CPUs) = "
        "2 of them, busy ones included"
    )


def test_thirteen_workers_that_two_shared_gpus_do_not_hold_are_a_shortage() -> None:
    shortage = Shape(1, 0.15).shortage([node("10.0.0.1", 16, 2)], 13)
    assert shortage == (
        "a trial needs 13 workers at once, each of 1 CPU and 0.15 GPU; the nodes hold 12 (10.0.0.1: 16 CPUs, 2 GPUs) = "
        "12 of them, busy ones included"
    )


def test_a_gang_that_waits_says_what_it_holds_itself_and_counts_nobody_who_waits_too() -> None:
    free = {"CPU": 1.0}
    need = "a trial needs 2 workers, each 1 CPU; 1 CPUs are free"
    assert waiting_text(Shape(1, 0.0), 2, free, {}, 1) == f"workers are starting: {need}"
    assert waiting_text(Shape(1, 0.0), 2, free, {"a (me@here:7)": 1}, 0) == (
        f"waiting for workers of other sweeps: {need}; taken: 1 of a (me@here:7)"
    )
    assert waiting_text(Shape(1, 0.0), 2, free, {"a (me@here:7)": 1}, 1) == (
        f"waiting for workers of other sweeps: {need}; taken: 1 of a (me@here:7); this sweep holds 1. Where the others "
        "wait for more, too, one sweep after another gives way"
    )
