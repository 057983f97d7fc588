"""What tests on Ray share beside the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hpsearch.support.conditions import alive_nodes, living_below, wait_until
from tests.hpsearch.support.driver import closed_in_the_end


@pytest.fixture(autouse=True)
def closed_backends() -> Iterator[None]:
    """Leave no worker to a backend whose test failed."""
    with closed_in_the_end():
        yield


@pytest.fixture
def blind_node(ray_cluster, tmp_path) -> Iterator[str]:
    """A node whose processes see an empty directory where this test's files are; gives its mount namespace."""
    command = (
        f"mount -t tmpfs none {tmp_path} && readlink /proc/self/ns/mnt && "
        f"exec {Path(sys.executable).parent / 'ray'} start --address={ray_cluster.address} --num-cpus=1 --block"
    )
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    namespace = process.stdout.readline().strip()
    if not namespace.startswith("mnt:"):
        process.wait()
        process.stdout.close()
        pytest.skip(f"no mount namespace of its own can be made here: {namespace}")
    threading.Thread(target=process.stdout.read, daemon=True).start()
    # Two nodes that start on one host at once may choose the same names for their sockets.
    wait_until(lambda: alive_nodes() == 2)
    yield namespace
    for raylet in living_below(process.pid, "raylet"):
        raylet.terminate()  # it says goodbye to the cluster, which would take half a minute to miss it
    wait_until(lambda: alive_nodes() == 1)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    process.stdout.close()


@pytest.fixture
def add_node(ray_cluster: Any) -> Iterator[Callable[[int], Any]]:
    """A function that adds a node with so many CPUs, which the test may lose; all are gone when it ends."""
    before = alive_nodes()
    added = []

    def add(cpus: int) -> Any:
        known = alive_nodes()
        added.append(ray_cluster.add_node(num_cpus=cpus, include_dashboard=False))
        wait_until(lambda: alive_nodes() == known + 1)
        return added[-1]

    yield add
    for node in added:
        if node in ray_cluster.worker_nodes:
            ray_cluster.remove_node(node)
    # Ray takes a while to miss one that was killed, and tells the next test of its CPUs until then.
    wait_until(lambda: alive_nodes() == before)
