"""Plans of torch's collectives: which operation of a group runs with which arguments, and where its result goes.

If torch requires tensors of the same shape on all ranks, a rank's tensor is sent as one row. The group's operations
allow different numbers of rows but not different shapes, so they detect a mismatch. gather and scatter are implemented
as an alltoall of such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.operations.arguments import check_splits, check_target, check_tensor

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class OperationPlan:
    """One operation of a group."""

    operation: str
    """The name of the group's method."""
    arguments: tuple[Any, ...]
    results: Tensors
    """The result tensors that torch receives."""
    finish: Callable[[Any], object] | None = None
    """A function that copies the operation's result into the result tensors; None if it is already there."""


def allreduce(tensor: torch.Tensor, op: Any) -> OperationPlan:
    """Reduce the ranks' tensors into the tensors of all ranks."""
    return OperationPlan("allreduce", (check_output("all_reduce", tensor), _reduction_name(op, tensor.dtype)), [tensor])


def reduce(group: Group, tensor: torch.Tensor, op: Any, root: int) -> OperationPlan:
    """Reduce the ranks' tensors into the root's tensor; the other tensors don't change."""
    name = _reduction_name(op, tensor.dtype)
    if group.rank == root:
        return OperationPlan("allreduce", (check_output("reduce", tensor), name), [tensor])
    source = check_input("reduce", tensor)
    return OperationPlan("allreduce", (source, name, torch.empty_like(source)), [tensor])


def broadcast(tensor: torch.Tensor, root: int) -> OperationPlan:
    """Copy the root's tensor into the tensors of all ranks."""
    return OperationPlan("broadcast", (check_input("broadcast", tensor), root), [tensor])


def allgather(group: Group, outputs: Tensors, tensor: torch.Tensor) -> OperationPlan:
    """Copy the ranks' tensors, of one shape, into the outputs of all ranks."""
    source = check_input("all_gather", tensor)
    _check_like("all_gather", outputs, source, group.size)
    targets = [check_output("all_gather", output) for output in outputs]
    return OperationPlan("allgather", (source.unsqueeze(0),), outputs, lambda rows: _copy_rows(rows, targets))


def allgather_single(group: Group, output: torch.Tensor, tensor: torch.Tensor) -> OperationPlan:
    """Copy the ranks' tensors, of one shape, concatenated into the output of all ranks."""
    source, target = check_input("all_gather_single", tensor), check_output("all_gather_single", output)
    _check_numel("all_gather_single", target, group.size * source.numel(), source)
    row, shape = source.reshape(1, source.numel()), (group.size, source.numel())
    if target.is_contiguous():
        return OperationPlan("allgather", (row, target.view(shape)), [output])
    return OperationPlan("allgather", (row,), [output], lambda rows: target.copy_(rows.view(target.shape)))


def reduce_scatter(group: Group, output: torch.Tensor, tensors: Tensors, op: Any) -> list[OperationPlan]:
    """Reduce the ranks' lists of tensors, and copy result i into the output of rank i.

    The shapes of a list's tensors may differ.
    """
    target, name = check_output("reduce_scatter", output), _reduction_name(op, output.dtype)
    sources = [check_input("reduce_scatter", tensor) for tensor in tensors]
    if len(sources) != group.size:
        raise UsageError(f"reduce_scatter takes one tensor for each of the {group.size} ranks, got {len(sources)}")
    _check_like("reduce_scatter", [sources[group.rank]], target, 1)
    check_devices("reduce_scatter", sources)
    if all(source.shape == target.shape and source.dtype is target.dtype for source in sources):
        rows = torch.stack([source.reshape(-1) for source in sources])
        return [_reduce_rows("reduce_scatter", group, output, target, rows, name)]
    return [
        OperationPlan(
            "allreduce",
            (source, name, target if rank == group.rank and target.is_contiguous() else torch.empty_like(source)),
            [output] if rank == group.rank else [],
            target.copy_ if rank == group.rank else None,
        )
        for rank, source in enumerate(sources)
    ]


