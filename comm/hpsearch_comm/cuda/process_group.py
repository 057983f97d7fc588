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

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import distributed as dist
from torch.autograd.graph import increment_version

from hpsearch_comm.cuda.start import GatheredStore, abort, in_background
from hpsearch_comm.cuda.stream import CudaStream, Event, wait_until
from hpsearch_comm.errors import CommError, CommTimeoutError, GroupClosedError, NcclError, PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import FIRST_REMINDER, remind
from hpsearch_comm.operations.contiguous import flat, is_plain, put_back
from hpsearch_comm.operations.way import Part, Turn
from hpsearch_comm.operations.work import UnderWay

CLOSE_SECONDS = 5.0
"""Maximum seconds for the end of the last operations, and for the shutdown together with the peers."""
GRACE_SECONDS = 0.5
"""Seconds to wait for the failure detector to name a dead peer before NCCL's error is raised."""

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
        describe: Returns a description of the operation, for errors.
        ready: Event after which this rank's input is ready.

    Attributes:
        works: torch's `Work` objects.
        ended: Event after which the result is ready; None after a successful `wait`.
    """

    __slots__ = ("_owner", "_ready", "describe", "ended", "works")

    def __init__(self, owner: ThroughProcessGroup, describe: Callable[[], str], ready: Event) -> None:
        self._owner = owner
        self._ready = ready
        self.describe = describe
        self.works: list[Any] = []
        self.ended: Event | None = None

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
            until = math.inf if timeout is None else time.monotonic() + timeout
            wait_until(ended.query, _Guard(self._owner, self, self._ready, until).check)
            if self._owner.aborted and not self._owner.settled:
                raise self._owner.gone()  # the event was only reached because the kernels were aborted
            self.ended = None
            self.works = []
        return self.result


class ThroughProcessGroup:
    """The `Way` through a process group. One thread at a time may call it; any thread may wait for a `DeviceWork`.

    Args:
        process_group: A process group that is connected with all ranks and not used elsewhere.
        store: The store of the process group. It has Python methods, so it must live as long as the process group.
        stream: A stream on the device of all tensors; nothing else may be queued on it.
        rank: This rank.
        size: Number of ranks.
        abort_state: The group's abort state. When the group fails, the process group is aborted.
        timeout: Seconds after which an unfinished operation fails.
    """

    def __init__(
        self,
        process_group: Any,
        store: GatheredStore,
        stream: CudaStream,
        rank: int,
        size: int,
        abort_state: AbortState,
        timeout: float,
    ) -> None:
        self.stream = stream
        self.rank = rank
        self.abort_state = abort_state
        self.timeout = timeout
        self.aborted = False
        """Whether the process group was aborted. Then results of its operations are invalid, unless `settled`."""
        self.settled = False
        """Whether every operation had ended successfully before an abort. Then the results are valid."""
        self._size = size
        self._process_group = process_group
        self._store = store
        self._last: DeviceWork | None = None
        me = weakref.ref(self)
        abort_state.on_change(lambda: _abort_if_failed(me))

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> DeviceWork:
        """See `Way`."""
        op = turn.reduction.name
        widened = _is_widened(op, tensor.dtype, self._size)
        with self._launch(turn, lambda: f"allreduce ({op} of {_describe(tensor)})", tensor, out) as work:
            source = flat(tensor)
            straight = is_plain(out) and not widened
            if straight:
                target = _as_nccl(flat(out))
                if out is not tensor:
                    target.copy_(_as_nccl(source))
                increment_version(out)
            else:
                target = source.float() if widened else _as_nccl(source).clone()
            if target.numel():
                self._call(work, "allreduce", [target], _options(dist.AllreduceOptions(), reduceOp=_OPERATORS[op]))
            if not straight:
                _copy(target, out)
        return work

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> DeviceWork:
        """See `Way`."""
        op = turn.reduction.name
        operator, widened = _OPERATORS[op], _is_widened(op, tensor.dtype, self._size)
        with self._launch(turn, lambda: f"reduce_scatter ({op} of {_describe(tensor)})", tensor, out) as work:
            source = flat(tensor)
            if len({stop - start for start, stop in parts}) == 1:
                source = source.float() if widened else _as_nccl(source)
                straight = is_plain(out) and not widened and not _share_memory(tensor, out)
                target = _as_nccl(flat(out)) if straight else source.new_empty(source.numel() // self._size)
                if source.numel():
                    options = _options(dist.ReduceScatterOptions(), reduceOp=operator)
                    self._call(work, "_reduce_scatter_base", target, source, options)
            else:
                straight = False
                rows = [source[start:stop] for start, stop in parts]
                copies = [row.float() if widened else _as_nccl(row).clone() for row in rows]  # overwritten with sums
                target = copies[self.rank]
                for root, row in enumerate(copies):
                    if row.numel():
                        options = _options(dist.ReduceOptions(), reduceOp=operator, rootRank=root)
                        self._call(work, "reduce", [row], options)
            if straight:
                increment_version(out)
            else:
                _copy(target, out)
        return work

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> DeviceWork:
        """See `Way`."""
        with self._launch(turn, lambda: f"broadcast ({_describe(tensor)}, root {root})", tensor) as work:
            row = flat(tensor)
            if row.numel():
                self._call(work, "broadcast", [_bytes(row)], _options(dist.BroadcastOptions(), rootRank=root))
            if root != self.rank:
                put_back(row, tensor)
        return work

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> DeviceWork:
        """See `Way`. The tensor may be its own part of `out`, or elsewhere in `out`."""
        with self._launch(turn, lambda: f"allgather ({_describe(out)})", tensor, out) as work:
            everything = flat(out) if is_plain(out) else out.new_empty(out.numel())
            rows = [everything[start:stop] for start, stop in parts]
            mine = flat(tensor)
            if _share_memory(mine, everything) and mine.data_ptr() != rows[self.rank].data_ptr():
                mine = mine.clone()  # otherwise received rows would overwrite it while it is being sent
            if len({row.numel() for row in rows}) == 1:
                if everything.numel():
                    self._call(work, "_allgather_base", _bytes(everything), _bytes(mine))
            else:
                rows[self.rank].copy_(mine)
                for root, row in enumerate(rows):
                    if row.numel():
                        options = _options(dist.BroadcastOptions(), rootRank=root)
                        self._call(work, "broadcast", [_bytes(row)], options)
            put_back(everything, out)
        return work

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, counts: Sequence[Sequence[int]]
    ) -> DeviceWork:
        """See `Way`."""
        with self._launch(turn, lambda: f"alltoall ({rows.nbytes:,} bytes sent)", rows, out) as work:
            nbytes = prod(rows.shape[1:]) * rows.itemsize
            coming = [line[self.rank] * nbytes for line in counts]
            splits = [count * nbytes for count in counts[self.rank]]
            self._call(work, "alltoall_base", _bytes(flat(out)), _bytes(flat(rows)), coming, splits)
        return work

    def gone(self) -> CommError:
        """Return the error for calls after the process group has ended."""
        try:
            self.abort_state.check()
        except CommError as error:
            return error
        return GroupClosedError("the process group of the CUDA tensors is closed: make a new group")

    def abort(self) -> None:
        """Abort the running operations in the background: torch may take long, or forever if NCCL hangs.

        A thread that waits for an operation polls `aborted`, so it raises at once. A thread that is stuck in torch is
        abandoned. If the rank of a sweep's worker doesn't return, the worker is replaced.
        """
        self.aborted = True
        process_group, self._process_group = self._process_group, None
        abort(process_group)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Finish the running operations, and shut down with the peers, which may still read this rank's memory.

        Every rank calls it before it leaves the group. If a rank doesn't within `timeout` seconds, or the group has
        failed, the process group is aborted instead.
        """
        until = time.monotonic() + timeout
        last, self._last = self._last, None
        if last is not None and not self.aborted:
            with contextlib.suppress(CommError):  # the operation's own `wait` raises it
                last.wait(timeout)
                self.settled = True
        if self.abort_state.error is not None or not (last is None or self.settled):
            self.abort()
        process_group, self._process_group = self._process_group, None
        if process_group is not None and not self.aborted:
            # torch 2.6 has another name for it.
            shutdown = getattr(process_group, "shutdown", None) or process_group._shutdown
            leaving = in_background(shutdown)
            leaving.join(max(0.0, until - time.monotonic()))
            if leaving.is_alive():
                abort(process_group)

    @contextlib.contextmanager
    def _launch(self, turn: Turn, describe: Callable[[], str], *tensors: torch.Tensor) -> Iterator[DeviceWork]:
        if self._process_group is None:
            raise self.gone()
        self.stream.follow(turn.ready)
        for tensor in tensors:  # before any work is queued, so that the memory isn't reused even if that fails
            self.stream.keep(tensor)
        work = DeviceWork(self, describe, turn.ready)
        with self.stream.scope():
            yield work
            work.ended = self.stream.record()
        self._last = work

    def _call(self, work: DeviceWork, name: str, *arguments: Any) -> None:
        process_group = self._process_group
        if process_group is None:
            raise self.gone()
        try:
            started = getattr(process_group, name)(*arguments)
        except RuntimeError as error:
            raise self.failed(error, work.describe) from error
        work.works.append(started)
        started.wait()  # the stream waits for it, not the host

    def failed(self, error: object, describe: Callable[[], str]) -> CommError:
        """End the group because NCCL has failed, and return the error to raise.

        NCCL often notices a dying peer first, so wait a moment for the failure detector to name the rank.
        """
        reason = str(error).partition("\n")[0]
        failure: CommError = NcclError(f"NCCL failed in {describe()}: {reason}. NCCL_DEBUG=INFO shows what it does")
        until = time.monotonic() + GRACE_SECONDS
        try:
            wait_until(lambda: time.monotonic() > until, self._check_peers)
        except CommError as better:
            failure = better
        self.abort_state.fail(failure)
        return failure

    def _check_peers(self) -> None:
        self.abort_state.check()
        for peer in list(self.abort_state.departed):
            self.abort_state.check(peer)


