"""Records the operations, phases and backward passes of a rank.

To record an event, the caller only appends a tuple to a queue. A thread formats and writes the queued events twice a
second. In the trace a rank is a process, with a row for each thread that calls operations, and for each work queue that
runs asynchronous ones. A group and its duplicates share a timeline; the duplicates' operations have their group's name.
The `args` of an operation are its bytes, algorithm and rates. An asynchronous operation also has the time that it was
queued, and the part of its time that was hidden (overlapped with the backward pass). A blocking operation is never
hidden, because it blocks the backward pass.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpsearch_comm.timeline.part_file import TraceFile, part_path
from hpsearch_comm.timeline.trace_event import (
    CLOCK,
    PART,
    Ran,
    metadata_event,
    operation_event,
    span_event,
    summary_event,
)

_FLUSH_SECONDS = 0.5
_AT_ONCE = 32
"""Events per write. The batch is small, so that the writer thread holds the GIL only for some microseconds."""
_PENDING = 16384
"""Maximum number of events in memory; above it, the caller writes them."""

_CALLER = 1


class Timeline:
    """Records the operations, phases and backward passes of one rank. Thread-safe.

    Args:
        path: The path of the trace. The part is written to the same directory, such as `trace.rank3.json` for
            `trace.json`. The directory must exist on each host.
        rank: This rank.
        size: The number of ranks, for the bus bandwidth.

    Raises:
        ConfigurationError: The part can't be written.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int, size: int) -> None:
        self.on = True
        """Whether events are recorded; False after `close`."""
        self.rank = rank
        self.size = size
        self._process = os.getpid()
        self._rows = itertools.count(_CALLER + 1)
        self._threads = {threading.get_ident(): _CALLER}
        self._work_queues: dict[str, int] = {}
        self._queue: deque[tuple[Any, ...]] = deque()
        self._backward_since = 0
        self._backwards: deque[tuple[int, int]] = deque(maxlen=8)
        self._totals = dict.fromkeys(
            ("operations", "bytes", "seconds", "asynchronous_seconds", "hidden_seconds", "backward_seconds"), 0.0
        )
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._file = TraceFile(
            part_path(Path(path), rank),
            rank,
            [
                metadata_event(rank, PART, {"size": size}),
                metadata_event(rank, "process_name", {"name": f"rank {rank} on {socket.gethostname()}"}),
                metadata_event(rank, "process_sort_index", {"sort_index": rank}),
                metadata_event(rank, "thread_name", {"name": "caller"}, _CALLER),
            ],
        )
        self._writer = threading.Thread(target=self._keep_writing, name=f"timeline of rank {rank}", daemon=True)
        self._writer.start()
        # A script that ends with an exception doesn't close the timeline, but its last events show the cause.
        atexit.register(self.close)

    def operation(
        self, name: str, nbytes: int, algorithm: str, sequence: int, queued: int = 0, group: str = ""
    ) -> _Operation:
        """Mark an operation on the thread that runs it: `with timeline.operation("allreduce", ...): run it`.

        Args:
            name: allreduce, broadcast, ...
            nbytes: Bytes of the operation: S in `trace_event`.
            algorithm: The name of the algorithm.
            sequence: The operation's number in its group.
            queued: `time.monotonic_ns()` when an asynchronous operation was called; 0 for a blocking one.
            group: The group's name.
        """
        return _Operation(name, nbytes, algorithm, sequence, queued, group, self)

    def phase(self, name: str) -> _Phase:
        """Mark a part of an operation: `with timeline.phase("reduce-scatter"): ...`."""
        return _Phase(self, name)

    def begin_backward(self) -> None:
        """Mark the start of a backward pass. Within a backward pass, do nothing."""
        if not self._backward_since:
            self._backward_since = time.monotonic_ns()

    def end_backward(self) -> None:
        """Mark the end of the backward pass. Outside a backward pass, do nothing."""
        since, now = self._backward_since, time.monotonic_ns()
        if since:
            self._backwards.append((since, now))  # first: the work queue's thread must always see the pass
            self._backward_since = 0
            self._add((span_event, self._thread(), "backward", "backward", since, now))

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Mark a backward pass: `with timeline.backward(): loss.backward()`."""
        self.begin_backward()
        try:
            yield
        finally:
            self.end_backward()

    def queue_thread(self, group: str = "") -> None:
        """Register the calling thread as the work queue of a group. Each work queue has a separate row."""
        row = self._work_queues.get(group)
        if row is None:
            row = self._work_queues[group] = self._new_row(f"work queue of {group}" if group else "work queue")
        self._threads[threading.get_ident()] = row

    def set_clock(self, offset: int, start: int) -> None:
        """Record the offset of this host's monotonic clock; see `clock.compare_clocks`.

        Args:
            offset: The nanoseconds to add to this host's clock to get rank 0's clock.
            start: When the clocks were compared, on rank 0's clock. It is the same on every rank, and identifies a run.
        """
        self._add((metadata_event, CLOCK, {"nanoseconds": offset, "start": start}))

    def summary(self) -> dict[str, float]:
        """Return this rank's totals so far.

        Returns:
            `operations`, `bytes`, `seconds`: count, bytes and time of all operations. `asynchronous_seconds`: time of
            asynchronous operations. `hidden_seconds`: the part of it within a backward pass. `hidden_share`:
            hidden_seconds / asynchronous_seconds, or 0 without asynchronous operations. `backward_seconds`: time of
            backward passes. `lost_events`: number of events that couldn't be written.
        """
        self._write()
        totals = dict(self._totals)
        asynchronous = totals["asynchronous_seconds"]
        totals["hidden_share"] = totals["hidden_seconds"] / asynchronous if asynchronous else 0.0
        totals["lost_events"] = float(self._file.lost)
        return totals

    def close(self) -> None:
        """Write the remaining events and the summary, and close the part. Later events are dropped."""
        if self._closing.is_set() or os.getpid() != self._process:  # a copy in a forked child writes nothing
            return
        self.on = False
        self._closing.set()
        atexit.unregister(self.close)
        self._writer.join()
        totals = self.summary()
        label = f"{totals['hidden_share']:.0%} of {totals['asynchronous_seconds']:.3f} s hidden behind backward"
        self._file.append([metadata_event(self.rank, "process_labels", {"labels": label})])
        self._file.close(summary_event(self.rank, _CALLER, time.monotonic_ns(), totals))

    def _thread(self) -> int:
        ident = threading.get_ident()
        row = self._threads.get(ident)
        if row is None:
            row = self._threads[ident] = self._new_row(f"thread {threading.get_native_id()}")
        return row

    def _new_row(self, name: str) -> int:
        row = next(self._rows)
        self._add((metadata_event, "thread_name", {"name": name}, row))
        return row

    def _add(self, event: tuple[Any, ...]) -> None:
        """Queue an event: a function of `trace_event`, and its arguments after the rank."""
        if self.on:
            self._queue.append(event)
            if len(self._queue) >= _PENDING:
                self._write()

    def _ended(self, operation: _Operation, end: int, failure: str) -> None:
        hidden = self._hidden(operation.begin, end) if operation.queued else 0
        self._add((operation_event, self._thread(), operation, end, hidden, failure, self.size))

    def _hidden(self, begin: int, end: int) -> int:
        """Return the nanoseconds from `begin` to `end` that are within backward passes."""
        since = self._backward_since
        hidden = max(0, end - max(begin, since)) if since else 0
        for first, last in tuple(self._backwards):
            if first != since:
                hidden += max(0, min(end, last) - max(begin, first))
        return hidden

    def _keep_writing(self) -> None:
        while not self._closing.wait(_FLUSH_SECONDS):
            self._write()

    def _write(self) -> None:
        queue = self._queue
        if os.getpid() != self._process:
            queue.clear()
            return
        with self._writing:
            while queue:
                batch = [queue.popleft() for _ in range(min(_AT_ONCE, len(queue)))]
                for event in batch:
                    self._count(*event)
                self._file.append([event[0](self.rank, *event[1:]) for event in batch])

    def _count(self, make_event: object, *fields: Any) -> None:
        """Add an event to the totals. `_write` calls this with its lock held, so that no two threads do it at once."""
        totals = self._totals
        if make_event is operation_event:
            _, operation, end, hidden, *_ = fields
            seconds = (end - operation.begin) / 1e9
            totals["operations"] += 1
            totals["bytes"] += operation.nbytes
            totals["seconds"] += seconds
            if operation.queued:
                totals["asynchronous_seconds"] += seconds
                totals["hidden_seconds"] += hidden / 1e9
        elif make_event is span_event and fields[2] == "backward":
            totals["backward_seconds"] += (fields[4] - fields[3]) / 1e9


@dataclass(slots=True)
class _Phase:
    """A context manager that records a phase of an operation."""

    timeline: Timeline
    name: str
    begin: int = field(init=False)

    def __enter__(self) -> None:
        self.begin = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        end = time.monotonic_ns()
        timeline = self.timeline
        timeline._add((span_event, timeline._thread(), self.name, "phase", self.begin, end))


@dataclass(slots=True)
class _Operation(Ran):
    """A context manager that records an operation."""

    timeline: Timeline

    def __enter__(self) -> None:
        self.begin = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.timeline._ended(self, time.monotonic_ns(), kind.__name__ if kind else "")


class NoTimeline:
    """A timeline that records nothing, for groups without a timeline."""

    on = False

    def operation(self, *_: object) -> AbstractContextManager[None]:
        """Do nothing."""
        return _NOTHING

    phase = backward = operation

    def close(self, *_: object) -> None:
        """Do nothing."""

    begin_backward = end_backward = queue_thread = set_clock = close

    def summary(self) -> dict[str, float]:
        """Return an empty dict."""
        return {}


_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


def open_timeline(
    path: str | os.PathLike[str] | Timeline | NoTimeline | None, rank: int, size: int
) -> Timeline | NoTimeline:
    """Return a group's timeline: `path` itself if it is a timeline, a new one for a path, or a `NoTimeline` for None.

    Raises:
        ConfigurationError: The path can't be written.
    """
    if isinstance(path, Timeline | NoTimeline):
        return path
    return NoTimeline() if path is None else Timeline(path, rank, size)
