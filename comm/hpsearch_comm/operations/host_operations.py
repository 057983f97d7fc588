"""Preparation of operations on CPU tensors: argument checks, and the choice of what to run.

Objects are sent as JSON, so decoding them can't run code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Protocol, TypeVar

import torch

from hpsearch_comm.collectives.parts import parts_of, split
from hpsearch_comm.collectives.reduction import Reduction, reduction_for
from hpsearch_comm.errors import CommError, MismatchError, UsageError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import DTYPES, Signature
from hpsearch_comm.operations.arguments import (
    Call,
    check_out,
    check_rank,
    check_rows,
    check_splits,
    check_target,
    check_tensor,
    whole_number,
)
from hpsearch_comm.operations.host_collectives import HostCollectives, allreduce
from hpsearch_comm.operations.work_queue import Prepared, Turn
from hpsearch_comm.shm.shared_memory import SharedMemory


def encode(value: Any) -> bytes:
    """Return the value as JSON in UTF-8. Tuples become lists.

    Raises:
        UsageError: JSON can't represent the value, or would change it, such as keys that aren't text.
    """
    try:
        _check_keys(value)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"a value must consist of dicts with text keys, lists, text, numbers, booleans and None to travel between "
            f"ranks, got {type(value).__name__}: {error}. Send tensors with broadcast or allgather"
        ) from None


def decode(data: bytes) -> Any:
    """Return the value that `encode` has encoded.

    Raises:
        CommError: The data isn't JSON in UTF-8.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CommError(f"a rank sent what can't be read as JSON ({error}): run one version on every rank") from None


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _check_keys(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} would become text")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


T = TypeVar("T")

_MOST_CALLS = 1024
"""Number of calls whose descriptions are cached; others are described again."""

_FRAME_BYTES = 256
"""Bytes of each rank in the first step of `allgather_object`: the length of its value, and its first bytes or all."""
_LENGTH_BYTES = 8

_MOST_BYTES = 1 << 47
"""Size of a process's address space."""


class Way(Protocol):
    """Runs collectives: on the CPU, with NCCL, or through host memory."""

    @property
    def stream(self) -> Any:
        """The stream on which to allocate results; None for the caller's stream, which uses the results in any case."""

    def run(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, detail: Any) -> None:
        """Run a collective: allreduce, broadcast, allgather, reduce_scatter or alltoall, as `turn.call` says.

        Shapes, dtypes and devices have already been checked, and sizes exchanged. Tensors may have any layout; the
        `out` of alltoall is contiguous. GPU work that is still running is left in `turn.under_way`.

        Args:
            turn: The running operation.
            tensor: The input.
            out: The tensor for the result. For broadcast, and for allreduce in place, it is the input.
            detail: The root of a broadcast. The (start, stop) of each rank's elements, for allgather and
                reduce_scatter. For alltoall, the number of rows that rank i sends to rank j, as `detail[i][j]`.
        """


