"""Whether to reduce gradients while the backward pass still runs.

Between hosts the network works while the cores compute, and on a GPU its copy queues do: there, what is reduced early
is hidden. On one host it is the cores that reduce. If the backward passes of its ranks keep all of them busy, nothing
can be hidden, and the ranks' queues, whose threads then wait for a core and for each other, only make it take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpsearch_comm.group import Group
from hpsearch_comm.shm.cores import core_quota, usable_cores

__all__ = ["describe_cores", "pays_to_overlap"]


def describe_cores() -> dict[str, Any]:
    """Give what this rank may use and does use, as JSON-like values."""
    quota = core_quota()
    return {
        "cores": sorted(usable_cores()),
        "quota": None if quota == float("inf") else quota,
        "threads": torch.get_num_threads(),
    }


def pays_to_overlap(group: Group, everyone: Sequence[dict[str, Any]]) -> bool:
    """Say whether this host has a core for each rank's queue, beside those of the backward passes.

    Args:
        group: The ranks.
        everyone: What `describe_cores` gave on each rank.
    """
    if len(group.hosts) > 1:
        return True
    cores = {core for rank in everyone for core in rank["cores"]}
    quotas = [rank["quota"] for rank in everyone if rank["quota"] is not None]
    busy: int = sum(rank["threads"] + 1 for rank in everyone)
    return bool(busy <= min([len(cores), *quotas]))
