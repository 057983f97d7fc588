"""The ways that a collective of CUDA tensors can take: through NCCL, through host memory, or nowhere in a group of one.

Every operation on every way is run in the group's turn, be it in the caller's thread or in the queue's. So there is
one order of all operations, on the CPU and on GPUs, the same on every rank, and nothing can wait in a circle: the first
operation that isn't finished everywhere is one that every rank comes to, since what lies before it has ended, or is
with the GPUs, which need nothing more from the host. The caller's stream comes along as a `Caller`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.cuda.nccl_communicator import NcclCommunicator
from hpsearch_comm.cuda.staging import HostStaging
from hpsearch_comm.operations.way import Turn
from hpsearch_comm.operations.work import UnderWay

__all__ = ["Alone", "Landed", "ThroughHost", "ThroughNccl"]

Part = tuple[int, int]


class Landed:
    """An operation that has ended."""

    __slots__ = ("result",)

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def done(self) -> bool:
        """See `UnderWay`."""
        return True

    def wait(self, _timeout: float | None = None) -> Any:
        """See `UnderWay`."""
        return self.result


class ThroughNccl:
    """Through NCCL, once the ranks have met on the CPU and compared what they call.

    They meet before every operation, not only before the first of its kind. NCCL compares nothing: where counts differ
    it writes past the end of a tensor or hangs, and ranks that agreed on a kind of call once can still call two of them
    in different orders. A meeting takes 5 to 50 us of the host's time, as long as NCCL's own launch; asynchronous
    operations spend it in the queue's thread, while the GPU computes. In return no kernel is launched that spins on
    the GPU for a peer who never comes.

    Args:
        communicator: Of all ranks.
        host: Where they meet.
    """

    def __init__(self, communicator: NcclCommunicator, host: HostCollectives) -> None:
        self._communicator = communicator
        self._host = host
        self._meeting = host.algorithm("barrier", 0)

    def empty(self, turn: Turn, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """See `Way`."""
        tensor = self._communicator.empty(shape, like.dtype)
        turn.caller.lend(tensor)
        return tensor

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> UnderWay:
        """See `Way`."""
        self._host.barrier(turn.operation, self._meeting)
        return self._communicator.allreduce(tensor, turn.reduction.name, out, ready=turn.caller.ready)

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> UnderWay:
        """See `Way`."""
        self._host.barrier(turn.operation, self._meeting)
        return self._communicator.broadcast(tensor, root, ready=turn.caller.ready)

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay:
        """See `Way`. The exchange of sizes was the meeting."""
        return self._communicator.allgather(tensor, out, _lengths(parts), ready=turn.caller.ready)

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay:
        """See `Way`."""
        self._host.barrier(turn.operation, self._meeting)
        op = turn.reduction.name
        return self._communicator.reduce_scatter(tensor, op, out, _lengths(parts), ready=turn.caller.ready)

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, splits: Sequence[int], out: torch.Tensor, coming: Sequence[int]
    ) -> UnderWay:
        """See `Way`. The exchange of numbers was the meeting."""
        sends, receives = _runs_of_rows(rows, splits), _runs_of_rows(out, coming)
        return self._communicator.alltoall(sends, receives, ready=turn.caller.ready)


class ThroughHost:
    """Through pinned host memory and the collectives of CPU tensors, which compare signatures themselves.

    Args:
        staging: Copies down and up.
        host: Carries out what lies on the CPU.
    """

    def __init__(self, staging: HostStaging, host: HostCollectives) -> None:
        self._staging = staging
        self._host = host

    def empty(self, turn: Turn, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """See `Way`."""
        tensor = self._staging.empty(shape, like.dtype)
        turn.caller.lend(tensor)
        return tensor

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> UnderWay:
        """See `Way`."""
        host, operation, algorithm, reduction = self._host, turn.operation, turn.call.algorithm, turn.reduction

        def collective(chunk: torch.Tensor) -> None:
            host.allreduce(operation, algorithm, chunk, reduction, chunk)

        return Landed(self._staging.elementwise(tensor, collective, out=out, ready=turn.caller.ready))

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> UnderWay:
        """See `Way`."""
        host, operation, algorithm = self._host, turn.operation, turn.call.algorithm

        def collective(chunk: torch.Tensor) -> None:
            host.broadcast(operation, algorithm, chunk, root)

        return Landed(self._staging.elementwise(tensor, collective, ready=turn.caller.ready))

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay:
        """See `Way`."""
        start, stop = parts[turn.operation.rank]

        def collective(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
            everything = wanted[0].view(-1)
            everything[start:stop].copy_(given[0].view(-1))
            self._host.allgather(turn.operation, turn.call.algorithm, everything, parts)

        self._staging.whole([tensor], [out], collective, ready=turn.caller.ready)
        return Landed(out)

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay:
        """See `Way`."""

        def collective(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
            mine, to = given[0].view(-1), wanted[0].view(-1)
            self._host.reduce_scatter(turn.operation, turn.call.algorithm, mine, parts, turn.reduction, to)

        self._staging.whole([tensor], [out], collective, ready=turn.caller.ready)
        return Landed(out)

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, splits: Sequence[int], out: torch.Tensor, coming: Sequence[int]
    ) -> UnderWay:
        """See `Way`."""

        def collective(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
            self._host.exchange_rows(turn.operation, _flat_rows(given[0]), splits, _flat_rows(wanted[0]), coming)

        self._staging.whole([rows], [out], collective, ready=turn.caller.ready)
        return Landed(out)


class Alone:
    """In a group of one every result is a copy, made on the caller's own stream; nobody waits for it on the host."""

    def empty(self, turn: Turn, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """See `Way`."""
        with turn.caller.scope():
            return like.new_empty(tuple(shape))

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> UnderWay:
        """See `Way`."""
        return self._copy(turn, tensor, out)

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> UnderWay:
        """See `Way`."""
        return Landed(tensor)

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay:
        """See `Way`."""
        return self._copy(turn, tensor, out)

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay:
        """See `Way`."""
        return self._copy(turn, tensor, out)

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, splits: Sequence[int], out: torch.Tensor, coming: Sequence[int]
    ) -> UnderWay:
        """See `Way`."""
        return self._copy(turn, rows, out)

    def _copy(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> UnderWay:
        if out is not tensor:
            with turn.caller.scope():
                out.copy_(tensor)
        return Landed(out)


def _lengths(parts: Sequence[Part]) -> list[int]:
    return [stop - start for start, stop in parts]


def _flat_rows(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(rows.shape[0], prod(rows.shape[1:]))


def _runs_of_rows(rows: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    runs, start = [], 0
    for count in counts:
        runs.append(rows[start : start + count])
        start += count
    return runs
