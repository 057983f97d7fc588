"""A step of training as a timeline sees it; called on the ranks of process_ranks."""

from __future__ import annotations

import torch

from hpsearch_comm import Group

STEPS = 3


def steps(group: Group) -> None:
    tensor = torch.ones(100_000)
    with group.duplicate() as duplicate:
        for _ in range(STEPS):
            with group.timeline.backward():
                handles = [group.allreduce_async(tensor), duplicate.allreduce_async(tensor.clone())]
                duplicate.barrier()
            for handle in handles:
                handle.wait()
            group.broadcast(tensor)
