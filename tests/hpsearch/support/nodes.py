"""The tests' Ray: its head, and nodes beside it. Each is started as on a machine of its own, and leaves or is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from tests.hpsearch.support.conditions import gone, living_below, wait_until
from tests.hpsearch.support.local_ray import kill_tree

_TRIES = 4
"""Ray gives a start up that takes half a minute, as it may on a busy machine."""

_OBJECTS = 150 << 20
"""Bytes of its object store, as Ray's own tests have it; Ray would take nearly a third of the memory that is free."""


@dataclass(frozen=True)
class Node:
    """A node that was added."""

    process: subprocess.Popen[bytes]
    """Of `ray start`; all others of the node descend from it."""
    id: str

    def workers(self) -> set[int]:
        """Return the processes of its workers, which are its raylet's children."""
        raylets = living_below(self.process.pid, "raylet")
        return {child.pid for raylet in raylets for child in living_below(raylet.pid, "")}

    def lose(self) -> None:
        """Kill it as its machine's end would, and wait until its workers have ended; Ray itself misses it later."""
        workers = self.workers()
        _kill(self.process)
        wait_until(lambda: all(gone(pid) for pid in workers))

    def leave(self) -> None:
        """End it unless it is lost, and wait until Ray knows: it would tell the next test of this node's CPUs."""
        if self.process.poll() is None:
            for raylet in living_below(self.process.pid, "raylet"):
                raylet.terminate()  # it says goodbye to the cluster, which would take half a minute to miss it
        wait_until(lambda: self.id not in _alive(), _known)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


def started_head() -> Any:
    """Start a cluster of one node with two CPUs.

    Raises:
        Exception: What Ray said the last time, where it started none time and again.
    """
    from ray.cluster_utils import Cluster

    def head() -> Any:
        return Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})

    before = set(psutil.Process().children())
    for _ in range(_TRIES - 1):
        try:
            return head()
        except Exception:
            for started in set(psutil.Process().children()) - before:
                kill_tree(started)
    return head()


@contextlib.contextmanager
def added_node(address: str, cpus: int, within: Sequence[str] = ()) -> Iterator[Node]:
    """Add a node; it is gone in the end, lost or not.

    Args:
        address: Of the cluster.
        cpus: How many it has.
        within: A command that runs the one which is appended to it.

    Raises:
        AssertionError: Ray started none, time and again.
    """
    words = ["start", f"--address={address}", f"--num-cpus={cpus}", f"--object-store-memory={_OBJECTS}", "--block"]
    command = [*within, str(Path(sys.executable).parent / "ray"), *words]
    node = _started(command)
    try:
        yield node
    finally:
        node.leave()


def _started(command: Sequence[str]) -> Node:
    for _ in range(_TRIES):
        with tempfile.TemporaryFile() as output:
            node = _start(command, output)
            if node is not None:
                return node
            said = _text(output)
    raise AssertionError(f"Ray started no node, {_TRIES} times; the last time it said:\n{said}\n{_known()}")


def _start(command: Sequence[str], output: IO[bytes]) -> Node | None:
    """Start a node, and wait until Ray knows it; None: its start was given up."""
    before = _alive()
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        # Two nodes that start on one host at once may choose the same names for their sockets.
        wait_until(lambda: process.poll() is not None or not _alive() <= before, lambda: f"{_known()}\n{_text(output)}")
    except BaseException:
        _kill(process)
        raise
    if process.poll() is None:
        (new,) = _alive() - before
        return Node(process, new)
    wait_until(lambda: _alive() <= before, _known)  # what was started may have come so far all the same
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the processes of a node at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        kill_tree(psutil.Process(process.pid))
    process.wait()


def _alive() -> set[str]:
    """Return the nodes that are alive, as far as Ray knows."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _known() -> str:
    """Say what Ray knows of its nodes."""
    import ray

    lives = {
        node["NodeID"]: "alive" if node["Alive"] else f"dead: {node.get('DeathReasonMessage')}" for node in ray.nodes()
    }
    return f"Ray's nodes: {lives}"


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")
