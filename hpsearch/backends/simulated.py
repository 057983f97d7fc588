"""Run segments on a virtual clock: for `plan`, for tests, and for ten thousand workers on a laptop."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from hpsearch.backends.base import Backend, refuse_share, tasks_on
from hpsearch.errors import BackendError
from hpsearch.task import WHOLE_WORKER, Message, Place, Progress, Result, SegmentResult, Task, TimedOut, Workers
from hpsearch.trial import Failure, Report, Segment, Trial
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.job import Job

__all__ = ["SimulatedBackend"]


class SimulatedBackend(Backend):
    """Nothing runs; metrics and durations come from functions, and the clock jumps to the next end of a segment."""

    name = "simulated"
    tick = 60.0  # virtual; a look takes real time

    def __init__(
        self,
        workers: int,
        metric: Callable[[Trial, int], float],
        seconds: Callable[[Trial, Segment], float],
        checkpoints: bool = True,
        live: bool = True,
    ) -> None:
        """Set up the model.

        Args:
            workers: How many there are.
            metric: The metric of a trial at the end of an iteration.
            seconds: Virtual seconds that a segment takes at its width; asked when it starts.
            checkpoints: False: a trainable that saves none, so that each promotion starts from zero.
            live: Whether iterations are told of as they end; False, where nobody would hear: the clock jumps to the
                next end of a segment, which costs less, and all else is the same.
        """
        self._free = self._workers = workers
        self._metric = metric
        self._seconds = seconds
        self._checkpoints = checkpoints
        self._clock = 0.0
        self._live = live
        self._due: list[tuple[float, int, _Attempt]] = []  # heap: when it is heard of next, order of what is noted
        self._noted = 0
        self._name = ""
        self._attempts: dict[tuple[int, int], _Attempt] = {}

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Note the metric's name."""
        self._name = job.metric

    def capacity(self, place: Place = WHOLE_WORKER) -> int:
        """Count the tasks that the free workers can take."""
        return tasks_on(self._free, place)

    def start(self, task: Task) -> None:
        """Occupy workers until the segment's virtual end.

        Raises:
            BackendError: Too few are free, or a part of one is asked for.
        """
        refuse_share(task)
        segment = task.segment
        if segment.width > self._free:
            raise BackendError(
                f"a task must find as many workers as its segment is wide, but trial {segment.trial} asks for "
                f"{segment.width} where {self._free} are free: start no more than capacity() says"
            )
        self._free -= segment.width
        running = _Attempt(task, self._clock, self._seconds(task.trial, segment))
        self._attempts[task.key] = running
        self._note(running)

    def cut(self, trial: int, attempt: int) -> None:
        """End an attempt at its next report."""
        running = self._attempts.get((trial, attempt))
        if running is not None and running.cut(self._clock) and not self._live:
            self._note(running)  # sooner than it was noted for

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Jump to the next end of an iteration, or of a segment, and give all that end there."""
        messages: list[Message] = []
        while self._due and (not messages or self._due[0][0] == self._clock):
            when, _, running = heapq.heappop(self._due)
            if running.ended:
                continue  # it was cut, and ended before
            self._clock = when
            messages.append(self._hear(running))
        return messages

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._clock

    def wall(self) -> float:
        """The same: the virtual epoch is the start."""
        return self._clock

    def workers(self) -> Workers:
        """Count the virtual workers."""
        return Workers(self._workers, self._workers - self._free, self._workers)

    def close(self, kill: bool = False) -> None:
        """Nothing is held."""

    def _note(self, running: _Attempt) -> None:
        """Note when an attempt is heard of next; of those at one time the one that was noted first comes first."""
        self._noted += 1
        when = running.when(running.next if self._live else running.last)
        heapq.heappush(self._due, (min(when, running.deadline), self._noted, running))

    def _hear(self, running: _Attempt) -> Message:
        key = running.task.key
        iteration = running.next if self._live else running.last
        if running.when(iteration) > running.deadline:
            self._end(running)
            message = f"killed: it ran over its trial_timeout; {running.task.timeout:g} s of it were left"
            return TimedOut(*key, Failure("timeout", message, ""), running.deadline - running.began)
        reports = [self._report(running, number) for number in range(running.next, iteration + 1)]
        running.reports += reports
        if iteration < running.last:
            self._note(running)
            return Progress(*key, tuple(reports), None)
        self._end(running)
        return Result(*key, self._result(running))

    def _end(self, running: _Attempt) -> None:
        running.ended = True
        del self._attempts[running.task.key]
        self._free += running.task.segment.width

    def _report(self, running: _Attempt, iteration: int) -> Report:
        trial = running.task.trial
        return Report(trial.number, iteration, {self._name: self._metric(trial, iteration)}, running.each)

    def _result(self, running: _Attempt) -> SegmentResult:
        last = running.last
        directory = attempt_directory(running.task.segment)
        return SegmentResult(
            iteration=last,
            checkpoint=f"{directory}/hpsearch-checkpoint-{last}" if self._checkpoints else None,
            reports=tuple(running.reports),
            cut=running.is_cut,
            seconds=running.each * len(running.reports),
            failure=None,
        )


class _Attempt:
    """What runs on a virtual worker."""

    __slots__ = ("began", "deadline", "each", "ended", "ends", "is_cut", "last", "reports", "task")

    def __init__(self, task: Task, began: float, seconds: float) -> None:
        segment = task.segment
        self.task = task
        self.began = began
        self.ends = began + seconds
        self.deadline = math.inf if task.timeout is None else began + task.timeout
        self.last = segment.end if segment.end is not None else segment.start + 1
        self.each = seconds / (self.last - segment.start)  # seconds of an iteration
        self.reports: list[Report] = []
        self.is_cut = self.ended = False

    @property
    def next(self) -> int:
        """The iteration that is reported next."""
        return self.task.segment.start + len(self.reports) + 1

    def when(self, iteration: int) -> float:
        """Give the time at which an iteration ends."""
        whole = iteration == self.last and not self.is_cut
        return self.ends if whole else self.began + (iteration - self.task.segment.start) * self.each

    def cut(self, clock: float) -> bool:
        """Let it end at its next report; say whether that comes before its end."""
        iteration = self.next
        while iteration < self.last and self.when(iteration) <= clock:
            iteration += 1
        if iteration == self.last:
            return False
        self.last, self.is_cut = iteration, True
        return True
