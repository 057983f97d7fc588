"""Run segments on a virtual clock: for `plan`, for tests, and for ten thousand workers on a laptop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from hpsearch.backends.base import Backend, Message, Result, Task, Workers
from hpsearch.trial import Report, Segment, Trial
from hpsearch.worker import Job, SegmentResult, attempt_directory

__all__ = ["SimulatedBackend"]


class SimulatedBackend(Backend):
    """Nothing runs; metrics and durations come from functions, and the clock jumps to the next end of a segment."""

    name = "simulated"

    def __init__(
        self,
        workers: int,
        metric: Callable[[Trial, int], float],
        seconds: Callable[[Trial, Segment], float],
        checkpoints: bool = True,
    ) -> None:
        """Set up the model.

        Args:
            workers: How many segments run side by side.
            metric: The metric of a trial at the end of an iteration.
            seconds: Virtual seconds that a segment takes; asked when it starts.
            checkpoints: False: a trainable that saves none, so that each promotion starts from zero.
        """
        self._free = self._workers = workers
        self._metric = metric
        self._seconds = seconds
        self._checkpoints = checkpoints
        self._clock = 0.0
        self._running: list[tuple[float, int, float, Task]] = []  # heap: end, order of start, start, task
        self._started = 0
        self._name = ""
        self._cut: set[tuple[int, int]] = set()

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Note the metric's name."""
        self._name = job.metric

    def capacity(self) -> int:
        """Count the free workers."""
        return self._free

    def start(self, task: Task) -> None:
        """Occupy a worker until the segment's virtual end."""
        self._free -= 1
        self._started += 1
        end = self._clock + self._seconds(task.trial, task.segment)
        heapq.heappush(self._running, (end, self._started, self._clock, task))

    def cut(self, trial: int, attempt: int) -> None:
        """End an attempt before its next iteration."""
        self._cut.add((trial, attempt))

    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Jump to the next end of a segment and give all that end there."""
        if not self._running:
            return ()
        self._clock = self._running[0][0]
        messages = []
        while self._running and self._running[0][0] == self._clock:
            _, _, began, task = heapq.heappop(self._running)
            self._free += 1
            messages.append(Result(task.segment.trial, task.segment.attempt, self._result(task, began)))
        return messages

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._clock

    def workers(self) -> Workers:
        """Count the virtual workers."""
        return Workers(self._workers, self._workers - self._free, self._workers)

    def close(self, kill: bool = False) -> None:
        """Nothing is held."""

    def _result(self, task: Task, began: float) -> SegmentResult:
        segment = task.segment
        cut = (segment.trial, segment.attempt) in self._cut
        end = segment.start if cut else (segment.end if segment.end is not None else segment.start + 1)
        count = max(end - segment.start, 1)
        each = (self._clock - began) / count
        reports = tuple(
            Report(segment.trial, i, {self._name: self._metric(task.trial, i)}, each)
            for i in range(segment.start + 1, end + 1)
        )
        saves = self._checkpoints and end > 0
        checkpoint = f"{attempt_directory(segment)}/checkpoint-{end}" if saves else None
        return SegmentResult(
            iteration=end,
            checkpoint=checkpoint,
            reports=reports,
            cut=cut,
            seconds=self._clock - began,
            failure=None,
        )
