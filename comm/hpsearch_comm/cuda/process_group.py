"""Collectives of CUDA tensors through a torch process group: NCCL, or Gloo as a replacement in tests.

torch starts NCCL, chooses its streams and keeps memory until kernels have read it. This module adds error handling: an
operation ends when a peer dies, after the group's timeout, or when NCCL fails, with an error that names the rank. torch
itself never ends the process.

An operation starts after the work that its caller had queued on its stream at the call. The host waits for its end by
polling, never inside torch or CUDA. The result is used only after that: a failed collective leaves its output
unfinished, so a stream that continued without a check would compute with garbage.

NCCL doesn't compare the calls of the ranks: if operations differ it waits forever, and if counts differ it writes past
the end of a tensor. So the ranks compare their signatures before each call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import wait
from math import prod
from typing import Any

import torch
from torch import distributed as dist
from torch.autograd.graph import increment_version

from hpsearch_comm.collectives.parts import Part
from hpsearch_comm.cuda.nccl import GatheredStore, in_background
from hpsearch_comm.cuda.stream import CudaStream, wait_until
from hpsearch_comm.errors import CommError, CommTimeoutError, GroupClosedError, NcclError, PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import FIRST_REMINDER, remind
from hpsearch_comm.operations.contiguous import flat, is_plain, put_back
from hpsearch_comm.operations.work import UnderWay
from hpsearch_comm.operations.work_queue import Turn

CLOSE_SECONDS = 5.0
"""Maximum seconds for the end of the last operations, and for the shutdown together with the peers."""
GRACE_SECONDS = 0.5
"""Seconds after a peer has left in which an operation may still end."""

_NATIVE = frozenset(
    (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
)
_VIEWS = {torch.bool: torch.uint8, torch.complex64: torch.float32, torch.complex128: torch.float64}
_HALVES = (torch.float16, torch.bfloat16)
_OPERATORS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


def supports(op: str, dtype: torch.dtype) -> bool:
    """Return whether NCCL gives the same result as the CPU. Other reductions use host memory.

    NCCL's minima and maxima of floats drop NaN. Its torch bindings have no 16-bit integers and no unsigned 32- and
    64-bit integers. For complex numbers it would multiply real and imaginary parts separately.

    Args:
        op: An operator, or none.
        dtype: The dtype of the tensors.
    """
    if op == "none":
        return True  # bytes are only copied
    if dtype.is_complex:
        return op in ("sum", "mean")
    if dtype.is_floating_point and op in ("min", "max"):
        return False
    return op in _OPERATORS and (dtype in _NATIVE or dtype is torch.bool)


class DeviceWork(UnderWay):
    """An operation that was launched on a process group.

    Args:
        owner: The owner of the process group.
        turn: The operation. Its `ready` is the event after which this rank's input is ready.

    Attributes:
        turn: See above.
        works: torch's `Work` objects.
        ended: Event after which the result is ready; None after a successful `wait`.
    """

    def __init__(self, owner: ThroughProcessGroup, turn: Turn) -> None:
        self.turn = turn
        self._owner = owner
        self.works: list[Any] = []
        self.ended: Any = None

    def done(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        ended = self.ended
        return ended is None or self._owner.aborted or ended.query()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the GPU has finished, and return the result.

        Args:
            timeout: Maximum seconds to wait. The operation itself continues afterwards.

        Raises:
            PeerLost: A rank has died, or has left the group.
            CommTimeoutError: The operation took longer than the group's timeout, or than `timeout` seconds.
            NcclError: NCCL has failed.
        """
        ended = self.ended  # a wait in another thread may set it to None
        if ended is not None:
            self._wait(ended, math.inf if timeout is None else time.monotonic() + timeout)
            if self._owner.aborted:  # the event was only reached because the kernels were aborted
                self._owner.check_open()
            self.ended = None
            self.works = []
        return self.result

    def _wait(self, ended: Any, until: float) -> None:
        owner, turn, abort_state = self._owner, self.turn, self._owner.abort_state
        since, due, left_at = time.monotonic(), FIRST_REMINDER, math.inf

        def check() -> None:
            """Raise an error if the operation won't end on its own."""
            nonlocal since, due, left_at
            abort_state.check()
            if owner.aborted:
                owner.check_open()
            # If NCCL fails, torch reports the work as completed, but the stream never passes it.
            for work in self.works:
                if work.is_completed() and (error := work.exception()) is not None:
                    raise owner.failed(error, turn)
            now = time.monotonic()
            if now > until:
                raise CommTimeoutError(f"{turn.signature} is still running: wait again", -1)
            if not turn.ready.query():  # this time doesn't count: the peers may wait for this rank
                since, due, left_at = now, FIRST_REMINDER, math.inf
                return
            if abort_state.departed:
                left_at = min(left_at, now)
                if now - left_at > GRACE_SECONDS:  # the peer may have done its part before it left
                    peer = min(abort_state.departed)
                    raise owner.fail(
                        PeerLost(
                            f"rank {peer} has closed the group while rank {owner.rank} is still in {turn.signature}: "
                            "call the same operations on every rank before close()",
                            peer,
                        )
                    )
            waited = now - since
            if waited > turn.timeout:
                raise owner.fail(
                    CommTimeoutError(
                        f"rank {owner.rank} waited {waited:.1f} s for its peers in {turn.signature}, without an end: "
                        "one of them may be stuck, or doing something else. If it is only slow, raise the group's "
                        f"timeout (now {turn.timeout:g} s)",
                        -1,
                    )
                )
            if waited > due:
                due = remind(waited, turn.timeout, owner.rank, "its peers", turn.signature)

        wait_until(ended.query, check)