class HostOperations:
    """Prepares operations on CPU tensors.

    Args:
        host: Runs the operations.
        device: 0, or in a subclass the number of the CUDA device of the tensors; see the `device` field of headers.

    Attributes:
        host: Runs the operations on the CPU.
    """

    def __init__(self, host: HostCollectives, device: int = 0) -> None:
        self.host = host
        self._device = device
        self._rank = host.topology.rank
        self._size = host.topology.size
        self._calls: dict[tuple[Any, ...], Call] = {}

    def allreduce(
        self, tensor: torch.Tensor, op: str, out: torch.Tensor | None, agreed: bool = False
    ) -> Prepared[torch.Tensor]:
        """Prepare `Group.allreduce`, or `Group.allreduce_agreed`."""
        source = check_tensor("allreduce", tensor)
        key = "allreduce", source.dtype, source.shape, -1, op if type(op) is str else None
        call = self._calls.get(key)  # the same as `_call` does, in less time
        if call is None:
            call = self._call("allreduce", source.dtype, source.shape, reduction=reduction_for(op, source.dtype))
        if out is None:
            target = check_target("allreduce's tensor", source)
        else:
            target = check_out("allreduce", out, source, source.shape, source)
        result = tensor if out is None else out
        if not self._device:  # fast path: a direct call from the queue to the algorithm
            return Prepared(call, partial(allreduce, source, target, result))

        def work(way: Way, turn: Turn) -> torch.Tensor:
            way.run(turn, source, target, None)
            return result

        return self._prepared(call, work, agreed)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Prepared[torch.Tensor]:
        """Prepare `Group.broadcast`."""
        source = check_tensor("broadcast", tensor)
        root = check_rank("root", root, self._size)
        if root != self._rank:
            check_target("broadcast's tensor", source)
        call = self._call("broadcast", source.dtype, source.shape, root)

        def work(way: Way, turn: Turn) -> torch.Tensor:
            way.run(turn, source, source, root)
            return tensor

        return self._prepared(call, work)

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.allgather`."""
        source = check_tensor("allgather", tensor)
        rows = source if source.dim() else source.view(1)
        row_shape = rows.shape[1:]
        target = None if out is None else _check_gathered(out, rows)
        call = self._call("allgather", rows.dtype, (0, *row_shape))

        def work(way: Way, turn: Turn) -> torch.Tensor:
            counts = [count for (count,) in self.host.allgather_numbers(turn, [rows.shape[0]])]
            shape = (sum(counts), *row_shape)
            fits = target is not None and _gathered_fits(turn, target, rows, shape)
            to = target if target is not None and fits else self._empty(way, turn, shape, rows)
            way.run(turn, rows, to, parts_of(counts, prod(row_shape)))
            return to if out is None else out

        return self._prepared(call, work)

    def reduce_scatter(self, tensor: torch.Tensor, op: str, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.reduce_scatter`."""
        source = check_rows("reduce_scatter", tensor)
        call = self._call("reduce_scatter", source.dtype, source.shape, reduction=reduction_for(op, source.dtype))
        runs = split(source.shape[0], self._size)
        start, stop = runs[self._rank]
        rows, width = source[start:stop], prod(source.shape[1:])
        parts = [(start * width, stop * width) for start, stop in runs]
        # A device writes `out` only after it has read the whole tensor.
        alias = None if self._device else rows
        target = None if out is None else check_out("reduce_scatter", out, source, rows.shape, alias)

        def work(way: Way, turn: Turn) -> torch.Tensor:
            to = self._empty(way, turn, tuple(rows.shape), source) if target is None else target
            way.run(turn, source, to, parts)
            return to if out is None else out

        return self._prepared(call, work)

    def alltoall(self, tensor: torch.Tensor, splits: Sequence[int] | None) -> Prepared[tuple[torch.Tensor, list[int]]]:
        """Prepare `Group.alltoall`."""
        source = check_rows("alltoall", tensor)
        splits = check_splits(source.shape[0], splits, self._size)
        row_shape = source.shape[1:]
        call = self._call("alltoall", source.dtype, (0, *row_shape))

        def work(way: Way, turn: Turn) -> tuple[torch.Tensor, list[int]]:
            counts = self.host.allgather_numbers(turn, splits)
            coming = [line[self._rank] for line in counts]
            to = self._empty(way, turn, (sum(coming), *row_shape), source)
            way.run(turn, source, to, counts)
            return to, coming

        return self._prepared(call, work)

    def barrier(self) -> Prepared[None]:
        """Prepare `Group.barrier`."""
        call = self._call("barrier")
        return Prepared(call, lambda operation: self.host.barrier(operation, call.algorithm))

    def allgather_object(self, value: Any, step: str = "allgather_object") -> Prepared[list[Any]]:
        """Prepare `Group.allgather_object`, or `Group.gather_in` with the name of its step."""
        mine = encode(value)
        reduction = reduction_for("bor", torch.uint8)
        call = self._call(step, torch.uint8, (self._size, _FRAME_BYTES), reduction=reduction, as_="allreduce")
        assert call.carry is not None
        carry = call.carry

        def work(turn: Turn) -> list[Any]:
            # Each rank fills its row of zeros with the length and the value, so a bitwise-or returns all rows. An
            # allgather would have to exchange the lengths first.
            frames = torch.zeros(self._size * _FRAME_BYTES, dtype=torch.uint8, device="cpu")
            first = _bytes_tensor((len(mine).to_bytes(_LENGTH_BYTES, "little") + mine)[:_FRAME_BYTES])
            frames[self._rank * _FRAME_BYTES :][: first.numel()] = first
            carry(turn, frames, frames)
            data = frames.numpy().tobytes()
            starts: Sequence[int] = range(_LENGTH_BYTES, len(data), _FRAME_BYTES)
            lengths = [int.from_bytes(data[start - _LENGTH_BYTES : start], "little") for start in starts]
            if max(lengths) > _FRAME_BYTES - _LENGTH_BYTES:
                parts = parts_of(lengths, 1)
                everything = torch.empty(parts[-1][1], dtype=torch.uint8, device="cpu")
                self.host.allgather(turn, _bytes_tensor(mine), everything, parts)
                data, starts = everything.numpy().tobytes(), [start for start, _ in parts]
            return [decode(data[start : start + length]) for start, length in zip(starts, lengths, strict=True)]

        return Prepared(call, work)

    def subgroup(self, members: list[int], address: str | None) -> Prepared[list[str]]:
        """Prepare the step of `Group.subgroup` that exchanges its members' addresses.

        Args:
            members: The ranks of the subgroup.
            address: This rank's address; None if it isn't a member, or the only member.
        """
        gathering = self.allgather_object([members, address], "subgroup")

        def work(turn: Turn) -> list[str]:
            entries = gathering.work(turn)
            for rank, (theirs, _) in enumerate(entries):
                if theirs != members:
                    raise MismatchError(
                        f"the ranks disagree: rank {self._rank} calls {turn.signature} for ranks {members}, rank "
                        f"{rank} for ranks {theirs}. Every rank of the group must name the same ranks in the same "
                        "order, those outside the subgroup too"
                    )
            return [entries[member][1] for member in members]

        return Prepared(gathering.call, work)

    def broadcast_object(self, value: Any, root: int) -> Prepared[Any]:
        """Prepare `Group.broadcast_object`."""
        root = check_rank("root", root, self._size)
        mine = encode(value) if root == self._rank else None
        call = self._call("broadcast_object", torch.uint8, (), root, as_="broadcast")

        def work(turn: Turn) -> Any:
            length = torch.tensor([0 if mine is None else len(mine)], device="cpu")
            self.host.broadcast(turn, length, length, root)
            text = torch.empty(int(length), dtype=torch.uint8, device="cpu") if mine is None else _bytes_tensor(mine)
            self.host.broadcast(turn, text, text, root)
            return decode(text.numpy().tobytes())  # on the root too, so that a tuple becomes a list on every rank

        return Prepared(call, work)

    def first_cuda_use(self, work: Callable[[Turn], T]) -> Prepared[T]:
        """Prepare the step in which the ranks agree on how to send the tensors of a CUDA device."""
        return Prepared(self._call("first_cuda_use", as_="barrier"), work)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Prepared[torch.Tensor]:
        """Prepare `Group.empty`."""
        if len(shape) == 1 and isinstance(shape[0], Sequence):
            shape = tuple(shape[0])
        lengths = [length for length in map(whole_number, shape) if length is not None and length >= 0]
        if len(lengths) != len(shape):
            raise UsageError(f"a shape must consist of whole numbers of at least 0, got {tuple(shape)!r}")
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"dtype must be a torch.dtype, got {dtype!r}")
        if dtype not in DTYPES:
            raise UsageError(f"there are no collectives of {dtype}, nor memory for them: use torch.uint8")
        nbytes = prod(lengths) * dtype.itemsize
        if max(nbytes, *lengths, 0) >= _MOST_BYTES:
            raise UsageError(f"a tensor of shape {lengths} and {dtype} is too large for any memory: ask for less")
        call = self._call("empty", dtype, tuple(lengths), as_="barrier")
        return Prepared(call, lambda operation: self.host.shm.empty(operation, nbytes).view(dtype).view(lengths))

    def share(self, nbytes: int, locks: int) -> Prepared[SharedMemory]:
        """Prepare `Group.share`."""
        for name, value in (("nbytes", nbytes), ("locks", locks)):
            number = whole_number(value)
            if number is None or not 0 <= number < _MOST_BYTES:
                raise UsageError(f"{name} of share must be a number from 0 to {_MOST_BYTES - 1}, got {value!r}")
        shm = self.host.shm
        if shm.size != self._size:
            hosts = [list(ranks) for ranks in self.host.topology.hosts]
            raise UsageError(
                f"share needs all ranks on one host, got {hosts}: start them on one, without transport='tcp', by which "
                "each counts as a host of its own"
            )
        call = self._call("share", torch.uint8, (int(nbytes),), int(locks), as_="barrier")
        return Prepared(call, lambda operation: shm.share(operation, int(nbytes), int(locks)))

    def _prepared(self, call: Call, work: Callable[[Way, Turn], T], agreed: bool = False) -> Prepared[T]:
        """Return a prepared operation. `work` runs it, and returns its result."""
        return Prepared(call, partial(work, self.host))

    def _empty(self, way: Way, turn: Turn, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Allocate memory for a result that the caller gets."""
        return like.new_empty(shape)

    def _algorithm(self, operation: str, nbytes: int, reduction: str, dtype: torch.dtype) -> str:
        """Return the algorithm of a call that is described for the first time; `reduction` is "none" without one."""
        return self.host.algorithm(operation, nbytes)

    def _call(
        self,
        operation: str,
        dtype: torch.dtype = torch.uint8,
        shape: tuple[int, ...] = (),
        root: int = -1,
        reduction: Reduction | None = None,
        *,
        as_: str | None = None,
    ) -> Call:
        name = "none" if reduction is None else reduction.name
        key = operation, dtype, shape, root, name
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= _MOST_CALLS:
                self._calls.clear()
            numel = prod(shape)
            algorithm = self._algorithm(as_ or operation, numel * dtype.itemsize, name, dtype)
            signature = Signature(0, operation, algorithm, dtype, tuple(shape), name, root, self._device)
            carry = None if reduction is None else self.host.bind_allreduce(algorithm, reduction, numel)
            call = self._calls[key] = Call.of(signature, reduction, carry)
        return call


def _check_gathered(out: object, rows: torch.Tensor) -> torch.Tensor:
    """Check allgather's `out`, except its length: that is checked once all ranks have sent their number of rows.

    Raises:
        UsageError: It can't hold these rows.
    """
    target = check_tensor("out of allgather", out)
    return check_out("allgather", target, rows, (*target.shape[:1], *rows.shape[1:]) if target.dim() else rows.shape)


def _gathered_fits(operation: Operation, out: torch.Tensor, rows: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether gathered rows of this shape fit into `out`. If not, the operation raises the error at its end."""
    try:
        check_out("allgather", out, rows, shape)
    except UsageError as error:
        operation.complaint = error
    return operation.complaint is None
