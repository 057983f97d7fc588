"""A thread per process set, in which the ranks negotiate which operations are ready and execute them.

The ranks negotiate in exchanges: collectives in which each rank sends a message with its new requests and receives the
messages of all ranks. A rank enters an exchange when it has a new request, or when it only waits for other ranks. If
other ranks wait for a rank that has no new request, it enters after a short pause. Otherwise it would delay the other
ranks' new requests.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import torch

from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.errors import CommError
from hpsearch_comm.group import Group
from hpsearch_comm.horovod import recording
from hpsearch_comm.horovod.errors import HorovodInternalError
from hpsearch_comm.horovod.execution import execute, reduce_all, stand_in
from hpsearch_comm.horovod.negotiation import JOIN, Decision, Negotiation
from hpsearch_comm.horovod.request import Entry, Request
from hpsearch_comm.horovod.settings import Settings
from hpsearch_comm.operations.work import Handle

_LONGEST_PAUSE = 0.05
_PATIENCE = 1e6
"""Timeout of the negotiation in seconds, eleven days: other ranks may compute for any time between operations."""


class Controller:
    """Runs the operations of one process set.

    Args:
        group: The group that executes the operations. A duplicate of it is for the negotiation.
        ranks: The process set's ranks, as numbers in the job.
        settings: The settings from the environment.
    """

    def __init__(self, group: Group, ranks: list[int], settings: Settings) -> None:
        self.group = group
        self.ranks = ranks
        self.settings = settings
        self._control_group = group.duplicate(_PATIENCE)
        self._negotiation = Negotiation(group.rank, ranks)
        self._wake = threading.Condition()
        self._device: torch.device | None = None
        self._stream: CudaStream | None = None
        self._callers_gpu = 0
        self._new: list[Entry] = []
        self._pending: dict[str, Entry] = {}
        self._running: list[Entry] = []
        self._counts: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._negotiate, name=f"hpsearch-comm-horovod-{group.rank}", daemon=True)
        self._thread.start()

    def use_device(self, device: torch.device) -> None:
        """Set the CUDA device of this rank; a rank can use only one.

        Raises:
            ValueError: The rank already uses another device.
        """
        with self._wake:
            if self._device is None:
                self._stream = self.group.stream_beside(device)
                self._device = device
        if device != self._device:
            raise ValueError(
                f"a rank has one GPU in hvd, but its tensors are on {self._device} and {device}: call "
                "torch.cuda.set_device(hvd.local_rank()) before the model is made"
            )

    def name(self, kind: str, name: str | None) -> str:
        """Return an operation's full name. Operations without a name are numbered per kind, in the order of calls."""
        if name:
            return f"{kind}.{name}"
        with self._wake:
            return f"{kind}.noname.{next(self._counts[kind])}"

    def submit(self, entry: Entry) -> None:
        """Submit an operation. It runs when all ranks have requested it.

        Raises:
            ValueError: An operation of the same name is pending.
            HorovodInternalError: The job has ended.
        """
        with self._wake:
            if self._error is not None:
                raise HorovodInternalError(f"the job has ended: {to_horovod_error(self._error)}") from self._error
            if self._closing:
                raise HorovodInternalError("the process set has been shut down")
            if entry.request.name in self._pending:
                raise ValueError(
                    f"names of pending operations must differ, but {entry.request.name} hasn't ended yet: wait for "
                    "it with hvd.synchronize(handle), or give this one another name"
                )
            self._pending[entry.request.name] = entry
            self._new.append(entry)
            recording.mark_phase([entry], recording.NEGOTIATION)
            self._wake.notify()

    def join(self) -> Handle[int]:
        """Make this rank contribute zeros to operations that it doesn't call, until all have joined."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # each thread has its own
            self._callers_gpu = torch.cuda.current_device()
        entry = Entry(Request(JOIN, JOIN))
        self.submit(entry)
        return entry.handle

    def describe_missing(self, name: str) -> str:
        """Return a text that names the ranks that an operation waits for, as far as this rank can tell."""
        absent = self._negotiation.absent(name)
        other_ranks = [number for rank, number in enumerate(self.ranks) if rank != self.group.rank]
        return f"ranks {absent}, which have not called it" if absent else f"some of ranks {other_ranks}"

    def abort(self, reason: str) -> None:
        """End all pending and later operations with HorovodInternalError, on all ranks."""
        error = HorovodInternalError(reason)
        with self._wake:  # first: the thread fails because its groups are closed
            self._error = self._error or error
        self._control_group.close(error)
        self.group.close(error)
        self._end(error)

    def close(self) -> None:
        """End the thread. Operations that are still pending end with HorovodInternalError."""
        with self._wake:
            self._closing = True
            waited_for = bool(self._pending)
            self._wake.notify()
        if waited_for:
            self.abort(
                f"rank {self.ranks[self.group.rank]} has left the job by hvd.shutdown() or its end, while operations "
                "were pending: wait for every handle on every rank before that"
            )
        self._thread.join()
        self._control_group.close()
        self.group.close()

    def _negotiate(self) -> None:
        pause = self.settings.cycle_seconds
        try:
            while True:
                with self._wake:
                    if not self._await_turn(pause):
                        return
                    entries, self._new = self._new, []
                message = self._negotiation.write([entry.request for entry in entries])
                del entries
                decisions = self._negotiation.process_messages(self._control_group.allgather_object(message))
                recording.mark_cycle()
                self._apply(decisions)
                pause = self.settings.cycle_seconds if message or decisions else min(2 * pause, _LONGEST_PAUSE)
        except BaseException as error:
            self._end(error, self._running)

    def _await_turn(self, pause: float) -> bool:
        """Wait until this rank should enter an exchange; return False if the controller is closing."""
        while not self._closing:
            if self._new or (self._negotiation.open and not self._negotiation.is_awaited):
                return True
            if not self._wake.wait(pause if self._negotiation.open else None) and self._negotiation.open:
                return not self._closing
        return False

    def _apply(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if decision.refusal and (refused := self._take(decision.request.name)) is not None:
                recording.mark_phase([refused], None)
                refused.handle.finish(error=HorovodInternalError(decision.refusal))
        runs = [decision.request for decision in decisions if not decision.refusal]
        joined = runs.pop() if runs and runs[-1].kind == JOIN else None
        for request in runs:
            self._running.append(self._take(request.name) or self._stand_in(request))
        self._execute(self._running)
        self._running = []
        if joined is not None and (own_join := self._take(JOIN)) is not None:
            self._counts.clear()  # ranks that joined early made fewer calls than others
            recording.mark_phase([own_join], None)
            own_join.handle.finish(joined.numbers[0])

    def _stand_in(self, request: Request) -> Entry:
        if request.device == "cpu":
            return stand_in(request, torch.device("cpu"))
        if self._device is None:  # the rank joined before its first operation
            self.use_device(torch.device("cuda", self._callers_gpu))
        assert self._device is not None
        assert self._stream is not None
        with self._stream.scope():
            return stand_in(request, self._device)

    def _execute(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.request.kind != "allreduce":
                carry = entry.carry or partial(execute, self.group)
                self._run([entry], partial(carry, entry))
        reductions = [entry for entry in entries if entry.request.kind == "allreduce"]
        if reductions:
            self._run(reductions, partial(reduce_all, self.group, reductions, self.settings.fusion_bytes))

    def _run(self, entries: list[Entry], step: Callable[[], object]) -> None:
        """Execute operations; those on a GPU run on a separate stream, not the caller's."""
        recording.mark_phase(entries, recording.OPERATION)
        with contextlib.nullcontext() if self._stream is None else self._stream.scope():
            for entry in entries:
                entry.begin(None if entry.request.device == "cpu" else self._stream)
            step()
        recording.mark_phase(entries, None)

    def _take(self, name: str) -> Entry | None:
        with self._wake:
            return self._pending.pop(name, None)

    def _end(self, error: BaseException, running: Sequence[Entry] = ()) -> None:
        """End all pending operations, and these running ones, with the first error, which later calls get, too."""
        with self._wake:
            error = self._error = self._error or error
            entries, self._pending, self._new = [*running, *self._pending.values()], {}, []
        for entry in entries:
            if not entry.handle.done():
                entry.handle.finish(error=to_horovod_error(error))
        if not self._closing and not isinstance(error, CommError):
            self._control_group.close(error)
            self.group.close(error)


def to_horovod_error(error: BaseException) -> HorovodInternalError:
    """Return the error as a HorovodInternalError, which Horovod's scripts catch."""
    if isinstance(error, HorovodInternalError):
        return error
    ours = HorovodInternalError(f"{type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours
