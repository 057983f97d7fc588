"""A process of `hpsearch check`: a worker that is sent segments over a pipe. Run as a program."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from hpsearch.check.module_state import module_state
from hpsearch.check.workers import SegmentRun
from hpsearch.errors import HpsearchError, TrainableError
from hpsearch.events import Saved
from hpsearch.trainable.trace import TRACE, Trace, read_trace
from hpsearch.trial import Report, Segment, Trial
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.gang import RankInfo
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.shapes import Shapes, shapes_of
from hpsearch.worker.worker import Worker


def main(descriptor: int) -> None:
    """Handle calls of a `_CheckedWorker` until the pipe is closed."""
    connection = Connection(descriptor)
    sys.path[:0] = connection.recv()  # the calls may contain objects of modules in these folders
    checked = _CheckedWorker()
    with suppress(EOFError):
        while True:
            method, arguments = connection.recv()
            try:
                connection.send(getattr(checked, method)(*arguments))
            except HpsearchError as error:
                connection.send(TrainableError(str(error), getattr(error, "key", "")))
    if checked.worker is not None:
        checked.worker.close()


class _CheckedWorker:
    """A worker, with a record of its segments."""

    def __init__(self) -> None:
        self.worker: Worker | None = None

    def open(self, job: Job, root: Path) -> str:
        """Create the worker; return its address for the next gang.

        Args:
            job: Data that all segments share.
            root: Directory of attempts.
        """
        self._job, self._root = job, root
        self.worker = Worker(job, root)
        self._package = job.trainable.partition(":")[0].partition(".")[0] if isinstance(job.trainable, str) else ""
        # Lanes train with transformed functions, in which a hook sees no values.
        self._is_traced = not job.rounded
        return self.worker.address

    def shapes(self, job: Job, scratch: Path, trials: Sequence[Trial]) -> Shapes:
        """Return which of some trials can be lanes."""
        tempfile.tempdir = os.fspath(scratch)  # this folder is removed even if this process is killed
        return shapes_of(job, trials, seconds=10.0)

    def run(self, trial: Trial, segment: Segment, cut_at: int | None, rank_info: RankInfo | None) -> SegmentRun:
        """Run a segment.

        Args:
            trial: The trial.
            segment: Its segment.
            cut_at: The iteration after which it is cut, if the sweep has no last iteration.
            rank_info: This worker's rank in the gang of a wide segment.
        """
        assert self.worker is not None, "a worker is opened first"
        path = self._root / attempt_directory(segment, 0 if rank_info is None else rank_info.rank) / "trace.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)  # another rank may have made it
        in_process = not isinstance(self._job.trainable, CommandLine)
        before = module_state(self._package)
        self.worker.close_object(trial.number)
        trace = Trace(path) if self._is_traced and in_process else None
        channel = _Channel(trace, cut_at)
        os.environ[TRACE] = str(path)
        try:
            result = self.worker.run(trial, segment, channel, rank_info)
        finally:
            del os.environ[TRACE]
            if trace is not None:
                trace.close()
        return SegmentRun(
            result,
            tuple(channel.reports),
            read_trace(path),
            before,
            module_state(self._package),
            _memory(self._job),
            _gpu_memory(),
            self.worker.address,
        )


class _Channel:
    """Keeps a segment's reports."""

    def __init__(self, trace: Trace | None, cut_at: int | None) -> None:
        self._trace = trace
        self._cut_at = cut_at
        self.reports: list[Report] = []

    def reported(self, report: Report) -> None:
        self.reports.append(report)
        if self._trace is not None:
            self._trace.reported(report.iteration)

    def noted(self, notes: Mapping[str, str]) -> None:
        """Do nothing."""

    def saved(self, saved: Saved) -> None:
        """Do nothing: there are checkpoints inside a segment only if the sweep has no last iteration."""

    def cut_requested(self) -> bool:
        return self._cut_at is not None and bool(self.reports) and self.reports[-1].iteration >= self._cut_at


def _memory(job: Job) -> int:
    """Return the most bytes that this process, or a script that it ran, has had in memory."""
    if isinstance(job.trainable, CommandLine):
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # getrusage counts the parent's before exec, too
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _gpu_memory() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main(int(sys.argv[1]))
