"""Collectives of CUDA tensors through NCCL: the `Way` of most operations.

Every operation is queued on a stream of the communicator's own, behind what the caller has queued on its one, and gives
an `NcclWork`. `wait()` waits on the host until the GPU has done it. That costs the host some microseconds of head start
over the GPU, and in return no number of a broken collective is ever computed with: an aborted kernel simply ends and
leaves its output unfinished, so a stream that went on behind it would go on with garbage.

Any thread may make the calls, one at a time and in the same order on every rank. Any thread may wait for an `NcclWork`.

NCCL itself compares nothing between ranks: where they call different operations, they wait until the timeout, and where
counts differ it writes past the end of a tensor. So the ranks must have compared their signatures before each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import torch
from torch.autograd.graph import increment_version

from hpsearch_comm.cuda.nccl_reduction import lower
from hpsearch_comm.cuda.nccl_session import Call, NcclSession
from hpsearch_comm.cuda.nccl_start import Gather, start
from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.errors import CommError
from hpsearch_comm.operations.contiguous import flat, is_plain, put_back
from hpsearch_comm.operations.way import Part, Turn, parts_of
from hpsearch_comm.operations.work import UnderWay

__all__ = ["NcclCommunicator", "NcclWork"]

CLOSE_SECONDS = 5.0
_BYTE = 1  # ncclUint8


class NcclWork(UnderWay):
    """An operation that has been given to the GPU."""

    __slots__ = ("_ended", "_session", "_started", "_what")

    def __init__(self, session: NcclSession, what: Callable[[], str], started: Event) -> None:
        self._session = session
        self._what = what
        self._started = started
        self._ended: Event | None = None

    def done(self) -> bool:
        """Say whether the operation has ended, well or not."""
        ended = self._ended
        return ended is None or self._session.aborted or ended.query()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the GPU has finished, and give the result.

        Args:
            timeout: Seconds to wait at most. The operation itself goes on when they are over.

        Raises:
            PeerLost: A rank has died, or has left the group.
            CommTimeoutError: There was no end for as long as the group allows; or for `timeout` seconds.
            NcclError: NCCL has failed.
        """
        ended = self._ended  # which another thread's wait may take away meanwhile
        if ended is not None:
            self._session.wait(self._what, self._started, ended, timeout)
            self._ended = None
        return self.result


