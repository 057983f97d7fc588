"""Whether to reduce gradients while the backward pass still runs.

Between hosts the network works while the cores compute, and on a GPU its copy queues do: there, what is reduced early
is hidden. On one host it is the cores that reduce. If the backward passes of its ranks keep all of them busy, nothing
can be hidden, and the ranks' queues, whose threads then wait for a core and for each other, only make it take longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.group import Group
from hpsearch_comm.shm.cores import core_quota, usable_cores

__all__ = ["Cores", "describe_cores", "pays_to_overlap"]


Cores = tuple[Sequence[int], float, int]
"""What a rank may use and does use: its cores, how many cores' worth of time, and its threads."""


def describe_cores() -> Cores:
    """Return this rank's."""
    return sorted(usable_cores()), core_quota(), torch.get_num_threads()


def pays_to_overlap(group: Group, everyone: Sequence[Cores]) -> bool:
    """Return whether this host has a core for each rank's queue, beside those of the backward passes.

    Args:
        group: The ranks.
        everyone: What `describe_cores` gave on each rank.
    """
    if len(group.hosts) > 1:
        return True
    cores = {core for theirs, _, _ in everyone for core in theirs}
    busy = sum(threads + 1 for _, _, threads in everyone)
    return busy <= min(len(cores), *(quota for _, quota, _ in everyone))
