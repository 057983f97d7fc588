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

_RANK = 0
"""The rank that writes the trace."""
_CYCLES = 0
NEGOTIATION, OPERATION = "NEGOTIATE_", ""
"""Phases: prefixes of a span's name."""


class Recording:
    """Writes a trace. Not thread-safe: the functions of this module call it one at a time.

    Args:
        path: The file.
        mark_cycles: Whether each exchange of the negotiation is marked.

    Raises:
        ConfigurationError: The file can't be written.
    """

    def __init__(self, path: Path, mark_cycles: bool) -> None:
        since = (time.time_ns() - time.monotonic_ns()) // 1000  # the offset of monotonic time from wall-clock time
        self._file = TraceFile(
            path,
            _RANK,
            [
                metadata_event(_RANK, "clock", {"start_time_since_epoch_in_micros": since}),
                metadata_event(_RANK, "process_name", {"name": f"rank {_RANK}"}),
                metadata_event(_RANK, "thread_name", {"name": "cycles"}, _CYCLES),
            ],
        )
        self.mark_cycles = mark_cycles
        self._rows: dict[str, int] = {}
        self._phases: dict[Entry, tuple[str, str, int]] = {}

    def begin_phase(self, entries: Sequence[Entry], phase: str | None) -> None:
        """End the current phase of each entry, and begin `phase`; with None, begin no other phase."""
        now = time.monotonic_ns()
        events: list[str] = []
        for entry in entries:
            name = entry.request.name
            if entry in self._phases:
                if name not in self._rows:
                    self._rows[name] = len(self._rows) + 1
                    events.append(metadata_event(_RANK, "thread_name", {"name": name}, self._rows[name]))
                events.append(span_event(_RANK, self._rows[name], *self._phases.pop(entry), now))
            if phase is not None:
                self._phases[entry] = f"{phase}{entry.request.kind.upper()}", "horovod", now
        self._file.append(events)

    def mark_cycle(self) -> None:
        """Mark an exchange of the negotiation."""
        now = time.monotonic_ns()
        self._file.append([span_event(_RANK, _CYCLES, "CYCLE_START", "cycle", now, now)])

    def close(self) -> None:
        """End the current phases of all entries, and close the file."""
        self.begin_phase(list(self._phases), None)
        self._file.close(metadata_event(_RANK, "process_sort_index", {"sort_index": _RANK}))


_recording: Recording | None = None
_lock = threading.Lock()


def record(recording: Recording | None) -> None:
    """Record operations into this trace from now on; with None, record nothing. The previous trace is closed."""
    global _recording
    with _lock:
        if _recording is not None:
            _recording.close()
        _recording = recording


def mark_phase(entries: Sequence[Entry], phase: str | None) -> None:
    """Record that operations have entered a phase; with None, that they have ended."""
    with _lock:
        if _recording is not None:
            _recording.begin_phase(entries, phase)


def mark_cycle() -> None:
    """Mark an exchange of the negotiation in the current trace."""
    with _lock:
        if _recording is not None and _recording.mark_cycles:
            _recording.mark_cycle()
