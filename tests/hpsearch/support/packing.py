"""A backend that divides workers into lanes, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hpsearch.backends.base import Backend
from hpsearch.backends.gangs import halved
from hpsearch.errors import BackendError
from hpsearch.events import Lost
from hpsearch.task import (
    Company,
    Message,
    Progress,
    Result,
    Task,
    Workers,
)
from hpsearch.trial import Failure, Report, Trial
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.job import Job


@dataclass(slots=True)
class _Attempt:
    """What runs in a lane, or on whole workers."""

    task: Task
    workers: Sequence[int]
    reports: tuple[Report, ...] = ()
    cut: bool = False
    lanes: int = 1

    @property
    def part(self) -> Fraction:
        """What it takes of each of its workers."""
        return Fraction(1, self.task.lanes)


class PackingBackend(Backend):
    """Each `wait` is a second, in which every attempt ends an iteration.

    Args:
        workers: How many there are.
        metric: The metric of a trial at the end of an iteration.
    """

    name = "packing"
    divides = True

    def __init__(self, workers: int, metric: Callable[[Trial, int], float]) -> None:
        self._free = [Fraction(1)] * workers
        self._metric = metric
        self._running: dict[tuple[int, int], _Attempt] = {}
        self._failing: set[int] = set()
        self._messages: list[Message] = []
        self._waiting: list[Task] = []
        self.memory: Callable[[Task, int], bool] = lambda task, beside: True
        """Whether there is memory enough for a task, with so many beside it; a test says otherwise."""
        self._clock = 0.0

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        (self._name,) = job.objective.names

    def capacity(self, lanes: int = 1) -> int:
        if self._waiting:
            return 0
        if lanes > 1:
            return sum(int(self._free[worker] * lanes) for worker in self._open_to(()))
        shared = sum(max(len(self._on(worker)) - 1, 0) for worker in range(len(self._free)))
        return max(self._free.count(Fraction(1)) - shared, 0)

    def start(self, task: Task) -> None:
        if task.lanes > 1 and not task.company and not self.capacity(task.lanes):
            raise BackendError(f"there is no room for trial {task.trial.number}: start no more than capacity() says")
        self._waiting.append(task)
        self._send_waiting()

    def _send_waiting(self) -> None:
        is_held = False
        for task in list(self._waiting):
            workers = self._chosen(task)
            joins = bool(workers and task.company and self._free[workers[0]] < 1)
            if workers and (joins or not is_held):
                self._waiting.remove(task)
                self._send(task, workers)
            else:
                is_held = True

    def _chosen(self, task: Task) -> Sequence[int]:
        """Choose the fullest workers that a task fits into, so that others stay whole; none where there are too few."""
        part = _Attempt(task, ()).part
        fits = sorted((self._free[worker], worker) for worker in self._open_to(task.company))
        fitting = [worker for free, worker in fits if free >= part]
        return fitting[: task.segment.width] if len(fitting) >= task.segment.width else ()

    def _open_to(self, company: Company) -> Sequence[int]:
        """Return the workers whose lanes all have this company, including workers without lanes."""
        return [
            worker
            for worker in range(len(self._free))
            if all(attempt.task.company == company for attempt in self._on(worker))
        ]

    def _send(self, task: Task, workers: Sequence[int]) -> None:
        attempt = _Attempt(task, workers)
        for worker in attempt.workers:
            self._free[worker] -= attempt.part
        self._running[task.segment.trial, task.segment.attempt] = attempt

    def cut(self, trial: int, attempt: int) -> None:
        if (trial, attempt) in self._running:
            self._running[trial, attempt].cut = True
        for task in [task for task in self._waiting if task.key == (trial, attempt)]:
            self._waiting.remove(task)
            self._messages.append(Lost(*task.key, "it was cut before it began", counts_against_trial=False))
            self._send_waiting()

    def fail(self, trial: int) -> None:
        """Let what runs of a trial raise in its next iteration."""
        self._failing.add(trial)

    def lose(self, worker: int) -> None:
        """Let a worker die; another takes its place."""
        lost = self._on(worker)
        together = len(lost) > 1
        halves = halved(attempt.task.trial.number for attempt in lost)
        for attempt in lost:
            self._running.pop(attempt.task.key)
            self._give_back(attempt)
            company = halves[attempt.task.trial.number] if together else ()
            seconds = float(len(attempt.reports))
            self._messages.append(Lost(*attempt.task.key, "the worker died", not together, seconds, company=company))
        self._send_waiting()

    def _on(self, worker: int) -> list[_Attempt]:
        return [attempt for attempt in self._running.values() if worker in attempt.workers]

    def worker_of(self, trial: int, attempt: int = 1) -> int:
        """Return the worker of a running attempt; rank 0's of a gang."""
        return self._running[trial, attempt].workers[0]

    def wait(self, timeout: float | None) -> Sequence[Message]:
        messages, self._messages = self._messages, []
        if not messages and self._running:
            self._clock += 1.0
            messages = [self._go_on(key, attempt) for key, attempt in list(self._running.items())]
        return messages

    def now(self) -> float:
        return self._clock

    def workers(self) -> Workers:
        size = len(self._free)
        return Workers(size, sum(free < 1 for free in self._free), size)

    def close(self, kill: bool = False) -> None:
        self._running.clear()

    def _go_on(self, key: tuple[int, int], attempt: _Attempt) -> Message:
        """Let an attempt end an iteration, or itself."""
        task, segment = attempt.task, attempt.task.segment
        ran, last = len(attempt.reports), segment.end or segment.start + 1
        if not self.memory(task, len(self._on(attempt.workers[0])) - 1):
            self._end(key)
            return Result(*key, segment.start, None, (), False, 0.0, Failure("memory", "no room", ""))
        if task.timeout is not None and ran + 1 > task.timeout:
            self._end(key)
            return task.timed_out("", task.timeout)
        if segment.trial in self._failing:
            self._end(key)
            failure = Failure("raised", "ValueError: no", "Traceback")
            return Result(*key, segment.start + ran, None, attempt.reports, False, float(ran), failure)
        iteration = segment.start + ran + 1
        metrics, lanes = {self._name: self._metric(task.trial, iteration)}, len(self._on(attempt.workers[0]))
        report = Report(segment.trial, iteration, metrics, 1.0 / (lanes * segment.width), lanes)
        attempt.reports += (report,)
        attempt.lanes = max(attempt.lanes, lanes)
        if iteration < last and not attempt.cut:
            return Progress(*key, (report,))
        self._end(key)
        checkpoint = f"{attempt_directory(segment)}/hpsearch-checkpoint-{iteration}"
        seconds = sum(report.seconds for report in attempt.reports)
        reports, cut = attempt.reports, iteration < last
        return Result(*key, iteration, checkpoint, reports, cut, seconds, None, lanes=attempt.lanes)

    def _end(self, key: tuple[int, int]) -> None:
        self._give_back(self._running.pop(key))
        self._send_waiting()

    def _give_back(self, attempt: _Attempt) -> None:
        for worker in attempt.workers:
            self._free[worker] += attempt.part
