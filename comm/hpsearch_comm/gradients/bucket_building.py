"""From a plan to buckets with memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.gradients.bucket import Bucket, LargeGradient, SmallGradients
from hpsearch_comm.gradients.bucket_plan import Plan
from hpsearch_comm.gradients.compression import wire_dtype
from hpsearch_comm.gradients.shared_memory import SharedMemory
from hpsearch_comm.group import Group

__all__ = ["build_buckets", "share_large_gradients"]


def build_buckets(
    plan: Plan, parameters: Sequence[torch.nn.Parameter], group: Group, compression: str | None
) -> list[Bucket]:
    """Make the buckets of a plan, in its order; a collective. The last one, of small gradients, has the uses."""
    buckets: list[Bucket] = []
    for number, indices in enumerate(plan.buckets):
        members = {index: parameters[index] for index in indices}
        of = parameters[indices[0]] if indices else parameters[0]
        wire = wire_dtype(compression, of.dtype)
        if plan.large.isdisjoint(indices):
            uses = len(parameters) + 1 if number == len(plan.buckets) - 1 else 0
            buckets.append(SmallGradients(members, of.dtype, of.device, wire, uses))
        else:
            buckets.append(LargeGradient(indices[0], of, wire))
    for device in dict.fromkeys(bucket.device for bucket in buckets):
        here = [bucket for bucket in buckets if bucket.device == device]
        memory = SharedMemory(group, [request for bucket in here for request in bucket.wants()], device)
        for bucket in here:
            bucket.settle_in(memory)
    return buckets


def share_large_gradients(gradients: Sequence[LargeGradient], group: Group) -> None:
    """Move large gradients to memory that the ranks of a host share; a collective."""
    sizes = [(gradient.parameter.numel(), gradient.parameter.dtype) for gradient in gradients]
    memory = SharedMemory(group, sizes, torch.device("cpu"))
    for gradient, (numel, dtype) in zip(gradients, sizes, strict=True):
        gradient.move(memory.take(numel, dtype))
