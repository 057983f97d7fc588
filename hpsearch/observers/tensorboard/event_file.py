"""TensorBoard event files of many runs. Records are buffered and appended in one write, so no file stays open."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

HELD_BACK_BYTES = 1 << 20
"""Size of buffered records, in bytes, at which they are flushed."""


class EventFiles:
    """The runs below one directory, each with one event file.

    A study can have tens of thousands of runs, but a process can only keep about a thousand files open. So every write
    opens its file, appends whole records and closes the file. TensorBoard continues to read a file that grows.

    Args:
        directory: Parent of the runs' folders. Existing event files in it stay unchanged.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # TensorBoard reads a run's files in the order of their names. The name contains the time, so that the files of
        # a rebuilt study replace what a running TensorBoard has read before.
        self._file_name = f"events.out.tfevents.{time.time():014.3f}.hpsearch"
        self._held_back: defaultdict[str, bytearray] = defaultdict(bytearray)
        self._held_back_bytes = 0
        self._aside: dict[str, bytearray] = {}
        """Records of runs that are only kept in memory."""

    def clear(self, runs: Iterable[str]) -> None:
        """Delete the folders of the runs whose names match these glob patterns."""
        for pattern in runs:
            for path in self._directory.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    def create(self, run: str, when: float) -> None:
        """Begin a run. Its first record declares that restarts are marked, not inferred from the steps.

        Args:
            run: Name of the run.
            when: Time in seconds since the epoch, as all times here.
        """
        self._append(run, Event(wall_time=when, file_version="brain.Event:2"))

    def scalars(self, run: str, when: float, step: int, values: Iterable[tuple[str, float]]) -> None:
        """Write (tag, value) pairs of one step. TensorBoard stores values as 32-bit floats."""
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values])
        self._append(run, Event(wall_time=when, step=step, summary=summary))

    def summary(self, run: str, when: float, value: Summary.Value) -> None:
        """Write one `Summary.Value` that belongs to the run as a whole."""
        self._append(run, Event(wall_time=when, summary=Summary(value=[value])))

    def restart(self, run: str, when: float, step: int) -> None:
        """Revoke all scalars from `step` on."""
        event = Event(wall_time=when, step=step, session_log=SessionLog(status=SessionLog.START))
        # TensorBoard's data server takes a run's first START for the run's beginning, and only later ones for restarts.
        # EventAccumulator takes every START for a restart. Two records mean a restart for both.
        self._append(run, event)
        self._append(run, event)

    def set_aside(self, run: str) -> None:
        """Keep a run only in memory, with its file's content, until `restore`."""
        if run not in self._aside:
            path = self._directory / run / self._file_name
            written = path.read_bytes() if path.exists() else b""
            records = self._held_back.get(run, b"")
            self.drop(run)
            self._aside[run] = bytearray(written) + records

    def restore(self, run: str) -> None:
        """Write a run that was set aside to its file again. Do nothing for other runs."""
        if (records := self._aside.pop(run, None)) is not None:
            self._held_back[run] = records
            self._held_back_bytes += len(records)

    def drop(self, run: str) -> None:
        """Delete a run."""
        self._aside.pop(run, None)
        self._held_back_bytes -= len(self._held_back.pop(run, b""))
        shutil.rmtree(self._directory / run, ignore_errors=True)

    def flush(self) -> None:
        """Append buffered records to their files."""
        for run, records in self._held_back.items():
            self._append_to_file(run, records)
        self._held_back.clear()
        self._held_back_bytes = 0

    def _append(self, run: str, event: Event) -> None:
        buffer = io.BytesIO()
        RecordWriter(buffer).write(event.SerializeToString())
        records = buffer.getvalue()
        if run in self._aside:
            self._aside[run] += records
            return
        self._held_back[run] += records
        self._held_back_bytes += len(records)
        if self._held_back_bytes >= HELD_BACK_BYTES:
            self.flush()

    def _append_to_file(self, run: str, records: bytearray) -> None:
        # Strings and descriptors instead of pathlib and file objects: a short trial's run costs one directory and one
        # write, and these objects would add half of that time.
        folder = f"{self._directory}/{run}"
        path = f"{folder}/{self._file_name}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            Path(folder).mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o666)
        try:
            unwritten = memoryview(records)
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]
        finally:
            os.close(descriptor)
