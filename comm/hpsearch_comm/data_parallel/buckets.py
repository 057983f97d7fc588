"""The gradients of a model in buckets, which every rank reduces in the same order.

The ranks plan the buckets together at the end of the first synchronized backward pass, and again when a parameter's
dtype, device, shape or layout has changed. A bucket is sent when it and all earlier buckets are complete. The last
bucket, which has the uses, is sent at the end of the backward pass.

The reduction can be overlapped with the backward pass. Between hosts the network transfers while the cores compute, and
on a GPU its copy engines do, so the overlap hides time. On one host the cores do the reduction. If the ranks' backward
passes use all cores, the overlap hides nothing: the threads of the ranks' work queues wait for a core and for each
other, which takes longer.

Compression halves the bytes that are sent. Gradients are rounded twice: each rank rounds its gradients to 16 bits, and
the group sums in float32 and rounds the mean to 16 bits. float16 has 11 bits of precision and a maximum of 65504;
bfloat16 has 8 bits and the range of float32.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from hpsearch_comm.data_parallel.bucket import SHORT, Bucket, lay_out, shared_zeros
from hpsearch_comm.data_parallel.bucket_plan import LARGE, Arrivals, BucketPlan, plan_buckets
from hpsearch_comm.data_parallel.shares import Share
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_comm.shm.cores import core_quota, usable_cores

WIRE_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""The dtype in which float32 and float64 gradients are sent, by compression."""

Cores = tuple[Sequence[int], float, int]
"""The cores that a rank may run on, its CPU quota in cores, and its number of threads."""


def describe_cores() -> Cores:
    """Return this rank's cores, quota and threads."""
    return sorted(usable_cores()), core_quota(), torch.get_num_threads()


def should_overlap(group: Group, everyone: Sequence[Cores]) -> bool:
    """Return whether overlap pays: the ranks are on several hosts, or the host has a free core for each work queue.

    Args:
        group: The ranks.
        everyone: The result of `describe_cores` of each rank.
    """
    if len(group.hosts) > 1:
        return True
    cores = {core for theirs, _, _ in everyone for core in theirs}
    busy = sum(threads + 1 for _, _, threads in everyone)
    return busy <= min(len(cores), *(quota for _, quota, _ in everyone))


def build_buckets(
    plan: BucketPlan, parameters: Sequence[torch.nn.Parameter], group: Group, compression: str | None
) -> list[Bucket]:
    """Create the buckets of a plan, in its order; a collective. The last bucket has the uses."""
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


class SparseGradient:
    """The reduction of one parameter's sparse gradient, such as that of `torch.nn.Embedding(sparse=True)`.

    Each rank sends its indices and values. A rank that has a gradient, even one without rows, sends a row of -1 before
    its indices. If no rank sends such a row, no rank has a gradient.

    Args:
        parameter: The parameter.
        dimensions: Number of sparse dimensions: 1 for an embedding.
        group: The ranks.
    """

    __slots__ = ("_dimensions", "_gathering", "_group", "_parameter")

    def __init__(self, parameter: torch.nn.Parameter, dimensions: int, group: Group) -> None:
        self._parameter = parameter
        self._dimensions = dimensions
        self._group = group
        self._gathering: list[Handle[torch.Tensor]] = []

    def send(self, share: Share) -> None:
        """Start to gather the ranks' indices and values; a collective.

        Args:
            share: The factor of this rank's gradient. With 0 the gradient is ignored.
        """
        gradient, dimensions = self._parameter.grad if share.own else None, self._dimensions
        if gradient is None:
            values = self._parameter.new_empty((0, *self._parameter.shape[dimensions:]))
            indices = torch.empty(0, dimensions, dtype=torch.int64, device=self._parameter.device)
        else:
            if gradient.layout is not torch.sparse_coo:
                gradient = gradient.to_sparse(dimensions)
            gradient = gradient.coalesce()
            values = gradient.values()
            indices = torch.cat((gradient.indices().new_full((1, dimensions), -1), gradient.indices().t()))
        if not share.even:  # in float32, because a 16-bit value could overflow
            values = (values.float() if values.dtype in SHORT else values) * share.own
        self._gathering = [self._group.allgather_async(mine) for mine in (indices, values.contiguous())]

    def finish(self) -> None:
        """Wait for all ranks' values, and set the parameter's gradient to their mean, coalesced."""
        rows, values = (gathering.wait() for gathering in self._gathering)
        self._gathering = []
        is_index = rows[:, 0] >= 0
        if is_index.all():
            self._parameter.grad = None
            return
        # Coalescing adds up the values of equal indices.
        total = torch.sparse_coo_tensor(
            rows[is_index].t(),
            values.float() if values.dtype in SHORT else values,
            self._parameter.shape,
            device=rows.device,
            check_invariants=False,
        ).coalesce()
        self._parameter.grad = (total / self._group.size).to(self._parameter.dtype)