@dataclass(slots=True)
class _Guard:
    """Ends a wait that would never end on its own."""

    owner: ThroughProcessGroup
    work: DeviceWork
    ready: Event | None
    until: float
    started: float = 0.0
    departed_at: float | None = None
    completed: float | None = None
    due: float = 0.0

    def describe(self) -> str:
        return self.work.describe()

    def check(self) -> None:
        owner, abort_state = self.owner, self.owner.abort_state
        abort_state.check()
        if owner.aborted:
            raise owner.gone()
        now = time.monotonic()
        self._check_works(now)
        if self.ready is not None:
            # Time until this rank's own input is ready doesn't count.
            self.started, self.due = now, FIRST_REMINDER
            if self.ready.query():
                self.ready = None
        elif abort_state.departed:
            self._check_left(now)
        if now > self.until:
            raise CommTimeoutError(f"{self.describe()} is still running: wait again", -1)
        waited = now - self.started
        if waited > owner.timeout:
            self._fail(
                CommTimeoutError(
                    f"rank {owner.rank} waited {waited:.1f} s for its peers in {self.describe()} through NCCL, without "
                    "an end: one of them may be stuck, or doing something else. If it is only slow, raise the group's "
                    f"timeout (now {owner.timeout:g} s)",
                    -1,
                )
            )
        if waited > self.due:
            self.due = remind(waited, owner.timeout, owner.rank, "its peers", self.describe())

    def _check_works(self, now: float) -> None:
        """Check whether NCCL has failed: then torch reports the work as completed, but the stream never passes it."""
        works = self.work.works
        if not works or not all(work.is_completed() for work in works):
            self.completed = None
        elif self.completed is None:
            self.completed = now
        elif now - self.completed > GRACE_SECONDS:
            self.completed = now
            for work in works:
                if (error := work.exception()) is not None:
                    raise self.owner.failed(error, self.describe)

    def _check_left(self, now: float) -> None:
        """Fail if the operation hasn't ended some time after a peer has left. The peer may have done its part."""
        if self.departed_at is None:
            self.departed_at = now
        elif now - self.departed_at > GRACE_SECONDS:
            peer = min(self.owner.abort_state.departed)
            self._fail(
                PeerLost(
                    f"rank {peer} has closed the group while rank {self.owner.rank} is still in {self.describe()}: "
                    "call the same operations on every rank before close()",
                    peer,
                )
            )

    def _fail(self, error: CommError) -> None:
        self.owner.abort_state.fail(error)
        raise error


