"""The nodes of a Ray cluster: how many workers fit on them, and whose workers they run."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state

from hpsearch.backends.ray.messages import Location
from hpsearch.errors import BackendError

NAMESPACE = "hpsearch"
"""Namespace of all our actors."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one worker reserves."""

    cpus: int
    gpus: float

    def __str__(self) -> str:
        cpus = "1 CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
        return f"{cpus} and {self.gpus:g} GPU" if self.gpus else cpus

    def fit(self, resources: dict[str, float]) -> int:
        """Return the number of workers that fit on a node; a fraction of a GPU belongs to one device."""
        count = int(resources.get("CPU", 0) // self.cpus)
        devices = int(resources.get("GPU", 0))
        if self.gpus >= 1:
            count = min(count, devices // int(self.gpus))
        elif self.gpus:
            count = min(count, devices * int(1 / self.gpus + 1e-9))
        return count

    def room(self, nodes: Iterable[dict[str, Any]]) -> int:
        """Return the number of workers that fit on these nodes when they are empty."""
        return sum(self.fit(node["Resources"]) for node in nodes)

    def shortage(self, nodes: Sequence[dict[str, Any]], needed: int) -> str | None:
        """Explain that fewer than `needed` workers fit on these nodes together; None if enough fit."""
        room = self.room(nodes)
        if room >= needed:
            return None
        by_node = " + ".join(f"{self.fit(node['Resources'])} ({_described(node)})" for node in nodes)
        return (
            f"a trial needs {needed} workers at once, each of {self}; the nodes hold {by_node or 0} = {room} of them, "
            "busy ones included"
        )

    def check(self, needed: int) -> str | None:
        """Return a warning if GPUs would be idle.

        Args:
            needed: Workers that a trial needs at once.

        Raises:
            BackendError: No live node could hold such a worker, or all nodes together too few for a trial.
        """
        alive = live_nodes()
        nodes = [node["Resources"] for node in alive]
        if not any(self.fit(node) for node in nodes):
            most = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in ("CPU", "GPU")}
            raise BackendError(
                f"a worker needs {self} on one node; the largest node has {most['CPU']:g} CPUs and "
                f"{most['GPU']:g} GPUs. Lower resources.cpus_per_worker or resources.gpus_per_worker."
            )
        if (shortage := self.shortage(alive, needed)) is not None:
            raise BackendError(
                f"{shortage}. Lower resources.workers_per_trial or resources.cpus_per_worker (or gpus_per_worker), or "
                "add nodes."
            )
        gpus = sum(node.get("GPU", 0) for node in nodes)
        if not gpus or self.gpus:
            return None
        return f"{gpus:g} GPUs are here and none is used: set resources.gpus_per_worker (a fraction shares a GPU)"


def live_nodes() -> list[dict[str, Any]]:
    """Return Ray's descriptions of the live nodes."""
    return [node for node in ray.nodes() if node["Alive"]]


def here() -> Location:
    """Return where this worker process runs."""
    interface = os.environ.get("HPSEARCH_COMM_INTERFACE") or ray.util.get_node_ip_address()
    return Location(ray.get_runtime_context().get_node_id(), interface)


def node_of(actor: Any) -> tuple[str, str]:
    """Return (id, display name) of an actor's last node; the id is empty if Ray knows of none."""
    with contextlib.suppress(Exception):  # Ray may forget dead actors, and this isn't a public interface
        address = state.actors(actor._actor_id.hex())["Address"]
        if address["IPAddress"]:
            return address["NodeID"], f"node {address['IPAddress']}"
    return "", "a node that Ray doesn't name"


def workers_of_others(own_names: Iterable[str], placed: Collection[str] | None = None) -> Counter[str]:
    """Count the workers that other sweeps of this cluster hold or wait for, by the user who started them.

    Args:
        own_names: Names of this sweep's workers, some of which an earlier sweep may have started.
        placed: Names of the workers that run on a node; the others aren't counted. None: all are.
    """
    named = ray.util.list_named_actors(all_namespaces=True)
    names = {actor["name"] for actor in named if actor["namespace"] == NAMESPACE}
    if placed is not None:
        names.intersection_update(placed)
    return Counter(name.rpartition(" #")[0] for name in names.difference(own_names))


def why_no_workers(shape: Shape, own_names: Iterable[str], needed: int) -> str:
    """Explain what a sweep waits for while fewer than `needed` of its workers have started, and who holds the others.

    Args:
        shape: Resources of its workers.
        own_names: Their names.
        needed: Workers of a trial.
    """
    own_names = set(own_names)
    if (shortage := shape.shortage(live_nodes(), needed)) is not None:
        return (
            f"waiting for nodes: {shortage}. The sweep continues once there are more; to use only these, stop it, and "
            "resume with a lower resources.workers_per_trial"
        )
    placed = {actor["Name"] for actor in state.actors(actor_state_name="ALIVE").values()}
    return waiting_text(
        shape, needed, ray.available_resources(), workers_of_others(own_names, placed), len(own_names & placed)
    )


def waiting_text(shape: Shape, needed: int, free: Mapping[str, float], held_by: Mapping[str, int], placed: int) -> str:
    """Explain what a sweep waits for.

    Args:
        shape: Resources of its workers.
        needed: Workers of a trial.
        free: Resources that no worker holds.
        held_by: Number of workers that other sweeps have started, by user.
        placed: Number of this sweep's workers that have started.
    """
    holders = ", ".join(f"{count} of {name}" for name, count in sorted(held_by.items()))
    gpus = f" and {free.get('GPU', 0):g} GPUs" if shape.gpus else ""
    requester = "a worker needs" if needed == 1 else f"a trial needs {needed} workers, each"
    need = f"{requester} {shape}; {free.get('CPU', 0):g} CPUs{gpus} are free"
    if not holders:
        return f"workers are starting: {need}"
    text = f"waiting for workers of other sweeps: {need}; taken: {holders}"
    if placed:
        text += f"; this sweep holds {placed}. Where the others wait for more, too, one sweep after another gives way"
    return text


def _described(node: dict[str, Any]) -> str:
    resources = node["Resources"]
    gpus = f", {resources['GPU']:g} GPUs" if resources.get("GPU") else ""
    return f"{node['NodeManagerAddress']}: {resources.get('CPU', 0):g} CPUs{gpus}"