class ThroughProcessGroup:
    """The `Way` through a process group. One thread at a time may call it; any thread may wait for a `DeviceWork`.

    Args:
        process_group: A process group that is connected with all ranks and not used elsewhere.
        store: The store of the process group. It has Python methods, so it must live as long as the process group.
        stream: A stream on the device of all tensors; nothing else may be queued on it.
        rank: This rank.
        size: Number of ranks.
        abort_state: The group's abort state. When the group fails, the process group is aborted.
    """

    def __init__(
        self,
        process_group: Any,
        store: GatheredStore,
        stream: CudaStream,
        rank: int,
        size: int,
        abort_state: AbortState,
    ) -> None:
        self.stream = stream
        self.rank = rank
        self.abort_state = abort_state
        self.aborted = False
        """Whether the process group was aborted. Then operations that nobody has waited for have no results."""
        self._size = size
        self._process_group = process_group
        self._store = store
        self._last: DeviceWork | None = None
        abort_state.on_change(self._abort_if_failed)

    def run(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, detail: Any) -> None:
        """See `Way`."""
        self.check_open()
        self.stream.follow(turn.ready)
        for each in {id(each): each for each in (tensor, out)}.values():
            self.stream.keep(each)  # before any work is queued, so that the memory isn't reused even if that fails
        work = DeviceWork(self, turn)
        with self.stream.scope():
            getattr(self, f"_{turn.call.operation}")(work, tensor, out, detail)
            work.ended = self.stream.record()
        self._last = turn.under_way = work

    def check_open(self) -> Any:
        """Return the process group.

        Raises:
            CommError: It has ended.
        """
        process_group = self._process_group
        if process_group is None:
            self.abort_state.check()
            raise GroupClosedError("the process group of the CUDA tensors is closed: make a new group")
        return process_group

    def fail(self, error: CommError) -> CommError:
        """End the group with an error, and return it."""
        self.abort_state.fail(error)
        return error

    def failed(self, error: object, turn: Turn) -> CommError:
        """End the group because NCCL has failed, and return the error to raise.

        NCCL often notices a dying peer first, so wait a moment for the failure detector to name the rank.
        """
        try:
            self.abort_state.await_verdict(-1)
            for peer in list(self.abort_state.departed):
                self.abort_state.check(peer)
        except CommError as better:
            return self.fail(better)
        reason = str(error).partition("\n")[0]
        return self.fail(NcclError(f"NCCL failed in {turn.signature}: {reason}. NCCL_DEBUG=INFO shows what it does"))

    def abort(self) -> None:
        """Abort the running operations in the background: torch may take long, or forever if NCCL hangs.

        A thread that waits for an operation polls `aborted`, so it raises at once. A thread that is stuck in torch is
        abandoned. If the rank of a sweep's worker doesn't return, the worker is replaced.
        """
        process_group, self._process_group = self._process_group, None
        if process_group is not None:
            self.aborted = True
            in_background(process_group.abort)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Finish the running operations, and shut down with the peers, which may still read this rank's memory.

        Every rank calls it before it leaves the group. If a rank doesn't within `timeout` seconds, or the group has
        failed, the process group is aborted instead.
        """
        until = time.monotonic() + timeout
        last, self._last = self._last, None  # it refers to its result
        if last is not None:
            try:
                last.wait(timeout)
            except CommError:  # the operation's own `wait` raises it
                self.abort()
        self._abort_if_failed()  # another thread may have seen the failure first, and not yet have aborted
        process_group, self._process_group = self._process_group, None
        if process_group is not None:
            # torch 2.6 has another name for it.
            leaving = in_background(getattr(process_group, "shutdown", None) or process_group._shutdown)
            wait([leaving], max(0.0, until - time.monotonic()))
            if not leaving.done():
                in_background(process_group.abort)

    def _abort_if_failed(self) -> None:
        if self.abort_state.error is not None:
            self.abort()

    def _allreduce(self, work: DeviceWork, tensor: torch.Tensor, out: torch.Tensor, _detail: None) -> None:
        values = self._operand(work, out)
        if values is not tensor:
            values.view(-1).copy_(flat(tensor))
        options = _with_operator(work, dist.AllreduceOptions())
        self._call(work, values.numel(), "allreduce", [_as_nccl(values)], options)
        _write(values, out)

    def _reduce_scatter(self, work: DeviceWork, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        if len({stop - start for start, stop in parts}) > 1:
            total = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            self._allreduce(work, tensor, total, None)
            start, stop = parts[self.rank]
            out.copy_(total.view(-1)[start:stop].view(out.shape))
            return
        source, values = self._operand(work, tensor), self._operand(work, out)
        if source is not tensor:
            source.view(-1).copy_(flat(tensor))
        if values is out and _share_memory(tensor, out):
            values = torch.empty_like(out)
        options = _with_operator(work, dist.ReduceScatterOptions())
        self._call(work, source.numel(), "_reduce_scatter_base", _as_nccl(values), _as_nccl(source), options)
        _write(values, out)

    def _broadcast(self, work: DeviceWork, tensor: torch.Tensor, _out: torch.Tensor, root: int) -> None:
        row, options = flat(tensor), dist.BroadcastOptions()
        options.rootRank = root
        self._call(work, row.numel(), "broadcast", [row.view(torch.uint8)], options)
        if root != self.rank:
            put_back(row, tensor)

    def _allgather(self, work: DeviceWork, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        everything = flat(out) if is_plain(out) else out.new_empty(out.numel())
        rows = [everything[start:stop] for start, stop in parts]
        mine = flat(tensor)
        if _share_memory(mine, everything) and mine.data_ptr() != rows[self.rank].data_ptr():
            mine = mine.clone()  # otherwise received rows would overwrite it while it is being sent
        if len({row.numel() for row in rows}) == 1:
            received, sent = everything.view(torch.uint8), mine.view(torch.uint8)
            self._call(work, everything.numel(), "_allgather_base", received, sent)
        else:
            rows[self.rank].copy_(mine)
            for root, row in enumerate(rows):
                self._broadcast(work, row, row, root)
        put_back(everything, out)

    def _alltoall(
        self, work: DeviceWork, rows: torch.Tensor, out: torch.Tensor, counts: Sequence[Sequence[int]]
    ) -> None:
        nbytes = prod(rows.shape[1:]) * rows.itemsize
        coming = [line[self.rank] * nbytes for line in counts]
        splits = [count * nbytes for count in counts[self.rank]]
        received, sent = flat(out).view(torch.uint8), flat(rows).view(torch.uint8)
        self._call(work, sum(map(sum, counts)), "alltoall_base", received, sent, coming, splits)

    def _operand(self, work: DeviceWork, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor if NCCL can reduce in its memory, or else new memory of the same shape.

        NCCL's mean multiplies each value by 1/size, rounded to the dtype, before the addition. In 16 bits the error is
        up to 0.2 % if size isn't a power of two. Such means, and products, are computed in float32.
        """
        op, dtype = work.turn.reduction.name, tensor.dtype
        if dtype in _HALVES and (op == "product" or (op == "mean" and self._size.bit_count() > 1)):
            dtype = torch.float32
        if dtype is tensor.dtype and is_plain(tensor):
            return tensor
        return torch.empty(tensor.shape, dtype=dtype, device=tensor.device)

    def _call(self, work: DeviceWork, numel: int, name: str, *arguments: Any) -> None:
        """Call a method of the process group, unless there is nothing to send on any rank."""
        process_group = self.check_open()
        if not numel:
            return
        try:
            started = getattr(process_group, name)(*arguments)
        except RuntimeError as error:
            raise self.failed(error, work.turn) from error
        work.works.append(started)
        started.wait()  # the stream waits for it, not the host


def _with_operator(work: DeviceWork, options: Any) -> Any:
    options.reduceOp = _OPERATORS[work.turn.reduction.name]
    return options


def _write(values: torch.Tensor, out: torch.Tensor) -> None:
    """Copy reduced values to `out`, or tell autograd that they are already there."""
    if values is out:
        increment_version(out)
    else:
        out.copy_(values)


def _as_nccl(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in a dtype that NCCL supports: bools as bytes, complex numbers as pairs of floats."""
    return tensor.view(-1).view(_VIEWS.get(tensor.dtype, tensor.dtype))


def _share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
