"""The timeline of operations: a trace for Chrome's viewer or Perfetto.

Each operation name has a row. A span `NEGOTIATE_ALLREDUCE` lasts from the call on this rank until all ranks have called
the operation, and a span `ALLREDUCE` while it runs. Small operations that are fused have spans of the same length.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hpsearch_comm.horovod.request import Entry
from hpsearch_comm.timeline.part_file import TraceFile
from hpsearch_comm.timeline.trace_event import metadata_event, span_event

_CYCLES = 0
NEGOTIATION, OPERATION = "NEGOTIATE_", ""
"""Phases: prefixes of a span's name."""


class Recording:
    """Writes a trace. Thread-safe.

    Args:
        path: The file.
        rank: This rank.
        mark_cycles: Whether each exchange of the negotiation is marked.

    Raises:
        ConfigurationError: The file can't be written.
    """

    def __init__(self, path: Path, rank: int, mark_cycles: bool) -> None:
        since = (time.time_ns() - time.monotonic_ns()) // 1000  # the offset of monotonic time from wall-clock time
        self._file = TraceFile(
            path,
            rank,
            [
                metadata_event(rank, "clock", {"start_time_since_epoch_in_micros": since}),
                metadata_event(rank, "process_name", {"name": f"rank {rank}"}),
                metadata_event(rank, "thread_name", {"name": "cycles"}, _CYCLES),
            ],
        )
        self._rank = rank
        self._mark_cycles = mark_cycles
        self._rows: dict[str, int] = {}
        self._phases: dict[Entry, tuple[str, str, int]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def begin_phase(self, entries: Sequence[Entry], phase: str | None) -> None:
        """End the current phase of each entry, and begin `phase`; with None, begin no other phase."""
        with self._lock:
            if not self._closed:
                self._begin_phase(entries, phase)

    def mark_cycle(self) -> None:
        """Mark an exchange of the negotiation."""
        with self._lock:
            if self._mark_cycles and not self._closed:
                now = time.monotonic_ns()
                self._file.append([span_event(self._rank, _CYCLES, "CYCLE_START", "cycle", now, now)])

    def close(self) -> None:
        """End the current phases of all entries, and close the file."""
        with self._lock:
            self._begin_phase(list(self._phases), None)
            self._closed = True
            self._file.close(metadata_event(self._rank, "process_sort_index", {"sort_index": self._rank}))

    def _begin_phase(self, entries: Sequence[Entry], phase: str | None) -> None:
        now = time.monotonic_ns()
        events: list[str] = []
        for entry in entries:
            name = entry.request.name
            if entry in self._phases:
                if name not in self._rows:
                    self._rows[name] = len(self._rows) + 1
                    events.append(metadata_event(self._rank, "thread_name", {"name": name}, self._rows[name]))
                events.append(span_event(self._rank, self._rows[name], *self._phases.pop(entry), now))
            if phase is not None:
                self._phases[entry] = f"{phase}{entry.request.kind.upper()}", "horovod", now
        self._file.append(events)


_recording: Recording | None = None
_swap = threading.Lock()


def record(recording: Recording | None) -> None:
    """Record operations into this trace from now on; with None, record nothing. The previous trace is closed."""
    global _recording
    with _swap:
        before, _recording = _recording, recording
    if before is not None:
        before.close()


def mark_phase(entries: Sequence[Entry], phase: str | None) -> None:
    """Record that operations have entered a phase; with None, that they have ended."""
    if (recording := _recording) is not None:
        recording.begin_phase(entries, phase)


def mark_cycle() -> None:
    """Mark an exchange of the negotiation in the current trace."""
    if (recording := _recording) is not None:
        recording.mark_cycle()
