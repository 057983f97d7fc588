"""The gradients of a model in buckets, which every rank reduces in the same order.

Buckets are planned together, at the end of the first backward pass that is averaged, and anew when a parameter has got
another dtype, device, shape or layout. Each is sent when it and all before it are complete; the last one, which says
who used what, when the backward pass is over.

Gradients may be reduced while the backward pass still runs. Between hosts the network works while the cores compute,
and on a GPU its copy queues do: there, what is reduced early is hidden. On one host it is the cores that reduce. If the
backward passes of its ranks keep all of them busy, nothing can be hidden, and the ranks' queues, whose threads then
wait for a core and for each other, only make it take longer.

With compression half the bytes travel, and gradients are rounded on the way in and on the way out: to 16 bits once by
their rank; the group adds up in float32 and rounds the mean once. float16 has 11 bits of precision and ends at 65504,
bfloat16 has 8 and the range of float32.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from hpsearch_comm.data_parallel.bucket import Bucket, lay_out, shared_zeros
from hpsearch_comm.data_parallel.bucket_plan import LARGE, Arrivals, BucketPlan, plan_buckets
from hpsearch_comm.data_parallel.shares import Share
from hpsearch_comm.data_parallel.sparse import SparseGradient
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_comm.shm.cores import core_quota, usable_cores

WIRE_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Compressions: in which dtypes gradients in float32 and float64 travel."""

Cores = tuple[Sequence[int], float, int]
"""What a rank may use and does use: its cores, how many cores' worth of time, and its threads."""


def describe_cores() -> Cores:
    """Return this rank's."""
    return sorted(usable_cores()), core_quota(), torch.get_num_threads()


def should_overlap(group: Group, everyone: Sequence[Cores]) -> bool:
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


def build_buckets(
    plan: BucketPlan, parameters: Sequence[torch.nn.Parameter], group: Group, compression: str | None
) -> list[Bucket]:
    """Make the buckets of a plan, in its order; a collective. The last one has the uses."""
    members = [{index: parameters[index] for index in indices} for indices in plan.buckets]
    kinds = [parameters[indices[0] if indices else 0] for indices in plan.buckets]
    uses = [len(parameters) if some is members[-1] else 0 for some in members]
    layouts = [
        (
            lay_out(some.values())[-1] + more,
            WIRE_DTYPES[compression] if compression and kind.dtype in (torch.float32, torch.float64) else kind.dtype,
            kind.device,
        )
        for some, kind, more in zip(members, kinds, uses, strict=True)
    ]
    return [
        Bucket(some, kind.dtype, wire)
        for some, kind, wire in zip(members, kinds, shared_zeros(group, layouts), strict=True)
    ]


_FIRST_BUCKET_BYTES = 1 << 20