def _abort_if_failed(reference: weakref.ref[ThroughProcessGroup]) -> None:
    """Abort a process group whose group has failed; called in any thread, which must not wait for NCCL."""
    owner = reference()
    if owner is not None and not owner.aborted and owner.abort_state.error is not None:
        owner.abort()


def _options(options: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _is_widened(op: str, dtype: torch.dtype, size: int) -> bool:
    """Return whether to reduce in float32.

    NCCL's mean multiplies each value by 1/size, rounded to the dtype, before the addition. In 16 bits the error is up
    to 0.2 % if size isn't a power of two.
    """
    return dtype in _HALVES and (op == "product" or (op == "mean" and size & (size - 1) != 0))


def _copy(row: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a row in NCCL's dtype into a tensor."""
    values = row.to(tensor.dtype) if tensor.dtype in _HALVES else row.view(tensor.dtype)
    tensor.copy_(values.view(tensor.shape))


def _as_nccl(row: torch.Tensor) -> torch.Tensor:
    """Return a view of a row in a dtype that NCCL supports: bools as bytes, complex numbers as pairs of floats."""
    return row.view(_VIEWS.get(row.dtype, row.dtype))


def _bytes(row: torch.Tensor) -> torch.Tensor:
    """Return a view of a row as bytes, to copy any dtype."""
    return row.view(torch.uint8)


def _share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _describe(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)}, {tensor.nbytes:,} bytes"
