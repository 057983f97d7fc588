"""Run segments on a virtual clock: for `plan`, for tests, and for ten thousand workers on a laptop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpsearch.backends.base import Backend, Message, Progress, Result, Task, Workers
from hpsearch.errors import BackendError
from hpsearch.trial import Report, Segment, Trial
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.job import Job, SegmentResult

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
    ) -> None:
        """Set up the model.

        Args:
            workers: How many there are.
            metric: The metric of a trial at the end of an iteration.
            seconds: Virtual seconds that a segment takes at its width; asked when it starts.
            checkpoints: False: a trainable that saves none, so that each promotion starts from zero.
        """
        self._free = self._workers = workers
        self._metric = metric
        self._seconds = seconds
        self._checkpoints = checkpoints
        self._clock = 0.0
        self._running: list[tuple[float, int, _Attempt]] = []  # heap: end, order of start
        self._untold: list[tuple[float, int, _Attempt]] = []  # heap: end of the next iteration, order of start
        self._started = 0
        self._name = ""
        self._tells = False
        self._attempts: dict[tuple[int, int], _Attempt] = {}

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Note the metric's name, and whether anybody needs to know how far attempts have come."""
        self._name = job.metric
        self._tells = job.widest > 1

    def capacity(self) -> int:
        """Count the free workers."""
        return self._free

    def start(self, task: Task) -> None:
        """Occupy workers until the segment's virtual end.

        Raises:
            BackendError: Too few are free.
        """
        segment = task.segment
        if segment.width > self._free:
            raise BackendError(
                f"a task must find as many workers as its segment is wide, but trial {segment.trial} asks for "
                f"{segment.width} where {self._free} are free: start no more than capacity() says"
            )
        self._free -= segment.width
        last = segment.end if segment.end is not None else segment.start + 1
        seconds = self._seconds(task.trial, segment)
        running = _Attempt(task, self._clock, last, seconds / (last - segment.start), segment.start)
        self._attempts[segment.trial, segment.attempt] = running
        self._push(running, self._clock + seconds)
        if self._tells and running.each > 0:
            heapq.heappush(self._untold, (running.next_report, self._started, running))

    def cut(self, trial: int, attempt: int) -> None:
        """End an attempt at its next report."""
        running = self._attempts.get((trial, attempt))
        if running is None or running.each <= 0:
            return
        start = running.task.segment.start
        reached = running.reached(self._clock) + 1
        if reached < running.last:
            running.last, running.cut = reached, True
            self._push(running, running.began + (reached - start) * running.each)

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Jump to the next end of a segment and give all that end there; of wide sweeps also how far others came."""
        messages: list[Message] = []
        while self._running and (not messages or self._running[0][0] == self._clock):
            end, _, running = heapq.heappop(self._running)
            segment = running.task.segment
            if self._attempts.pop((segment.trial, segment.attempt), None) is None:
                continue  # it was cut, and ended before
            self._clock = end
            self._free += segment.width
            messages.append(Result(segment.trial, segment.attempt, self._result(running)))
        if messages and self._tells:
            messages += self._progress()
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

    def _push(self, running: _Attempt, end: float) -> None:
        self._started += 1
        heapq.heappush(self._running, (end, self._started, running))

    def _progress(self) -> list[Message]:
        """Give the iterations that running attempts have ended since they were asked last."""
        news: list[Message] = []
        while self._untold and self._untold[0][0] <= self._clock:
            _, order, running = self._untold[0]
            key = (running.task.segment.trial, running.task.segment.attempt)
            if key not in self._attempts:
                heapq.heappop(self._untold)
                continue
            reached = max(running.reached(self._clock), running.told + 1)
            news.append(Progress(*key, self._reports(running, running.told, reached), None))
            running.told = reached
            heapq.heapreplace(self._untold, (running.next_report, order, running))
        return news

    def _reports(self, running: _Attempt, start: int, end: int) -> tuple[Report, ...]:
        trial = running.task.trial
        return tuple(
            Report(trial.number, i, {self._name: self._metric(trial, i)}, running.each)
            for i in range(start + 1, end + 1)
        )

    def _result(self, running: _Attempt) -> SegmentResult:
        segment, last = running.task.segment, running.last
        reports = self._reports(running, segment.start, last)
        return SegmentResult(
            iteration=last,
            checkpoint=f"{attempt_directory(segment)}/hpsearch-checkpoint-{last}" if self._checkpoints else None,
            reports=reports,
            cut=running.cut,
            seconds=running.each * len(reports),
            failure=None,
        )


@dataclass(slots=True, eq=False)
class _Attempt:
    """What runs on a virtual worker."""

    task: Task
    began: float
    last: int
    """The iteration that it will end at."""
    each: float
    """Seconds of an iteration."""
    told: int
    """The last iteration that was told of."""
    cut: bool = False

    @property
    def next_report(self) -> float:
        """When the first iteration ends that was not told of."""
        return self.began + (self.told + 1 - self.task.segment.start) * self.each

    def reached(self, clock: float) -> int:
        """Give the iteration that has ended last at a time before its end."""
        return self.task.segment.start + int((clock - self.began) / self.each)