class Buckets:
    """What is reduced, bucket by bucket. Making it does nothing collective.

    Args:
        parameters: Whose gradients are averaged, in the same order on every rank.
        group: The ranks.
        bucket_bytes: Of gradients that are reduced at once.
        compression: None, "fp16" or "bf16".
        overlap: Whether buckets are sent while the backward pass still runs; None where it pays.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        group: Group,
        *,
        bucket_bytes: float,
        compression: str | None,
        overlap: bool | None,
    ) -> None:
        self._parameters = parameters
        self._group = group
        self._bucket_bytes = bucket_bytes
        self._compression = compression
        self._overlap_wanted = overlap
        self.overlap = False
        """Whether buckets are sent while the backward pass still runs."""
        self.timely: dict[int, Bucket] = {}
        """By a parameter's index, the bucket that is complete when its gradient and all others of it have arrived."""
        self._kinds: list[Hashable] = []
        self._in_order: list[Bucket] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._sparse: list[SparseGradient] = []
        self._next = 0
        self._unused: list[int] = []
        self._under_way: list[Handle[torch.Tensor]] = []

    @property
    def planned(self) -> bool:
        """Whether there are buckets for the parameters as they are."""
        return self._kinds == self._kinds_now()

    @property
    def has_started(self) -> bool:
        """Whether some of this backward pass's gradients have been sent."""
        return self._next > 0

    def expect(self) -> None:
        """Begin a backward pass."""
        self._next = 0
        self._unused = []
        self._under_way = []
        for bucket in self._in_order:
            bucket.expect()

    def forget(self) -> None:
        """Drop the buckets, until they are planned again."""
        self._kinds, self._in_order, self._sparse = [], [], []
        self.timely, self._bucket_of = {}, {}

    def plan(self, arrivals: Arrivals) -> None:
        """Agree with the other ranks on buckets, and make them; a collective.

        Args:
            arrivals: What this rank saw in the backward pass that is ending.
        """
        parameters = self._parameters
        for index, parameter in enumerate(parameters):
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.sparse_coo:
                arrivals.sparse[index] = gradient.sparse_dim()
        everyone = self._group.gather_in("buckets", [arrivals.to_object(), describe_cores()])
        plan = plan_buckets(
            [Arrivals.from_object(theirs) for theirs, _ in everyone],
            [(parameter.dtype, parameter.device) for parameter in parameters],
            [parameter.numel() * parameter.element_size() for parameter in parameters],
            min(_FIRST_BUCKET_BYTES, self._bucket_bytes),
            self._bucket_bytes,
            LARGE,
        )
        self._in_order = build_buckets(plan, parameters, self._group, self._compression)
        for bucket, indices in zip(self._in_order, plan.buckets, strict=True):
            self._bucket_of.update(dict.fromkeys(indices, bucket))
        self.timely = {index: bucket for index, bucket in self._bucket_of.items() if index not in plan.late}
        self._sparse = [
            SparseGradient(parameters[index], dimensions, self._group) for index, dimensions in plan.sparse.items()
        ]
        self.overlap = bool(self._overlap_wanted)
        if self._overlap_wanted is None:
            on_gpu = any(parameter.is_cuda for parameter in parameters)
            self.overlap = on_gpu or should_overlap(self._group, [cores for _, cores in everyone])
        self._kinds = self._kinds_now()

    def next_is_complete(self) -> bool:
        """Return whether a bucket can be sent now.

        The last one never can: it completes when the backward pass is all but over, and is reduced there, by the thread
        that would only wait for it otherwise.
        """
        return self._next < len(self._in_order) - 1 and not self._in_order[self._next].missing

    def send(self, share: Share) -> None:
        """Reduce the next bucket, or begin to; a collective.

        Args:
            share: What to multiply this rank's gradients by before they are averaged.
        """
        bucket = self._in_order[self._next]
        values = bucket.fill(share, self._unused)
        bucket.sent = True
        self._next += 1
        self._reduce(values, bucket, self.overlap)

    def finish(self, share: Share) -> None:
        """Send what is left, wait for everything, and hand the gradients over; a collective."""
        while self._next < len(self._in_order) - 1:
            self.send(share)
        for last in self._in_order[-1:]:
            self._reduce(last.fill(share, self._unused), last, False)
        for gradient in self._sparse:
            gradient.send(share)
        for operation in self._under_way:
            operation.wait()
        self._under_way = []
        for bucket in self._in_order:
            bucket.finish()
        if self._unused:
            self._settle()
        for gradient in self._sparse:
            gradient.finish()

    def _reduce(self, values: torch.Tensor, bucket: Bucket, overlap: bool) -> None:
        if overlap or self._group.stream_of(values) is not None:
            self._under_way.append(self._group.allreduce_agreed(values, "mean", bucket.mean))
        else:
            self._group.allreduce(values, "mean", bucket.mean)  # in this thread, which is quicker

    def _settle(self) -> None:
        """Find out what other ranks had where this one had nothing."""
        uses = self._in_order[-1].uses.tolist()
        for index in self._unused:
            self._bucket_of[index].give(index, uses[index] != 0)

    def _kinds_now(self) -> list[Hashable]:
        """Return all that a bucket's memory depends on."""
        return [(p.dtype, p.get_device(), p.shape, p.stride()) for p in self._parameters]
