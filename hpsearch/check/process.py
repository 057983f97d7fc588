"""A process of `hpsearch check`: a worker that is sent segments over a pipe. Run as a program."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from hpsearch.check.module_state import module_state
from hpsearch.check.workers import FindShapes, Open, Refused, RunSegment, SegmentRun, WorkerOpened
from hpsearch.errors import HpsearchError, TrainableError
from hpsearch.events import Saved
from hpsearch.trainable.trace import TRACE, Trace, read_trace
from hpsearch.trial import Report
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.shapes import shapes_of
from hpsearch.worker.worker import Worker

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Handle requests until the pipe is closed."""
    connection = Connection(descriptor)
    sys.path[:0] = connection.recv()  # the requests may contain objects of modules in these folders
    worker: _Traced | None = None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            break
        try:
            if isinstance(request, Open):
                worker = _Traced(request)
                connection.send(WorkerOpened(worker.worker.address))
            elif isinstance(request, RunSegment):
                assert worker is not None, "a worker is opened first"
                connection.send(worker.run(request))
            elif isinstance(request, FindShapes):
                tempfile.tempdir = os.fspath(request.root)  # where all is removed, also if this process is killed
                connection.send(shapes_of(request.job, request.trials, seconds=10.0))
        except HpsearchError as error:
            connection.send(Refused(str(error), error.key if isinstance(error, TrainableError) else ""))
    if worker is not None:
        worker.worker.close()


class _Traced:
    """A worker, with a record of its segments."""

    def __init__(self, request: Open) -> None:
        self._job, self._root = request.job, request.root
        self.worker = Worker(request.job, request.root)
        trainable = request.job.trainable
        self._package = trainable.partition(":")[0].partition(".")[0] if isinstance(trainable, str) else ""
        # Lanes train with transformed functions, in which a hook sees no values.
        self._is_traced = not request.job.rounded

    def run(self, request: RunSegment) -> SegmentRun:
        rank = 0 if request.rank_info is None else request.rank_info.rank
        path = self._root / attempt_directory(request.segment, rank) / "trace.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)  # another rank may have made it
        in_process = not isinstance(self._job.trainable, CommandLine)
        before = module_state(self._package)
        self.worker.close_object(request.trial.number)
        trace = Trace(path) if self._is_traced and in_process else None
        channel = _Channel(trace, request.cut_at)
        os.environ[TRACE] = str(path)
        try:
            result = self.worker.run(request.trial, request.segment, channel, request.rank_info)
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
