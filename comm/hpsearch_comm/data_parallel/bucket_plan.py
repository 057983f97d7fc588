"""The plan of buckets: which gradients share a bucket, and in which order buckets are reduced.

The plan is made once and is the same on every rank. A bucket can be reduced when its last gradient has arrived, so
gradients that arrive in sequence share a bucket. A large gradient gets a separate bucket.

The order of arrival is only known from a backward pass. Each rank records it in the first synchronized backward pass,
and the ranks exchange their records (`Arrivals`) at its end. For each gradient, the record of the lowest rank that has
it counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

LARGE = 1 << 20
"""Minimum size of a large gradient in bytes: the cost of one more operation is then negligible."""


@dataclass(slots=True)
class Arrivals:
    """The gradients that arrived on a rank in a backward pass. Parameters are given by their index."""

    order: list[int] = field(default_factory=list)
    """Parameters in the order in which their gradients arrived, each once."""
    repeated: set[int] = field(default_factory=set)
    """Parameters whose gradient arrived more than once, as with reentrant checkpointing. They are complete at the end.
    """
    sparse: dict[int, int] = field(default_factory=dict)
    """Parameters with sparse gradients, and their number of sparse dimensions."""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The buckets in the order of their reduction, and the parameters with sparse gradients, which have no bucket."""

    buckets: list[list[int]]
    """Parameters of each bucket. The last bucket has only small gradients, or none."""
    late: set[int]
    """Parameters whose gradients are complete only at the end of the backward pass."""
    sparse: dict[int, int]
    """Parameters that are averaged as sparse tensors, and their number of sparse dimensions."""


def plan_buckets(
    arrivals: Sequence[Arrivals],
    kinds: Sequence[Hashable],
    nbytes: Sequence[int],
    first_bytes: float,
    bucket_bytes: float,
    large_bytes: int,
) -> BucketPlan:
    """Assign each parameter to a bucket, or to the sparse ones.

    Args:
        arrivals: The record of each rank.
        kinds: The kind (dtype and device) of each parameter. Only parameters of the same kind share a bucket.
        nbytes: The size of each parameter's gradient.
        first_bytes: The size of the first bucket of a kind. It is small, so that the reduction starts early.
        bucket_bytes: The size of the other buckets.
        large_bytes: The minimum size of a large gradient.
    """
    sparse: dict[int, int] = {}
    late: set[int] = set()
    order: dict[int, None] = {}
    for rank_arrivals in arrivals:
        order.update(dict.fromkeys(rank_arrivals.order))
        late |= rank_arrivals.repeated
        for index, dimensions in rank_arrivals.sparse.items():
            sparse.setdefault(index, dimensions)
    late -= sparse.keys()
    timely = [index for index in order if index not in sparse and index not in late]
    # Parameters that no rank used would delay a bucket, so they come last. If they are used later, the reverse of the
    # parameters' order is the best guess of their order of arrival.
    unseen = [index for index in reversed(range(len(kinds))) if index not in order and index not in sparse]
    last = [index for index in order if index in late] + unseen
    large = {index for index in (*timely, *last) if nbytes[index] >= large_bytes}
    full_at: dict[Hashable, float] = {}
    buckets: list[list[int]] = []
    for indices in (timely, last):
        buckets += _fill(indices, kinds, nbytes, large, full_at, first_bytes, bucket_bytes)
    if buckets:
        small = [bucket for bucket in buckets if large.isdisjoint(bucket)]
        ending = small[-1] if small else []
        buckets = [bucket for bucket in buckets if bucket is not ending] + [ending]
    return BucketPlan(buckets, late, sparse)


def _fill(
    indices: Sequence[int],
    kinds: Sequence[Hashable],
    nbytes: Sequence[int],
    large: set[int],
    full_at: dict[Hashable, float],
    first_bytes: float,
    bucket_bytes: float,
) -> list[list[int]]:
    """Fill buckets in the order in which gradients arrive; return them in the order in which they become complete."""
    complete: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    for index in indices:
        if index in large:
            complete.append([index])
            continue
        kind = kinds[index]
        # Removed and inserted again, so that `filling` is in the order of each bucket's last gradient.
        bucket = filling.pop(kind, [])
        bucket.append(index)
        filled[kind] = filled.get(kind, 0) + nbytes[index]
        if filled[kind] >= full_at.get(kind, first_bytes):
            complete.append(bucket)
            filled[kind] = 0
            full_at[kind] = bucket_bytes
        else:
            filling[kind] = bucket
    return complete + list(filling.values())