_FIRST_BUCKET_BYTES = 1 << 20


class Buckets:
    """The buckets of a model, and the state of their reduction. The constructor is not a collective.

    Args:
        parameters: The parameters whose gradients are averaged, in the same order on every rank.
        group: The ranks.
        bucket_bytes: The size of a bucket.
        compression: None, "fp16" or "bf16".
        overlap: Whether buckets are sent during the backward pass; None decides by the expected gain.
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
        """Whether buckets are sent during the backward pass."""
        self.forget()
        self.expect()

    @property
    def planned(self) -> bool:
        """Whether the buckets match the current parameters."""
        return self._kinds == self._kinds_now()

    @property
    def has_started(self) -> bool:
        """Whether some of this backward pass's gradients have been sent."""
        return self._next > 0

    def expect(self) -> None:
        """Reset all buckets for a new backward pass."""
        self._next = 0
        self._unused: list[int] = []
        self._under_way: list[Handle[torch.Tensor]] = []
        for bucket in self._in_order:
            bucket.expect()

    def forget(self) -> None:
        """Drop the buckets; `plan` creates new ones."""
        self._kinds: list[Hashable] = []
        self._in_order: list[Bucket] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._sparse: list[SparseGradient] = []
        self.timely: dict[int, Bucket] = {}
        """The bucket of each parameter, by index, without those whose gradients are complete only at the end."""

    def plan(self, arrivals: Arrivals) -> None:
        """Agree with the other ranks on a plan, and create its buckets; a collective.

        Args:
            arrivals: This rank's record of the backward pass that is ending.
        """
        parameters = self._parameters
        for index, parameter in enumerate(parameters):
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.sparse_coo:
                arrivals.sparse[index] = gradient.sparse_dim()
        record = arrivals.order, list(arrivals.repeated), list(arrivals.sparse.items())
        everyone = self._group.gather_in("buckets", [*record, describe_cores()])
        plan = plan_buckets(
            [Arrivals(order, set(repeated), dict(sparse)) for order, repeated, sparse, _ in everyone],
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
            self.overlap = on_gpu or should_overlap(self._group, [cores for *_, cores in everyone])
        self._kinds = self._kinds_now()

    def next_is_complete(self) -> bool:
        """Return whether the next bucket can be sent now.

        The last bucket never can: it is complete only near the end of the backward pass. The thread that would wait for
        it reduces it then.
        """
        return self._next < len(self._in_order) - 1 and not self._in_order[self._next].missing

    def send(self, share: Share) -> None:
        """Reduce the next bucket, or start its reduction; a collective.

        Args:
            share: The factor of this rank's gradients before they are averaged.
        """
        bucket = self._in_order[self._next]
        values = bucket.fill(share, self._unused)
        bucket.sent = True
        self._next += 1
        self._reduce(values, bucket, self.overlap)

    def finish(self, share: Share) -> None:
        """Send the remaining buckets, wait for all, and set the parameters' gradients; a collective."""
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
            self._group.allreduce(values, "mean", bucket.mean)  # in this thread, which is faster

    def _settle(self) -> None:
        """Set the gradients of parameters that this rank didn't use, depending on whether other ranks used them."""
        uses = self._in_order[-1].uses.tolist()
        for index in self._unused:
            self._bucket_of[index].give(index, uses[index] != 0)

    def _kinds_now(self) -> list[Hashable]:
        """Return the parameters' properties that a bucket's memory layout depends on."""
        return [(p.dtype, p.get_device(), p.shape, p.stride()) for p in self._parameters]
