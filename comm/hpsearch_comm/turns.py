"""Runs a group's operations one at a time: in the caller's thread, or in the engine's behind what was called before."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from hpsearch_comm.call import Call
from hpsearch_comm.engine import Engine
from hpsearch_comm.errors import CommError, GroupClosedError, UsageError
from hpsearch_comm.fate import Fate
from hpsearch_comm.handle import Handle, LaunchHandle
from hpsearch_comm.operation import Operation
from hpsearch_comm.recent import Recent
from hpsearch_comm.timeline import NoTimeline, Timeline

__all__ = ["Prepared", "Turns", "used_within"]

T = TypeVar("T")


@dataclass(slots=True)
class Prepared(Generic[T]):
    """An operation whose arguments have been checked: what ranks must agree on, and what is to be done."""

    call: Call
    work: Callable[[Operation], T]
    launches: bool = False
    """Whether the work only hands the operation to a GPU, and gives it `UnderWay` in place of its result."""


class Turns:
    """Gives operations their numbers and their turns.

    Args:
        rank: This rank.
        fate: The group's.
        recent: Keeps what has been called.
        timeline: Records what runs.
        timeout: Seconds without progress after which an operation gives up.
        name: The group's, for the timeline.

    Attributes:
        last_algorithm: Of the operation that began last.
    """

    def __init__(
        self,
        rank: int,
        fate: Fate,
        recent: Recent,
        timeline: Timeline | NoTimeline,
        timeout: float,
        name: str = "",
    ) -> None:
        self.last_algorithm = "none"
        self.rank = rank
        self.fate = fate
        self.recent = recent
        self.timeline = timeline
        self.timeout = timeout
        self.name = name
        # One that its owner may take again: a signal handler that does so is told, in place of waiting for itself.
        self._lock = threading.RLock()
        self._inside = 0  # the thread that is in a call, by its number
        self._sequence = 0
        self._engine: Engine | None = None
        self._process = os.getpid()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nothing more is taken."""
        return self._closed

    @property
    def inherited(self) -> bool:
        """Whether this is the copy of a forked child, who has no part in the group."""
        return self._process != os.getpid()

    def now(self, prepared: Prepared[T]) -> T:
        """Run an operation, behind those that are still under way, and give its result."""
        handle: Handle[T] | None = None
        with self._lock:
            self.check()
            self._inside = threading.get_ident()
            try:
                if self._engine is None or self._engine.idle:
                    with _Run(self, prepared.call, self._number(), spin=True) as operation:
                        result: Any = prepared.work(operation)
                        if prepared.launches:  # the next operation's ranks meet when the GPU has done this one
                            result.wait()
                else:
                    handle = self._submit(prepared, blocking=True)
            finally:
                self._inside = 0
        if handle is not None:
            return handle.wait()
        return result.wait() if prepared.launches else result  # type: ignore[no-any-return]

    def later(self, prepared: Prepared[T]) -> Handle[T]:
        """Run an operation in the engine's thread."""
        with self._lock:
            self.check()
            self._inside = threading.get_ident()
            try:
                return self._submit(prepared)
            finally:
                self._inside = 0

    def close(self) -> None:
        """Finish what was submitted, and take nothing more."""
        if self.inherited:
            self._closed = True
            return
        with self._lock:
            self.check_outside()
            self._closed = True
        if self._engine is not None:
            self._engine.close()

    def check_outside(self) -> None:
        """Raise UsageError in a thread that is in one of these calls already, as a signal handler's may be."""
        if self._inside and self._inside == threading.get_ident():
            raise used_within()

    def check(self) -> None:
        """Raise unless an operation may be called.

        Raises:
            GroupClosedError: The group is closed.
            UsageError: This is a forked child, or a thread that is in an operation already.
            CommError: The group has ended.
        """
        if self._closed:
            raise GroupClosedError("the group is closed on this rank: make a new one, or close it later")
        if self.inherited:
            raise UsageError(
                "a group can't be used in a forked child, whose sockets would be its parent's: make the group in the "
                "process that uses it, for example in a data loader's parent only"
            )
        self.check_outside()
        if self.fate.error is not None:
            self.fate.check()

    def _number(self) -> int:
        sequence = self._sequence
        self._sequence = sequence + 1
        return sequence

    def _submit(self, prepared: Prepared[T], *, blocking: bool = False) -> Handle[T]:
        sequence = self._number()
        if self._engine is None:
            name, timeline = self.name, self.timeline
            self._engine = Engine(f"hpsearch-comm-engine-{self.rank}", lambda: timeline.engine_thread(name))
        queued = time.monotonic_ns() if self.timeline.on and not blocking else 0
        title = f"{prepared.call.operation} {sequence}"
        handle = self._engine.submit(title, lambda: self._run(prepared, sequence, queued))
        return LaunchHandle(handle) if prepared.launches else handle

    def _run(self, prepared: Prepared[T], sequence: int, queued: int) -> T:
        with _Run(self, prepared.call, sequence, spin=False, queued=queued) as operation:
            result: Any = prepared.work(operation)
            if prepared.launches and self.timeline.on:
                result.wait()  # its time is to be recorded
        return result  # type: ignore[no-any-return]


class _Run:
    """The time in which an operation runs. An error of it ends the group.

    Args:
        turns: The group's.
        call: What runs.
        sequence: The operation's number.
        spin: Whether its waits may hold a core.
        queued: When it was queued, in nanoseconds of `time.monotonic_ns`; 0 for one that wasn't.
    """

    __slots__ = ("_call", "_operation", "_queued", "_sequence", "_spin", "_turns", "_within")

    def __init__(self, turns: Turns, call: Call, sequence: int, *, spin: bool, queued: int = 0) -> None:
        self._turns = turns
        self._call = call
        self._sequence = sequence
        self._spin = spin
        self._queued = queued
        self._within: contextlib.ExitStack | None = None

    def __enter__(self) -> Operation:
        turns, call, sequence = self._turns, self._call, self._sequence
        # What this one waited behind may have ended the group. It must send and write nothing then: a peer that is
        # still in the torn operation might take it for the rest of that.
        if turns.fate.error is not None:
            turns.fate.check()
        turns.last_algorithm = call.algorithm
        packed = call.packed(sequence)
        turns.recent.begin(sequence, packed)
        if turns.timeline.on or torch.is_inference_mode_enabled():
            self._within = self._surroundings()
        operation = self._operation = Operation(
            turns.rank, None, turns.timeout, turns.fate, packed=packed, spin=self._spin, phase=turns.timeline.phase
        )
        return operation

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        turns = self._turns
        if self._within is not None:
            self._within.__exit__(kind, error, trace)
        turns.recent.running = None
        if isinstance(error, CommError):
            turns.fate.fail(error)
        elif error is not None:
            turns.fate.break_off(turns.rank, error)
        elif self._operation.complaint is not None:
            raise self._operation.complaint

    def _surroundings(self) -> contextlib.ExitStack:
        turns, call = self._turns, self._call
        within = contextlib.ExitStack()
        if torch.is_inference_mode_enabled():  # what is made in it couldn't be changed by operations outside of it
            within.enter_context(torch.inference_mode(False))
        if turns.timeline.on:
            what = call.operation, call.nbytes, call.algorithm
            within.enter_context(turns.timeline.operation(*what, self._sequence, self._queued, turns.name))
        return within


def used_within() -> UsageError:
    """Give the error of a call that interrupts another one of its own thread."""
    return UsageError(
        "a group can't be used or closed within one of its own operations, as a signal handler does that calls it: "
        "raise an exception there, such as SystemExit, which ends the operation on every rank"
    )
