"""From a plan to buckets with memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.data_parallel.bucket import Bucket
from hpsearch_comm.data_parallel.bucket_plan import Plan
from hpsearch_comm.data_parallel.compression import wire_dtype
from hpsearch_comm.data_parallel.shared_memory import SharedMemory
from hpsearch_comm.group import Group

__all__ = ["build_buckets"]


def build_buckets(
    plan: Plan, parameters: Sequence[torch.nn.Parameter], group: Group, compression: str | None
) -> list[Bucket]:
    """Make the buckets of a plan, in its order; a collective. The last one has the uses."""
    buckets = []
    for number, indices in enumerate(plan.buckets):
        members = {index: parameters[index] for index in indices}
        of = parameters[indices[0]] if indices else parameters[0]
        uses = len(parameters) if number == len(plan.buckets) - 1 else 0
        buckets.append(Bucket(members, of.dtype, of.device, wire_dtype(compression, of.dtype), uses))
    for device in dict.fromkeys(bucket.device for bucket in buckets):
        here = [bucket for bucket in buckets if bucket.device == device]
        memory = SharedMemory(group, [bucket.wants() for bucket in here], device)
        for bucket in here:
            bucket.settle_in(memory)
    return buckets