def reduce_scatter_single(group: Group, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> OperationPlan:
    """Reduce the ranks' tensors, and copy part i of n equal parts into the output of rank i."""
    source, target = check_input("reduce_scatter_single", tensor), check_output("reduce_scatter_single", output)
    _check_numel("reduce_scatter_single", source, group.size * target.numel(), target)
    name = _reduction_name(op, target.dtype)
    rows = source.reshape(group.size, target.numel())
    return _reduce_rows("reduce_scatter_single", group, output, target, rows, name)


def alltoall(group: Group, outputs: Tensors, tensors: Tensors) -> OperationPlan:
    """Send a tensor to each rank, and receive one from each. All have one dtype; shapes may differ."""
    sources = [check_input("all_to_all", tensor) for tensor in tensors]
    targets = [check_output("all_to_all", output) for output in outputs]
    if len(sources) != group.size or len(targets) != group.size:
        raise UsageError(
            f"all_to_all takes one tensor for each of the {group.size} ranks, and one for what comes from each, got "
            f"{len(sources)} and {len(targets)}"
        )
    check_devices("all_to_all", (*sources, *targets))
    dtypes = {tensor.dtype for tensor in (*sources, *targets)}
    if len(dtypes) > 1:
        raise UsageError(f"all_to_all takes tensors of one dtype, got {', '.join(sorted(map(str, dtypes)))}")
    elements, splits = torch.cat([source.reshape(-1) for source in sources]), [source.numel() for source in sources]

    def finish(result: tuple[torch.Tensor, list[int]]) -> None:
        came = _check_came("all_to_all", result, [target.numel() for target in targets])
        for received, target in zip(came, targets, strict=True):
            target.copy_(received.view(target.shape))

    return OperationPlan("alltoall", (elements, splits), outputs, finish)


def alltoall_single(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, to_come: Sequence[int], to_go: Sequence[int]
) -> OperationPlan:
    """Send rows to each rank, and receive rows from each. Empty numbers of rows mean equal parts."""
    name = "all_to_all_single"
    source, target = check_input(name, tensor), check_output(name, output)
    check_devices(name, (source, target))
    if not source.dim() or not target.dim() or source.shape[1:] != target.shape[1:] or source.dtype is not target.dtype:
        raise UsageError(
            f"{name} exchanges rows of one shape and dtype, got {source.dtype} {list(source.shape)} to be sent and "
            f"{target.dtype} {list(target.shape)} to be received"
        )
    splits = check_splits(source.shape[0], list(to_go) or None, group.size)
    coming = check_splits(target.shape[0], list(to_come) or None, group.size)

    def finish(result: tuple[torch.Tensor, list[int]]) -> None:
        _check_came(name, result, coming)
        target.copy_(result[0])

    return OperationPlan("alltoall", (source, splits), [output], finish)


def gather(group: Group, outputs: Tensors, tensor: torch.Tensor, root: int) -> OperationPlan:
    """Copy the ranks' tensors, of one shape, into the root's outputs; other ranks have no outputs."""
    source = check_input("gather", tensor)
    _check_like("gather", outputs, source, group.size if group.rank == root else 0)
    targets = [check_output("gather", output) for output in outputs]
    splits = [int(rank == root) for rank in range(group.size)]
    return OperationPlan(
        "alltoall", (source.unsqueeze(0), splits), outputs, lambda result: _copy_rows(result[0], targets)
    )


def scatter(group: Group, output: torch.Tensor, tensors: Tensors, root: int) -> OperationPlan:
    """Copy one of the root's tensors, of one shape, into each rank's output; other ranks pass no tensors."""
    target = check_output("scatter", output)
    _check_like("scatter", tensors, target, group.size if group.rank == root else 0)
    rows = target.new_empty((len(tensors), *target.shape))
    for row, tensor in zip(rows, tensors, strict=True):
        row.copy_(check_input("scatter", tensor))
    splits = [int(group.rank == root)] * group.size

    def finish(result: tuple[torch.Tensor, list[int]]) -> None:
        target.copy_(result[0].view(target.shape))

    return OperationPlan("alltoall", (rows, splits), [output], finish)


def _reduce_rows(
    name: str, group: Group, output: torch.Tensor, target: torch.Tensor, rows: torch.Tensor, op: str
) -> OperationPlan:
    """Reduce the rows of all ranks, and copy row i into the output of rank i."""
    if target.is_contiguous():
        return OperationPlan("reduce_scatter", (rows, op, target.view(1, target.numel())), [output])
    return OperationPlan("reduce_scatter", (rows, op), [output], lambda row: target.copy_(row.view(target.shape)))


def _copy_rows(rows: torch.Tensor, targets: Tensors) -> None:
    for row, target in zip(rows, targets, strict=True):
        target.copy_(row.view(target.shape))


def _check_came(name: str, result: tuple[torch.Tensor, list[int]], expected: Sequence[int]) -> list[torch.Tensor]:
    """Return the rows or elements received from each rank.

    Raises:
        UsageError: Their numbers aren't the expected ones.
    """
    rows, counts = result
    if counts != list(expected):
        raise UsageError(f"{name} expected {list(expected)} rows or elements from the ranks in turn, got {counts}")
    return [rows[stop - count : stop] for count, stop in zip(counts, accumulate(counts), strict=True)]


_REDUCTIONS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "mean"),
    (dist.ReduceOp.PRODUCT, "product"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.BAND, "band"),
    (dist.ReduceOp.BOR, "bor"),
    (dist.ReduceOp.BXOR, "bxor"),
)


