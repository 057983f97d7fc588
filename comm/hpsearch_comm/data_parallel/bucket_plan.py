"""Which gradients share a bucket, and in which order buckets are reduced: decided once, alike on every rank.

A bucket can be reduced when its last gradient has arrived, so gradients that arrive one after another belong together.
A large gradient is a bucket of its own.
The order in which they arrive is only known from a backward pass: the first one that is synchronised is watched, and at
its end the ranks tell each other what they saw (`Arrivals`) and follow the lowest rank that saw anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGE = 1 << 20
"""Bytes from which on a gradient is large: reducing it takes so long that calling one more operation doesn't count."""


@dataclass(slots=True)
class Arrivals:
    """What a rank saw in a backward pass. Parameters go by their index."""

    order: list[int] = field(default_factory=list)
    """Parameters in the order in which their gradients arrived, each once."""
    repeated: set[int] = field(default_factory=set)
    """Those whose gradient arrived more than once, as under reentrant checkpointing: only the end is late enough."""
    sparse: dict[int, int] = field(default_factory=dict)
    """Those with sparse gradients, and their number of sparse dimensions."""

    def to_object(self) -> list[Any]:
        """Return it as JSON-like values."""
        return [self.order, sorted(self.repeated), list(self.sparse.items())]

    @classmethod
    def from_object(cls, value: Any) -> Arrivals:
        """Read what `to_object` gave."""
        order, repeated, sparse = value
        return cls(order, set(repeated), dict(sparse))


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The buckets in the order of their reduction, and what doesn't go into buckets."""

    buckets: list[list[int]]
    """The last one is of small gradients. It may be empty."""
    late: set[int]
    """Parameters that may be in a bucket only when the backward pass has ended."""
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
    """Put each parameter in a bucket, or among the sparse ones.

    Args:
        arrivals: What each rank saw.
        kinds: Of each parameter: only those of one kind (dtype and device) share a bucket.
        nbytes: Of each parameter's gradient.
        first_bytes: When the first bucket of a kind is full. Small, so that reduction starts early.
        bucket_bytes: When the others are full.
        large_bytes: From which size on a gradient is large.
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
    # What no rank used would only hold up a bucket of those that are used. The reverse of the parameters' order is the
    # best guess of the backward pass's, for when they are used later on.
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
        # Taken out and put back, so that `filling` is in the order of each bucket's last gradient.
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
