"""Collectives of CUDA tensors through a process group of torch's: NCCL, or in tests its stand-in Gloo.

torch starts NCCL, chooses its streams and keeps memory until kernels have read it. Here is what it leaves open: an
operation ends when a peer dies, after the group's timeout, or when NCCL fails, with an error that names the rank, and
nothing of torch's own ends the process.

Every operation is queued behind what its caller had queued on its stream at the call. The host waits for its end by
looking, never within torch or CUDA, and a result is used only then: a broken collective leaves its output unfinished,
so a stream that went on behind it would go on with garbage.

NCCL compares nothing between ranks: where they call different operations it waits for ever, and where counts differ it
writes past the end of a tensor. So the ranks compare their signatures before each call.
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
"""How long the end of the last operations, and the goodbye of the ranks, may take."""
GRACE_SECONDS = 0.5
"""How long the group's watcher has to name a dead peer before the error of NCCL is raised."""

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
    """Return whether NCCL reduces as the CPU does; what it can't is sent through host memory.

    Its minima and maxima of floats drop NaN, it has no 16-bit or unsigned 32- and 64-bit integers for torch, and of a
    complex number it would multiply real and imaginary parts by themselves.

    Args:
        op: An operator, or none.
        dtype: Of the tensors.
    """
    if op == "none":
        return True  # bytes are moved
    if dtype.is_complex:
        return op in ("sum", "mean")
    if dtype.is_floating_point and op in ("min", "max"):
        return False
    return op in _OPERATORS and (dtype in _NATIVE or dtype is torch.bool)


