"""A backend that answers each task with what a test says, and sweeps for it to run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpsearch.backends.base import Backend
from hpsearch.events import Event, Lost, Saved
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.observers.display import SilentDisplay
from hpsearch.results.study import Study
from hpsearch.run.study_run import RunSettings, create_study, run_study
from hpsearch.schedulers.halving import Hyperband
from hpsearch.space import Space, Uniform
from hpsearch.sweep.parts import Metric
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import (
    Message,
    Result,
    Task,
    Workers,
)
from hpsearch.trial import Failure, Report, Segment
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.job import Job


def sweep_of(**changes: Any) -> Sweep:
    """Hyperband R=9 by 3 over one parameter, or what the changes make of it."""
    given: dict[str, Any] = {
        "name": "s",
        "trainable": "package.module:function",
        "metric": Metric("loss", "minimize"),
        "method": "random",
        "parameters": Space.from_parameters({"x": Uniform(0.0, 1.0)}),
        "early_terminate": Hyperband(9),
    }
    return Sweep(**(given | changes))


def run_scripted(path: Path, sweep: Sweep | None, backend: Backend, retry: Sequence[int] | None = None) -> Study:
    """Run a study in this directory, made if there is none, on this backend; `retry` as for `run_study`."""
    place = StudyDirectory(path)
    if not place.exists():
        assert sweep is not None
        create_study(sweep, path)
    run = RunSettings("package.module:function", lambda _: backend, SilentDisplay(), tensorboard=False)
    return run_study(place, sweep, run, retry)


def events_of(path: Path) -> list[Event]:
    """Read the journal of a study, also while it runs."""
    with Journal.read(StudyDirectory(path).journal) as journal:
        return [entry.event for entry in journal.entries()]


def of_kind(path: Path, *kinds: type) -> list[Any]:
    """Read the events of some kinds from the journal of a study."""
    return [event for event in events_of(path) if isinstance(event, kinds)]


class ScriptedBackend(Backend):
    """Runs nothing: one of the running tasks, drawn at random, gets its answer in each `wait`.

    Args:
        answer: Gives the messages for a task; the last one is its outcome.
        workers: How many tasks run side by side.
        seed: Of the order.
    """

    name = "scripted"
    tick = 0.0  # its clock moves only where a test moves it

    def __init__(self, answer: Callable[[Task], Sequence[Message]], workers: int = 1, seed: int = 0) -> None:
        self.answer = answer
        self.size = workers
        self.order = random.Random(seed)
        self.running: list[Task] = []
        self.tasks: list[Task] = []
        self.cuts: set[tuple[int, int]] = set()
        self.clock = 0.0
        self.closed: list[bool] = []

    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        self.job = job

    def capacity(self, lanes: int = 1) -> int:
        return self.size - sum(task.segment.width for task in self.running) if lanes == 1 else 0

    def start(self, task: Task) -> None:
        assert self.capacity() >= task.segment.width
        self.running.append(task)
        self.tasks.append(task)

    def cut(self, trial: int, attempt: int) -> None:
        self.cuts.add((trial, attempt))

    def is_cut(self, task: Task) -> bool:
        return (task.segment.trial, task.segment.attempt) in self.cuts

    def wait(self, timeout: float | None) -> Sequence[Message]:
        if not self.running:
            return ()
        return self.answer(self.running.pop(self.order.randrange(len(self.running))))

    def now(self) -> float:
        return self.clock

    def workers(self) -> Workers:
        return Workers(self.size, self.size - self.capacity(), self.size)

    def close(self, kill: bool = False) -> None:
        self.closed.append(kill)


def done(
    task: Task,
    *,
    at: int | None = None,
    cut: bool = False,
    counted: int | None = None,
    checkpoints: bool = True,
    loss: Callable[[int, int], float] = lambda trial, iteration: (trial * 7 % 5 + 1) / iteration,
) -> Result:
    """The task ran to its end, or to `at`; its reports up to `counted` were told of with a checkpoint before."""
    segment = task.segment
    end = at if at is not None else segment.end or segment.start + 1
    reports = _reports(segment, segment.start if counted is None else counted, end, loss)
    checkpoint = f"{attempt_directory(segment)}/hpsearch-checkpoint-{end}" if checkpoints else None
    return Result(segment.trial, segment.attempt, end, checkpoint, reports, cut, 1.0, None)


def cut_at_next_report(backend: ScriptedBackend, task: Task) -> list[Message]:
    """End as a worker does that was told to: after one more iteration."""
    if backend.is_cut(task) and task.segment.end is not None and task.segment.start + 1 < task.segment.end:
        return [done(task, at=task.segment.start + 1, cut=True)]
    return [done(task)]


def saved(task: Task, iteration: int, since: int | None = None) -> Saved:
    """The task wrote a checkpoint at an iteration."""
    segment = task.segment
    reports = _reports(segment, segment.start if since is None else since, iteration, lambda _, i: 9.0 / i)
    checkpoint = f"{attempt_directory(segment)}/hpsearch-checkpoint-{iteration}"
    return Saved(segment.trial, segment.attempt, iteration, checkpoint, reports)


def failed(task: Task, kind: str = "raised", message: str = "ValueError: no") -> Result:
    """The task failed before its first report."""
    result = done(task)
    failure = Failure(kind, message, "Traceback")  # type: ignore[arg-type]
    return replace(result, iteration=task.segment.start, checkpoint=None, reports=(), failure=failure)


def gone(task: Task) -> Lost:
    """The task vanished with its worker."""
    return Lost(task.segment.trial, task.segment.attempt, "node 7 died")


def timed_out(task: Task) -> Result:
    """The task was killed, because it took too long."""
    return task.timed_out("", 0.0)


def _reports(segment: Segment, start: int, end: int, loss: Callable[[int, int], float]) -> tuple[Report, ...]:
    trial, seconds = segment.trial, 0.5 / segment.width
    return tuple(Report(trial, i, {"loss": loss(trial, i)}, seconds) for i in range(start + 1, end + 1))
