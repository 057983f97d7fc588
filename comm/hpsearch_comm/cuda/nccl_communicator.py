"""Collectives of CUDA tensors through NCCL.

Every operation is queued on a stream of the communicator's own, behind what the caller has queued on the current one,
and gives an `NcclWork`. `wait()` waits on the host until the GPU has done it. That costs the host some microseconds of
head start over the GPU, and in return no number of a broken collective is ever computed with: an aborted kernel simply
ends and leaves its output unfinished, so a stream that went on behind it would go on with garbage.

Any thread may make the calls, one at a time and in the same order on every rank. In a thread that isn't the caller's,
which has a current stream of its own, `ready` stands for the caller's stream. Any thread may wait for an `NcclWork`.

NCCL itself compares nothing between ranks: where they call different operations, they wait until the timeout. Whoever
can should compare the signatures first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import torch
from torch.autograd.graph import increment_version

from hpsearch_comm.cuda.nccl_library import NcclLibrary, load_nccl
from hpsearch_comm.cuda.nccl_reduction import lower
from hpsearch_comm.cuda.nccl_session import Call, NcclSession
from hpsearch_comm.cuda.nccl_start import Gather, start
from hpsearch_comm.cuda.queue import CudaQueue, Event, Queue
from hpsearch_comm.errors import CommError, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.arguments import check_device
from hpsearch_comm.operations.contiguous import flat, is_plain, put_back

__all__ = ["NcclCommunicator", "NcclWork"]

T = TypeVar("T")

CLOSE_SECONDS = 5.0
_BYTE = 1  # ncclUint8


class NcclWork(Generic[T]):
    """An operation that has been given to the GPU."""

    __slots__ = ("_ended", "_session", "_started", "_what", "held", "result")

    def __init__(self, session: NcclSession, what: Callable[[], str], result: T, started: Event) -> None:
        self._session = session
        self._what = what
        self._started = started
        self._ended: Event | None = None
        self.held: object = None
        """What must live until the operation has ended."""
        self.result = result
        """What the operation gives; not to be used before `wait()`."""

    def done(self) -> bool:
        """Say whether the operation has ended, well or not."""
        return self._ended is None or self._session.aborted or self._ended.query()

    def wait(self, timeout: float | None = None) -> T:
        """Wait until the GPU has finished, and give the result.

        Args:
            timeout: Seconds to wait at most. The operation itself goes on when they are over.

        Raises:
            PeerLost: A rank has died, or has left the group.
            CommTimeoutError: There was no end for as long as the group allows; or for `timeout` seconds.
            NcclError: NCCL has failed.
        """
        if self._ended is not None:
            self._session.wait(self._what, self._started, self._ended, timeout)
            self._ended = self.held = None
        return self.result


class NcclCommunicator:
    """This rank's end of an NCCL communicator. One thread at a time may call it; `abort` any.

    Args:
        rank: This rank, from 0 to size - 1.
        size: The number of ranks.
        device: The CUDA device of all tensors, with its number.
        gather: By which the ranks start NCCL together.
        abort_state: The group's. When it fails, the communicator is aborted.
        timeout: Seconds after which an operation that doesn't end is given up.
        start_timeout: Seconds that making the communicator may take.
        max_ctas: Thread blocks that each kernel may take at most, the same on every rank; see `most_ctas`.
        interface: Name of the interface that NCCL's sockets are to use; None leaves the choice to NCCL.
        library: In place of the one that is found.
        queue: In place of a new stream of the device.

    Raises:
        NcclError: NCCL can't be loaded; or it hasn't started on some rank, which every rank is told.
        PeerLost, CommTimeoutError: Not all ranks have come.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        gather: Gather,
        abort_state: AbortState,
        timeout: float,
        *,
        start_timeout: float = 60.0,
        max_ctas: int | None = None,
        interface: str | None = None,
        library: NcclLibrary | None = None,
        queue: Queue | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._session = NcclSession(rank, size, library or load_nccl(), abort_state, timeout)
        self._queue: Queue = CudaQueue(device) if queue is None else queue
        self._last: tuple[Event, Event] | None = None
        with self._queue.scope():
            start(self._session, gather, start_timeout, max_ctas, interface)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Make room for a result, on the stream that will write it; to be lent to the caller's stream."""
        with self._queue.scope():
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def allreduce(
        self,
        tensor: torch.Tensor,
        op: str = "mean",
        out: torch.Tensor | None = None,
        *,
        ready: Event | None = None,
    ) -> NcclWork[torch.Tensor]:
        """Reduce over all ranks, in place unless `out` is given; every rank gets the same bits.

        Args:
            tensor: Of the same shape and dtype on every rank.
            op: sum, mean, min, max or product.
            out: Where the result goes, in place of the tensor.
            ready: Where the tensor is ready, for a call from another thread than the caller's; so in all operations.
        """
        result = tensor if out is None else out
        self._fits(tensor, result)
        if result.shape != tensor.shape:
            raise UsageError(f"out must have the tensor's shape {list(tensor.shape)}, got {list(result.shape)}")
        reduction = lower(op, tensor.dtype, self.size)
        with self._launch(lambda: f"allreduce ({op} of {_describe(tensor)})", result, (tensor, result), ready) as work:
            source = reduction.prepare(flat(tensor))
            place = flat(result) if reduction.shares and is_plain(result) else None
            target = torch.empty_like(source) if place is None else reduction.prepare(place)
            arguments = (source.data_ptr(), target.data_ptr(), source.numel(), reduction.datatype, reduction.operator)
            self._call(work, [("ncclAllReduce", arguments)] if source.numel() else [], (source, target))
            if place is None:
                result.detach().copy_(reduction.restore(target).view(result.shape))
            else:
                increment_version(result)
        return work

    def reduce_scatter(
        self, tensor: torch.Tensor, op: str, out: torch.Tensor, counts: Sequence[int], *, ready: Event | None = None
    ) -> NcclWork[torch.Tensor]:
        """Reduce over all ranks, and give each rank its part.

        Args:
            tensor: All parts, one behind the other in row-major order.
            op: sum, mean, min, max or product.
            out: Where this rank's part goes.
            counts: Elements of each rank's part.
            ready: As for `allreduce`.
        """
        self._fits(tensor, out)
        self._counted(counts, tensor=(tensor, sum(counts)), out=(out, counts[self.rank]))
        reduction = lower(op, tensor.dtype, self.size)
        with self._launch(lambda: f"reduce_scatter ({op} of {_describe(tensor)})", out, (tensor, out), ready) as work:
            source = reduction.prepare(flat(tensor))
            # A complex number is two of NCCL's.
            unit = source.numel() // max(1, tensor.numel())
            parts = [part * unit for part in counts]
            straight = reduction.shares and is_plain(out) and not _share_memory(tensor, out)
            target = reduction.prepare(flat(out)) if straight else source.new_empty(parts[self.rank])
            kind = (reduction.datatype, reduction.operator)
            calls: list[Call]
            if len(set(parts)) == 1:
                calls = [("ncclReduceScatter", (source.data_ptr(), target.data_ptr(), parts[0], *kind))]
            else:
                calls = [
                    ("ncclReduce", (start, target.data_ptr() if root == self.rank else None, part, *kind, root))
                    for root, (start, part) in enumerate(zip(_starts(source, parts), parts, strict=True))
                    if part
                ]
            self._call(work, calls if source.numel() else [], (source, target))
            if straight:
                increment_version(out)
            else:
                out.detach().copy_(reduction.restore(target).view(out.shape))
        return work

    def broadcast(self, tensor: torch.Tensor, root: int = 0, *, ready: Event | None = None) -> NcclWork[torch.Tensor]:
        """Give every rank the root's tensor, in place."""
        self._fits(tensor)
        if not 0 <= root < self.size:
            raise UsageError(f"root must be a rank from 0 to {self.size - 1}, got {root}")
        with self._launch(lambda: f"broadcast ({_describe(tensor)}, root {root})", tensor, (tensor,), ready) as work:
            row = flat(tensor)
            arguments = (row.data_ptr(), row.data_ptr(), row.nbytes, _BYTE, root)
            self._call(work, [("ncclBroadcast", arguments)] if row.nbytes else [], row)
            if root != self.rank:
                put_back(row, tensor.detach())
        return work

    def allgather(
        self, tensor: torch.Tensor, out: torch.Tensor, counts: Sequence[int], *, ready: Event | None = None
    ) -> NcclWork[torch.Tensor]:
        """Give every rank all ranks' tensors.

        Args:
            tensor: This rank's; it may be its part of `out`.
            out: Room for all of them, in the order of ranks.
            counts: Elements of each rank's tensor.
            ready: As for `allreduce`.
        """
        self._fits(tensor, out)
        self._counted(counts, tensor=(tensor, counts[self.rank]), out=(out, sum(counts)))
        with self._launch(lambda: f"allgather ({_describe(out)})", out, (tensor, out), ready) as work:
            row = flat(tensor)
            everything = out if is_plain(out) else torch.empty(out.shape, dtype=out.dtype, device=out.device)
            sizes = [count * tensor.itemsize for count in counts]
            calls: list[Call]
            if len(set(sizes)) == 1:
                calls = [("ncclAllGather", (row.data_ptr(), everything.data_ptr(), sizes[0], _BYTE))]
            else:
                calls = [
                    ("ncclBroadcast", (row.data_ptr() if root == self.rank else start, start, nbytes, _BYTE, root))
                    for root, (start, nbytes) in enumerate(zip(_starts(everything, counts), sizes, strict=True))
                    if nbytes
                ]
            self._call(work, calls if out.numel() else [], (row, everything))
            put_back(everything, out.detach())
        return work

    def alltoall(
        self, sends: Sequence[torch.Tensor], receives: Sequence[torch.Tensor], *, ready: Event | None = None
    ) -> NcclWork[Sequence[torch.Tensor]]:
        """Give rank i `sends[i]`, and fill `receives[i]` with what rank i gives this one.

        Args:
            sends: One tensor for each rank.
            receives: Room for one tensor from each rank, as large as what it sends; contiguous.
            ready: As for `allreduce`.
        """
        if len(sends) != self.size or len(receives) != self.size:
            raise UsageError(
                f"alltoall needs a tensor for each of the {self.size} ranks, got {len(sends)} to send and "
                f"{len(receives)} to receive"
            )
        self._fits(*sends, *receives)
        mine = self.rank
        if sends[mine].numel() != receives[mine].numel():
            raise UsageError(
                f"sends[{mine}] and receives[{mine}] are this rank's own and must be equally large, got "
                f"{sends[mine].numel()} and {receives[mine].numel()} elements"
            )
        for receive in receives:
            _check_plain("receives", receive)
        nbytes = sum(send.nbytes for send in sends)
        with self._launch(lambda: f"alltoall ({nbytes:,} bytes sent)", receives, (*sends, *receives), ready) as work:
            flats = [flat(send) for send in sends]
            flat(receives[mine]).copy_(flats[mine])
            calls: list[Call] = []
            for peer in range(self.size):
                if peer == mine:
                    continue
                if flats[peer].numel():
                    calls.append(("ncclSend", (flats[peer].data_ptr(), flats[peer].nbytes, _BYTE, peer)))
                if receives[peer].numel():
                    calls.append(("ncclRecv", (receives[peer].data_ptr(), receives[peer].nbytes, _BYTE, peer)))
            self._call(work, calls, flats)
        return work

    def abort(self) -> None:
        """Give up whatever is under way: kernels that wait for a peer end. From any thread, any number of times."""
        self._session.abort()

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
    def _launch(
        self, what: Callable[[], str], result: T, tensors: Sequence[torch.Tensor], ready: Event | None
    ) -> Iterator[NcclWork[T]]:
        """Queue an operation behind what the caller has queued, and mark its start and its end."""
        if not self._session.usable:
            raise self._session.gone()
        queue = self._queue
        before = queue.mark() if ready is None else ready
        queue.follow(before)
        # Before anything is queued: whatever goes wrong there, memory that the GPU may still write isn't given away.
        for tensor in tensors:
            queue.keep(tensor)
        work = NcclWork(self._session, what, result, before)
        with queue.scope():
            yield work
            work._ended = queue.record()
            self._last = before, work._ended

    def _call(self, work: NcclWork[T], calls: Sequence[Call], held: object) -> None:
        work.held = held
        self._session.call(calls, self._queue.handle, work._what)

    def _fits(self, *tensors: torch.Tensor) -> None:
        check_device(self.device, tensors)
        for tensor in tensors:
            if tensor.dtype is not tensors[0].dtype:
                raise UsageError(f"tensors must have one dtype, got {tensors[0].dtype} and {tensor.dtype}")

    def _counted(self, counts: Sequence[int], **wanted: tuple[torch.Tensor, int]) -> None:
        if len(counts) != self.size:
            raise UsageError(f"counts must have a number for each of the {self.size} ranks, got {list(counts)}")
        for name, (tensor, count) in wanted.items():
            if tensor.numel() != count:
                raise UsageError(f"{name} must have {count} elements by counts {list(counts)}, got {tensor.numel()}")


def _check_plain(name: str, tensor: torch.Tensor) -> None:
    if not is_plain(tensor):
        raise UsageError(f"{name} must be contiguous, got strides {tensor.stride()}: use torch.empty(shape)")


def _share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _starts(tensor: torch.Tensor, parts: Sequence[int]) -> list[int]:
    """Give the address of each part of a tensor."""
    starts = []
    address = tensor.data_ptr()
    for part in parts:
        starts.append(address)
        address += part * tensor.itemsize
    return starts


def _describe(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)}, {tensor.nbytes:,} bytes"