class DeviceWork(UnderWay):
    """An operation that has been handed to a process group.

    Args:
        owner: Of the process group.
        describe: Says what the operation is, for errors.
        ready: Where this rank itself is ready for it.

    Attributes:
        works: torch's.
        ended: Where the result is there; None once somebody has waited for it.
    """

    __slots__ = ("_owner", "_ready", "describe", "ended", "works")

    def __init__(self, owner: ThroughProcessGroup, describe: Callable[[], str], ready: Event) -> None:
        self._owner = owner
        self._ready = ready
        self.describe = describe
        self.works: list[Any] = []
        self.ended: Event | None = None

    def done(self) -> bool:
        """Return whether the operation has ended, well or not."""
        ended = self.ended
        return ended is None or self._owner.aborted or ended.query()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the GPU has finished, and return the result.

        Args:
            timeout: Maximum seconds to wait. The operation itself continues afterwards.

        Raises:
            PeerLost: A rank has died, or has left the group.
            CommTimeoutError: There was no end for as long as the group allows; or for `timeout` seconds.
            NcclError: NCCL has failed.
        """
        ended = self.ended  # which another thread's wait may take away meanwhile
        if ended is not None:
            until = math.inf if timeout is None else time.monotonic() + timeout
            wait_until(ended.query, _Guard(self._owner, self, self._ready, until).check)
            if self._owner.aborted and not self._owner.settled:
                raise self._owner.gone()  # the GPU came to the end because its kernels were made to stop
            self.ended = None
            self.works = []
        return self.result


class ThroughProcessGroup:
    """The `Way` through a process group. One thread at a time may call it; any thread may wait for a `DeviceWork`.

    Args:
        process_group: Connected with all ranks; nobody else uses it.
        store: What it was made with, which must live as long, as its methods are Python's.
        stream: Of the device that all tensors are on; nothing else may be put on it.
        rank: This rank.
        size: Number of ranks.
        abort_state: The group's. When it fails, the process group is aborted.
        timeout: Seconds after which an operation that doesn't end is given up.
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
        """Whether it was given up; what its operations wrote is then not to be trusted."""
        self.settled = False
        """Whether every operation had ended well before; then it is."""
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
                copies = [row.float() if widened else _as_nccl(row).clone() for row in rows]  # sums are left in them
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
        """See `Way`. The tensor may be its part of `out`, or lie elsewhere in it."""
        with self._launch(turn, lambda: f"allgather ({_describe(out)})", tensor, out) as work:
            everything = flat(out) if is_plain(out) else out.new_empty(out.numel())
            rows = [everything[start:stop] for start, stop in parts]
            mine = flat(tensor)
            if _share_memory(mine, everything) and mine.data_ptr() != rows[self.rank].data_ptr():
                mine = mine.clone()  # others' rows would come to lie there while it is still sent
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
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> DeviceWork:
        """See `Way`."""
        with self._launch(turn, lambda: f"alltoall ({rows.nbytes:,} bytes sent)", rows, out) as work:
            nbytes = prod(rows.shape[1:]) * rows.itemsize
            counts = [[count * nbytes for count in numbers] for numbers in (coming, splits)]
            self._call(work, "alltoall_base", _bytes(flat(out)), _bytes(flat(rows)), *counts)
        return work

    def gone(self) -> CommError:
        """Return the error of a call that comes after the end."""
        try:
            self.abort_state.check()
        except CommError as error:
            return error
        return GroupClosedError("the process group of the CUDA tensors is closed: make a new group")

    def abort(self) -> None:
        """Abort what is under way, in the background: torch may take long, or for ever, if NCCL hangs.

        A thread that waits for an operation polls `aborted`, so it raises at once. A thread that is stuck in torch is
        left behind. If the rank of a sweep's worker doesn't return, the worker is replaced.
        """
        self.aborted = True
        process_group, self._process_group = self._process_group, None
        abort(process_group)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Finish what is under way, and take leave of the peers, so that no memory goes while another still reads it.

        Every rank calls it, before it says goodbye to the group. Where one doesn't within `timeout` seconds, or the
        group has failed, it aborts instead.
        """
        until = time.monotonic() + timeout
        last, self._last = self._last, None
        if last is not None and not self.aborted:
            with contextlib.suppress(CommError):  # whoever waits for the operation gets it
                last.wait(timeout)
                self.settled = True
        if self.abort_state.error is not None or not (last is None or self.settled):
            self.abort()
        process_group, self._process_group = self._process_group, None
        if process_group is not None and not self.aborted:
            # torch 2.6 has it under another name.
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
        for tensor in tensors:  # before anything is queued: its memory isn't given away, whatever goes wrong there
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
        started.wait()  # lets the stream wait for it, not the host

    def failed(self, error: object, describe: Callable[[], str]) -> CommError:
        """End the group because NCCL has failed, and return the error to raise.

        A dying peer is often seen by NCCL first, so the group's watcher is given a moment to say who it was.
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
    """Ends a wait that will never end by itself."""

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
            # What this rank itself computes before the operation isn't the peers' fault.
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
        """Check whether NCCL has failed: then torch calls the work completed, but the stream never gets past it."""
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
        """A peer that has left may have done its part; an operation that still doesn't end needs more of it."""
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
    """Called in whatever thread saw the end of the group, which must not wait for NCCL."""
    owner = reference()
    if owner is not None and not owner.aborted and owner.abort_state.error is not None:
        owner.abort()


def _options(options: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _is_widened(op: str, dtype: torch.dtype, size: int) -> bool:
    """Return whether a reduction is done in float32.

    NCCL's mean multiplies each value by 1/size, rounded to the dtype, before it adds; in 16 bits that is off by as much
    as 0.2 % where size isn't a power of two.
    """
    return dtype in _HALVES and (op == "product" or (op == "mean" and size & (size - 1) != 0))


def _copy(row: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a row of what NCCL takes into a tensor."""
    values = row.to(tensor.dtype) if tensor.dtype in _HALVES else row.view(tensor.dtype)
    tensor.copy_(values.view(tensor.shape))


def _as_nccl(row: torch.Tensor) -> torch.Tensor:
    """Return a row as NCCL takes it: bools as bytes, complex numbers as pairs of floats."""
    return row.view(_VIEWS.get(row.dtype, row.dtype))


def _bytes(row: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a row, which move alike for every dtype."""
    return row.view(torch.uint8)


def _share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _describe(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)}, {tensor.nbytes:,} bytes"
