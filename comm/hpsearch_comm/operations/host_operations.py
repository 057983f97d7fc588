"""Checks the arguments of an operation, and says what is to be done: the middle between a group and its algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.errors import UsageError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import DTYPES, Signature
from hpsearch_comm.operations.arguments import Call, check_out, check_root, check_target, check_tensor, whole_number
from hpsearch_comm.operations.contiguous import flat, is_plain, put_back
from hpsearch_comm.operations.objects import decode, encode
from hpsearch_comm.operations.work_queue import Prepared
from hpsearch_comm.shm.copying import copy

__all__ = ["HostOperations", "check_gathered", "gathered_fits"]

T = TypeVar("T")

_MOST_CALLS = 1024
"""Kinds of calls that are remembered; a program with more of them just describes them anew."""

_MOST_BYTES = 1 << 47
"""The address space of a process."""


class HostOperations:
    """Prepares operations on tensors in this machine's memory.

    Args:
        host: What carries them out.
        device: 0, or the number of the CUDA device whose tensors a subclass takes; see `Signature`.
    """

    def __init__(self, host: HostCollectives, device: int = 0) -> None:
        self._host = host
        self._device = device
        self._rank = host.topology.rank
        self._size = host.topology.size
        self._calls: dict[tuple[Any, ...], Call] = {}

    def allreduce(self, tensor: torch.Tensor, op: str, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.allreduce`."""
        source = check_tensor("allreduce", tensor)
        call = self._reducing("allreduce", source, op)
        if out is None:
            target = check_target("allreduce's tensor", source)
        else:
            target = check_out("allreduce", out, source, source.shape, source)
        result = tensor if out is None else out
        carry = call.carry
        assert carry is not None

        def work(operation: Operation) -> torch.Tensor:
            mine = flat(source)
            to = mine if target is source else flat(target)
            carry(operation, mine, to)
            put_back(to, target)
            return result

        return Prepared(call, work)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Prepared[torch.Tensor]:
        """Prepare `Group.broadcast`."""
        source = check_tensor("broadcast", tensor)
        root = check_root(root, self._size)
        if root != self._rank:
            check_target("broadcast's tensor", source)
        call = self._call("broadcast", source.dtype, source.shape, root)

        def work(operation: Operation) -> torch.Tensor:
            mine = flat(source)
            self._host.broadcast(operation, call.algorithm, mine, root)
            if root != self._rank:
                put_back(mine, source)
            return tensor

        return Prepared(call, work)

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.allgather`."""
        source = check_tensor("allgather", tensor)
        rows = source if source.dim() else source.view(1)
        rest = rows.shape[1:]
        target = None if out is None else check_gathered(out, rows)
        call = self._call("allgather", rows.dtype, (0, *rest))

        def work(operation: Operation) -> torch.Tensor:
            counts = [count for (count,) in self._host.allgather_numbers(operation, call.algorithm, [rows.shape[0]])]
            shape = (sum(counts), *rest)
            fits = target is not None and gathered_fits(operation, target, rows, shape)
            result = target if target is not None and fits and is_plain(target) else rows.new_empty(shape)
            parts = _runs(counts, prod(rest))
            everything = result.view(-1)
            start, stop = parts[self._rank]
            copy(everything[start:stop], flat(rows))  # which may lie in `out`, there or elsewhere
            self._host.allgather(operation, call.algorithm, everything, parts)
            if target is not None and fits:
                put_back(everything, target)
            return result if out is None else out

        return Prepared(call, work)

    def reduce_scatter(self, tensor: torch.Tensor, op: str, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.reduce_scatter`."""
        source = check_tensor("reduce_scatter", tensor)
        if source.dim() == 0:
            raise UsageError("reduce_scatter shares out the rows of a tensor, got one without dimensions")
        call = self._reducing("reduce_scatter", source, op)
        reduction = call.reduction
        assert reduction is not None
        rest = source.shape[1:]
        parts = self._host.row_parts(source.shape[0], prod(rest))
        start, stop = parts[self._rank]
        rows = source[_rows(source.shape[0], self._size, self._rank)]
        target = None if out is None else check_out("reduce_scatter", out, source, rows.shape, rows)

        def work(operation: Operation) -> torch.Tensor:
            mine = flat(source)
            to = mine.new_empty(stop - start) if target is None or not is_plain(target) else target.view(-1)
            self._host.reduce_scatter(operation, call.algorithm, mine, parts, reduction, to)
            if target is None:
                return to.view(rows.shape)
            put_back(to, target)
            return target if out is None else out

        return Prepared(call, work)

    def alltoall(self, tensor: torch.Tensor, splits: Sequence[int] | None) -> Prepared[tuple[torch.Tensor, list[int]]]:
        """Prepare `Group.alltoall`."""
        source = check_tensor("alltoall", tensor)
        if source.dim() == 0:
            raise UsageError("alltoall shares out the rows of a tensor, got one without dimensions")
        counts = self._splits(source.shape[0], splits)
        rest = source.shape[1:]
        call = self._call("alltoall", source.dtype, (0, *rest))

        def work(operation: Operation) -> tuple[torch.Tensor, list[int]]:
            rows = flat(source).view(source.shape[0], prod(rest))
            out, coming = self._host.alltoall(operation, call.algorithm, rows, counts)
            return out.view(-1, *rest) if out.numel() else out.new_empty((sum(coming), *rest)), coming

        return Prepared(call, work)

    def barrier(self) -> Prepared[None]:
        """Prepare `Group.barrier`."""
        call = self._call("barrier")
        return Prepared(call, lambda operation: self._host.barrier(operation, call.algorithm))

    def allgather_object(self, value: Any) -> Prepared[list[Any]]:
        """Prepare `Group.allgather_object`."""
        mine = encode(value)
        call = self._call("allgather_object", as_="allgather")

        def work(operation: Operation) -> list[Any]:
            counts = [count for (count,) in self._host.allgather_numbers(operation, call.algorithm, [mine.numel()])]
            parts = _runs(counts, 1)
            everything = torch.empty(sum(counts), dtype=torch.uint8, device="cpu")
            start, stop = parts[self._rank]
            everything[start:stop].copy_(mine)
            self._host.allgather(operation, call.algorithm, everything, parts)
            return [decode(everything[start:stop]) for start, stop in parts]

        return Prepared(call, work)

    def broadcast_object(self, value: Any, root: int) -> Prepared[Any]:
        """Prepare `Group.broadcast_object`."""
        root = check_root(root, self._size)
        mine = encode(value) if root == self._rank else None
        call = self._call("broadcast_object", torch.uint8, (), root, as_="broadcast")

        def work(operation: Operation) -> Any:
            length = torch.tensor([0 if mine is None else mine.numel()], device="cpu")
            self._host.broadcast(operation, call.algorithm, length, root)
            text = torch.empty(int(length), dtype=torch.uint8, device="cpu") if mine is None else mine
            self._host.broadcast(operation, call.algorithm, text, root)
            return decode(text)  # by the root too: a tuple becomes a list there as everywhere

        return Prepared(call, work)

    def first_cuda_use(self, work: Callable[[Operation], T]) -> Prepared[T]:
        """Prepare a step in which the ranks agree on how the tensors of a CUDA device travel."""
        return Prepared(self._call("first_cuda_use", as_="barrier"), work)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Prepared[torch.Tensor]:
        """Prepare `Group.empty`."""
        if len(shape) == 1 and isinstance(shape[0], Sequence):
            shape = tuple(shape[0])
        lengths = [length for length in map(whole_number, shape) if length is not None and length >= 0]
        if len(lengths) != len(shape):
            raise UsageError(f"a shape must consist of numbers from 0, got {tuple(shape)!r}")
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"dtype must be a torch.dtype, got {dtype!r}")
        if dtype not in DTYPES:
            raise UsageError(f"there are no collectives of {dtype}, nor memory for them: use torch.uint8")
        nbytes = prod(lengths) * dtype.itemsize
        if max(nbytes, *lengths, 0) >= _MOST_BYTES:
            raise UsageError(f"a tensor of shape {lengths} and {dtype} is too large for any memory: ask for less")
        call = self._call("empty", dtype, lengths, as_="barrier")
        return Prepared(call, lambda operation: self._host.shm.empty(operation, nbytes).view(dtype).view(lengths))

    @property
    def host(self) -> HostCollectives:
        """What carries the operations out on the CPU."""
        return self._host

    def _algorithm(self, operation: str, nbytes: int, reduction: str, dtype: torch.dtype) -> str:
        """Name the algorithm of a call that is described for the first time; reduction is none where there is none."""
        return self._host.algorithm(operation, nbytes)

    def _reducing(self, operation: str, tensor: torch.Tensor, op: Any) -> Call:
        reduction = reduction_for(op, tensor.dtype)  # one object for each operator and dtype, whatever `op` is
        key = operation, reduction, tensor.shape
        call = self._calls.get(key)
        if call is None:
            algorithm = self._algorithm(operation, tensor.nbytes, reduction.name, tensor.dtype)
            shape, device = tuple(tensor.shape), self._device
            signature = Signature(0, operation, algorithm, tensor.dtype, shape, reduction.name, device=device)
            carry = self._host.bind_allreduce(algorithm, reduction, tensor.numel())
            call = self._remember(key, Call.of(signature, tensor.nbytes, reduction, carry))
        return call

    def _call(
        self,
        operation: str,
        dtype: torch.dtype = torch.uint8,
        shape: Sequence[int] = (),
        root: int = -1,
        *,
        as_: str | None = None,
    ) -> Call:
        key = operation, dtype, tuple(shape), root
        call = self._calls.get(key)
        if call is None:
            nbytes = prod(shape) * dtype.itemsize
            algorithm = self._algorithm(as_ or operation, nbytes, "none", dtype)
            signature = Signature(0, operation, algorithm, dtype, tuple(shape), root=root, device=self._device)
            call = self._remember(key, Call.of(signature, nbytes))
        return call

    def _remember(self, key: tuple[Any, ...], call: Call) -> Call:
        if len(self._calls) >= _MOST_CALLS:
            self._calls.clear()
        self._calls[key] = call
        return call

    def _splits(self, rows: int, splits: Sequence[int] | None) -> list[int]:
        if splits is None:
            if rows % self._size:
                raise UsageError(
                    f"alltoall without splits needs a number of rows that {self._size} ranks can share evenly, got "
                    f"{rows}: pass splits, the rows for each rank"
                )
            return [rows // self._size] * self._size
        try:
            numbers = [whole_number(count) for count in splits]
        except TypeError:  # it can't be gone through
            numbers = [None]
        counts = [number for number in numbers if number is not None]
        if len(counts) != len(numbers):
            raise UsageError(f"splits must be whole numbers, one for each rank, got {splits!r}")
        if len(counts) != self._size or min(counts) < 0 or sum(counts) != rows:
            raise UsageError(
                f"splits must be {self._size} numbers from 0, one for each rank, that add up to the tensor's {rows} "
                f"rows, got {counts}"
            )
        return counts


def check_gathered(out: object, rows: torch.Tensor) -> torch.Tensor:
    """Check all of allgather's `out` but its length, which is seen when the others have said how much they give.

    Raises:
        UsageError: It can't take the rows of any number of ranks.
    """
    target = check_tensor("out of allgather", out)
    return check_out("allgather", target, rows, (*target.shape[:1], *rows.shape[1:]) if target.dim() else rows.shape)


def gathered_fits(operation: Operation, out: torch.Tensor, rows: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Say whether the gathered rows, of this shape, fit into `out`; if not, the caller is told at the end."""
    try:
        check_out("allgather", out, rows, shape)
    except UsageError as error:
        operation.complaint = error
    return operation.complaint is None


def _runs(counts: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Give the runs of elements that so many rows of `width` each take, one behind the other."""
    parts, start = [], 0
    for count in counts:
        parts.append((start, start + count * width))
        start += count * width
    return parts


def _rows(rows: int, size: int, rank: int) -> slice:
    """Give the rows of one rank as torch.tensor_split shares them out."""
    least, more = divmod(rows, size)
    start = rank * least + min(rank, more)
    return slice(start, start + least + (rank < more))