def _reduction_name(reduce_op: Any, dtype: torch.dtype) -> str:
    """Return the group's name of an operator. For bools, the sum is the logical or, as with Gloo.

    Raises:
        UsageError: The operator is not supported.
    """
    name = next((name for op, name in _REDUCTIONS if reduce_op == op), None)
    if name is None:
        names = ", ".join(name.upper() for name in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"))
        requested = getattr(reduce_op, "op", reduce_op)
        raise UsageError(f"the hpsearch backend reduces with {names}, got {requested}: scale the tensor before the sum")
    return "max" if name == "sum" and dtype is torch.bool else name


def only(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the only tensor in a list that torch passes.

    Raises:
        UsageError: The list has no tensor, or several (for several devices of one rank).
    """
    if len(tensors) != 1:
        raise UsageError(f"{name} takes one tensor of each rank, got {len(tensors)}")
    return tensors[0]


def check_input(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached tensor over the same memory, which also stays detached during the operation.

    Raises:
        UsageError: The tensor isn't dense, or is on a device other than CPU and CUDA.
    """
    if not tensor.is_cpu and not tensor.is_cuda:
        raise UsageError(
            f"{name} of the hpsearch backend takes tensors on the CPU or on a CUDA device, got one on "
            f"{tensor.device}: move it with tensor.cpu(), and the result back with tensor.to(device)"
        )
    return check_tensor(name, tensor).detach()


def check_output(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return an output tensor detached from the autograd graph, after checking it like `check_input`.

    Raises:
        UsageError: The tensor can't be written.
    """
    return check_target(f"{name}'s output", check_input(name, tensor))


def check_devices(name: str, tensors: Iterable[torch.Tensor]) -> None:
    """Check that all tensors of an operation are on one device.

    Raises:
        UsageError: They are on several devices.
    """
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise UsageError(
            f"{name} takes tensors on one device, got some on {' and '.join(sorted(map(str, devices)))}: move them "
            "with tensor.to(device)"
        )


def _check_like(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor, count: int) -> None:
    """Check the number of tensors, and that each has the shape, dtype and device of `like`.

    Raises:
        UsageError: A property of a tensor differs, or the number of tensors is wrong.
    """
    if len(tensors) != count:
        raise UsageError(f"{name} takes one tensor for each of the {count} ranks, got {len(tensors)}")
    for index, tensor in enumerate(tensors):
        if tensor.shape != like.shape or tensor.dtype is not like.dtype:
            raise UsageError(
                f"{name} takes tensors of one shape and dtype, here {like.dtype} {list(like.shape)}, got "
                f"{tensor.dtype} {list(tensor.shape)} for rank {index}"
            )
    check_devices(name, (like, *tensors))


def _check_numel(name: str, tensor: torch.Tensor, numel: int, like: torch.Tensor) -> None:
    """Check that a tensor has `numel` elements, and the dtype and device of `like`.

    Raises:
        UsageError: A property differs.
    """
    check_devices(name, (tensor, like))
    if tensor.numel() != numel or tensor.dtype is not like.dtype:
        raise UsageError(
            f"{name} takes {numel} elements of {like.dtype} here, got {tensor.numel()} of {tensor.dtype}: one of "
            "the two tensors must have exactly as many elements for each rank as the other one has"
        )