class NcclCommunicator:
    """This rank's end of an NCCL communicator. One thread at a time may call it.

    Args:
        session: A new one, which nobody else uses.
        stream: Of the device that all tensors lie on; nothing else may be put on it.
        gather: By which the ranks start NCCL together.
        start_timeout: Seconds that making the communicator may take.
        max_ctas: Thread blocks that each kernel may take at most, the same on every rank; see `most_ctas`.
        interface: Name of the interface that NCCL's sockets are to use; None leaves the choice to NCCL.

    Raises:
        NcclError: NCCL hasn't started on some rank, which every rank is told.
        PeerLost, CommTimeoutError: Not all ranks have come.
    """

    def __init__(
        self,
        session: NcclSession,
        stream: CudaStream,
        gather: Gather,
        *,
        start_timeout: float = 60.0,
        max_ctas: int | None = None,
        interface: str | None = None,
    ) -> None:
        self.stream = stream
        self._session = session
        self._rank = session.rank
        self._size = session.size
        self._last: tuple[Event, Event] | None = None
        with stream.scope():
            start(session, gather, start_timeout, max_ctas, interface)

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> NcclWork:
        """See `Way`."""
        op = turn.reduction.name
        reduction = lower(op, tensor.dtype, self._size)
        with self._launch(turn, lambda: f"allreduce ({op} of {_describe(tensor)})", tensor, out) as work:
            source = reduction.prepare(flat(tensor))
            straight = reduction.shares and is_plain(out)
            target = reduction.prepare(flat(out)) if straight else torch.empty_like(source)
            arguments = (source.data_ptr(), target.data_ptr(), source.numel(), reduction.datatype, reduction.operator)
            self._call(work, [("ncclAllReduce", arguments)] if source.numel() else [])
            if straight:
                increment_version(out)
            else:
                out.copy_(reduction.restore(target).view(out.shape))
        return work

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> NcclWork:
        """See `Way`."""
        op = turn.reduction.name
        reduction = lower(op, tensor.dtype, self._size)
        with self._launch(turn, lambda: f"reduce_scatter ({op} of {_describe(tensor)})", tensor, out) as work:
            source = reduction.prepare(flat(tensor))
            # A complex number is two of NCCL's.
            unit = source.numel() // max(1, tensor.numel())
            counts = [(stop - start) * unit for start, stop in parts]
            straight = reduction.shares and is_plain(out) and not _share_memory(tensor, out)
            target = reduction.prepare(flat(out)) if straight else source.new_empty(counts[self._rank])
            kind = (reduction.datatype, reduction.operator)
            calls: list[Call]
            if len(set(counts)) == 1:
                calls = [("ncclReduceScatter", (source.data_ptr(), target.data_ptr(), counts[0], *kind))]
            else:
                places = [source.data_ptr() + start * unit * source.itemsize for start, _ in parts]
                calls = [
                    ("ncclReduce", (place, target.data_ptr() if root == self._rank else None, count, *kind, root))
                    for root, (place, count) in enumerate(zip(places, counts, strict=True))
                    if count
                ]
            self._call(work, calls if source.numel() else [])
            if straight:
                increment_version(out)
            else:
                out.copy_(reduction.restore(target).view(out.shape))
        return work

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> NcclWork:
        """See `Way`."""
        with self._launch(turn, lambda: f"broadcast ({_describe(tensor)}, root {root})", tensor) as work:
            row = flat(tensor)
            arguments = (row.data_ptr(), row.data_ptr(), row.nbytes, _BYTE, root)
            self._call(work, [("ncclBroadcast", arguments)] if row.nbytes else [])
            if root != self._rank:
                put_back(row, tensor)
        return work

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> NcclWork:
        """See `Way`. The tensor may be its part of `out`."""
        with self._launch(turn, lambda: f"allgather ({_describe(out)})", tensor, out) as work:
            row = flat(tensor)
            everything = out if is_plain(out) else torch.empty(out.shape, dtype=out.dtype, device=out.device)
            places = [everything.data_ptr() + start * tensor.itemsize for start, _ in parts]
            sizes = [(stop - start) * tensor.itemsize for start, stop in parts]
            calls: list[Call]
            if len(set(sizes)) == 1:
                calls = [("ncclAllGather", (row.data_ptr(), everything.data_ptr(), sizes[0], _BYTE))]
            else:
                calls = [
                    ("ncclBroadcast", (row.data_ptr() if root == self._rank else place, place, nbytes, _BYTE, root))
                    for root, (place, nbytes) in enumerate(zip(places, sizes, strict=True))
                    if nbytes
                ]
            self._call(work, calls if out.numel() else [])
            put_back(everything, out)
        return work

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> NcclWork:
        """See `Way`."""
        with self._launch(turn, lambda: f"alltoall ({rows.nbytes:,} bytes sent)", rows, out) as work:
            width = prod(rows.shape[1:])
            source, target = flat(rows), flat(out)
            sends = [source[start:stop] for start, stop in parts_of(splits, width)]
            receives = [target[start:stop] for start, stop in parts_of(coming, width)]
            receives[self._rank].copy_(sends[self._rank])
            calls: list[Call] = []
            for peer, (send, receive) in enumerate(zip(sends, receives, strict=True)):
                if peer == self._rank:
                    continue
                if send.numel():
                    calls.append(("ncclSend", (send.data_ptr(), send.nbytes, _BYTE, peer)))
                if receive.numel():
                    calls.append(("ncclRecv", (receive.data_ptr(), receive.nbytes, _BYTE, peer)))
            self._call(work, calls)
        return work

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Finish what is under way, and take leave of the peers, so that no memory goes while another still reads it.

        Every rank calls it, before it says goodbye to the group. Where one doesn't within `timeout` seconds from the
        end of the last operation, or the group has failed, it aborts instead.
        """
        session = self._session
        if session.usable:
            # An error is that of the operation: whoever waits for it gets it.
            with suppress(CommError):
                if self._last is not None:
                    session.wait(lambda: "the last operation before close", *self._last)
                session.settled = True
        self._last = None
        session.close(timeout)

    @contextmanager
    def _launch(self, turn: Turn, what: Callable[[], str], *tensors: torch.Tensor) -> Iterator[NcclWork]:
        """Queue an operation behind what the caller has queued, and mark its start and its end."""
        if not self._session.usable:
            raise self._session.gone()
        self.stream.follow(turn.ready)
        # Before anything is queued: whatever goes wrong there, memory that the GPU may still write isn't given away.
        # What is made in the stream's scope is its own, and reused only for what is queued behind.
        for tensor in tensors:
            self.stream.keep(tensor)
        work = NcclWork(self._session, what, turn.ready)
        with self.stream.scope():
            yield work
            work._ended = self.stream.record()
            self._last = turn.ready, work._ended

    def _call(self, work: NcclWork, calls: Sequence[Call]) -> None:
        self._session.call(calls, self.stream.handle, work._what)


def _share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _describe(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)}, {tensor.nbytes:,} bytes"
