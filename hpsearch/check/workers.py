"""Worker processes of `hpsearch check`. They run segments, and are ended with all their child processes."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from hpsearch.check.module_state import ModuleState
from hpsearch.errors import SweepError, TrainableError
from hpsearch.task import Result
from hpsearch.trial import Failure, Report, Segment, Trial
from hpsearch.worker.child_process import thread_environment
from hpsearch.worker.gang import ranks_of_gang
from hpsearch.worker.guardian import MARK, kill_marked, start_guardian
from hpsearch.worker.job import Job
from hpsearch.worker.shapes import Shapes


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """A segment that ended."""

    result: Result
    reports: tuple[Report, ...]
    trace: Mapping[int, Mapping[str, Any]]
    """By iteration."""
    before: ModuleState
    """The state of the user's modules when it began."""
    after: ModuleState
    memory: int
    """Most bytes that the process, or its script, has had in memory."""
    gpu_memory: int
    """Most bytes that torch has allocated on a GPU."""
    address: str
    """The worker's address for the next gang."""


_LOG_TAIL = 4_000
"""Characters of a dead process's output that are shown."""


class FailedRun(Exception):
    """A segment failed, or was ended."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Deadline(NamedTuple):
    """A time until which something must have ended, by `time.monotonic`, and the key of the sweep that says so."""

    until: float
    key: str


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder for everything that is written, and a mark by which all processes are found."""

    path: Path
    mark: str


@contextlib.contextmanager
def scratch() -> Iterator[Scratch]:
    """Create a scratch folder. It is removed and its processes are killed at the end, even if this process dies."""
    path = Path(tempfile.mkdtemp(prefix="hpsearch-check-"))
    try:
        guardian = start_guardian(path, own_group=False)
        try:
            yield Scratch(path, guardian.mark)
        finally:
            kill_marked(MARK, guardian.mark)
            guardian.stop()
    finally:
        shutil.rmtree(path, ignore_errors=True)


class CheckWorkers:
    """Fresh processes that run segments of one trial together: as many as it has workers.

    Args:
        job: What all segments share.
        folder: Where the processes write.
        deadline: When all must have ended.
        segment: Seconds that a segment may run; None: no limit.

    Raises:
        TrainableError: The trainable can't be imported, or isn't a trainable.
        SweepError: There are too few GPUs here.
        FailedRun: The import ended the process, or exceeded a limit.
    """

    def __init__(self, job: Job, folder: Scratch, deadline: Deadline, segment: float | None) -> None:
        self._job, self._scratch, self._deadline, self._segment = job, folder, deadline, segment
        self._processes: list[_Process] = []
        try:
            gpus = _gpus_by_rank(job.gpus, job.widest)
            for rank in range(job.widest):
                environment = {
                    **os.environ,
                    MARK: folder.mark,
                    **thread_environment(job.threads),
                    **({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus[rank]}),
                }
                self._processes.append(_Process(job.search_path, environment, folder.path / f"process-{rank}.log"))
            self._addresses = [self._opened(process) for process in self._processes]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CheckWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, trial: Trial, segment: Segment, cut_at: int | None) -> SegmentRun:
        """Run a segment, and return rank 0's result.

        Raises:
            FailedRun: It failed or exceeded a limit.
        """
        ranks = ranks_of_gang(self._addresses, [""] * len(self._addresses))
        limit = self._limit()
        for process, info in zip(self._processes, ranks, strict=True):
            process.call("run", trial, segment, cut_at, info)
        runs: list[SegmentRun] = [self._answer(process, limit) for process in self._processes]
        self._addresses = [run.address for run in runs]
        failures = [run.result.failure for run in runs if run.result.failure is not None]
        if failures:
            raise FailedRun(next((failure for failure in failures if failure.kind != "peer"), failures[0]))
        return runs[0]

    def shapes(self, job: Job, trials: Sequence[Trial]) -> Shapes:
        """Return which of some trials can be lanes.

        Raises:
            FailedRun: The check exceeded a limit, or ended the process.
        """
        self._processes[0].call("shapes", job, self._scratch.path, trials)
        shapes: Shapes = self._answer(self._processes[0], self._limit())
        return shapes

    def close(self) -> None:
        """End the processes and all their child processes."""
        for process in self._processes:
            process.close()
        self._processes = []
        kill_marked(MARK, self._scratch.mark)

    def _opened(self, process: _Process) -> str:
        """Make a process's worker; return its address for the next gang."""
        process.call("open", self._job, self._scratch.path)
        address: str = self._answer(process, self._deadline)
        return address

    def _limit(self) -> Deadline:
        """Return the limit of a segment that begins now."""
        if self._segment is None:
            return self._deadline
        key = f"limits.trial_timeout ({self._segment:g} s)"
        return min(self._deadline, Deadline(time.monotonic() + self._segment, key))

    def _answer(self, process: _Process, limit: Deadline) -> Any:
        try:
            answer = process.receive(limit.until)
        except TimeoutError:
            self.close()
            raise FailedRun(Failure("timeout", f"it ran over {limit.key}", "")) from None
        if isinstance(answer, TrainableError):
            raise answer
        return answer


class _Process:
    """A process, and the pipe to it."""

    def __init__(self, search_path: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._connection, other = Pipe()
        with other, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpsearch.check.process", str(other.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(other.fileno(),),
                process_group=0,  # Ctrl-C reaches the parent alone, which then ends the child
            )
        self._end = os.pidfd_open(self._process.pid)
        self._send(list(search_path))

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the process's `_CheckedWorker`, whose result `receive` returns."""
        self._send((method, arguments))

    def _send(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `receive` reports that it has ended
            self._connection.send(message)

    def receive(self, until: float) -> Any:
        """Wait for an answer.

        Raises:
            TimeoutError: There is none by then.
            FailedRun: The process has ended.
        """
        ready = wait([self._connection, self._end], None if until == math.inf else max(until - time.monotonic(), 0.0))
        if not ready:
            raise TimeoutError
        try:
            if self._connection.poll():
                return self._connection.recv()
        except EOFError:
            pass
        status = self._process.wait()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        output = self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
        raise FailedRun(Failure("died", f"its process {how}", output))

    def close(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
        self._connection.close()


def _gpus_by_rank(gpus: float, width: int) -> Sequence[str] | None:
    """Return CUDA_VISIBLE_DEVICES for each rank; None if it needn't change."""
    if not gpus:  # the worker hides them
        return None
    import torch

    each = math.ceil(gpus)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(torch.cuda.device_count())] if visible is None else visible.split(",")
    if len(names) < each:
        raise SweepError(
            f"resources.gpus_per_worker: must be at most the {len(names)} GPUs of this machine to check a trial here, "
            f"got {gpus:g}: check it on another machine, or with --set resources.gpus_per_worker=0"
        )
    starts = [rank * each % (len(names) - each + 1) for rank in range(width)]
    return [",".join(names[start : start + each]) for start in starts]
