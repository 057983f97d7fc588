"""From a plan to buckets with memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.data_parallel.bucket import Bucket, lay_out
from hpsearch_comm.data_parallel.bucket_plan import BucketPlan
from hpsearch_comm.data_parallel.compression import wire_dtype
from hpsearch_comm.data_parallel.shared_memory import shared_zeros
from hpsearch_comm.group import Group

__all__ = ["build_buckets"]


def build_buckets(
    plan: BucketPlan, parameters: Sequence[torch.nn.Parameter], group: Group, compression: str | None
) -> list[Bucket]:
    """Make the buckets of a plan, in its order; a collective. The last one has the uses."""
    members = [{index: parameters[index] for index in indices} for indices in plan.buckets]
    kinds = [parameters[indices[0] if indices else 0] for indices in plan.buckets]
    uses = [len(parameters) if some is members[-1] else 0 for some in members]
    wanted = [
        (lay_out(some.values())[-1] + more, wire_dtype(compression, kind.dtype), kind.device)
        for some, kind, more in zip(members, kinds, uses, strict=True)
    ]
    return [
        Bucket(some, kind.dtype, wire)
        for some, kind, wire in zip(members, kinds, shared_zeros(group, wanted), strict=True)
    ]
