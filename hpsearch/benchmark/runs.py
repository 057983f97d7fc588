"""The runs of a benchmark, simulated on a virtual clock in parallel processes, and their results on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.benchmark.suite import Suite
from hpsearch.errors import StorageError, SweepError
from hpsearch.events import Failed, Finished, Started
from hpsearch.journal.provenance import code_version
from hpsearch.objective import Objective, is_valid
from hpsearch.observers.base import Record
from hpsearch.run.simulate import Nobody, simulate
from hpsearch.simulation.table import Floats, Table
from hpsearch.simulation.table_file import read_table
from hpsearch.trial import Report, Score, Trial
from hpsearch.worker.child_process import environment, thread_environment


class RunKey(NamedTuple):
    """Identifies a run."""

    task: str
    method: str
    workers: int
    seed: int


@dataclass(frozen=True)
class RunCourse:
    """Result of a run."""

    at: Sequence[float]
    """Times of the new best reports, in full-training equivalents: time x workers / mean time of a full training."""
    regret: Sequence[float]
    """Regret of each new best report: 0 for the best value of the table, 1 for the median of its final values. If a
    configuration was recorded several times, a report counts with the mean at its iteration."""
    hit: Sequence[bool]
    """Whether each new best report is as good as the final values of the best rows."""
    trials: int
    commit: str = ""
    """The code that carried it out, see `code_version`."""


def hits_at(course: RunCourse, budget: float) -> float:
    """Return 1.0 if a run had a report as good as the final values of the best rows within the budget, else 0.0."""
    return float(any(course.hit[: bisect_right(course.at, budget)]))


def regret_at(course: RunCourse, budget: float) -> float:
    """Return the regret of a run's best report within the budget; 1 without a report."""
    count = bisect_right(course.at, budget)
    return course.regret[count - 1] if count else 1.0


@dataclass(frozen=True)
class BenchmarkTask:
    """A table, and its best values."""

    table: Table
    mean_seconds: float
    """Final values of full trainings, by row."""
    judged: Floats
    """[rows, iterations]: values of reports, lower is better; NaN after the end of a row."""
    best: float
    middle: float
    threshold: float
    """Values up to this one are hits."""

    def regret(self, value: float) -> float:
        """Return a value's regret: 0 for the best value, 1 for the median of the final values."""
        return (value - self.best) / (self.middle - self.best)


def task_of(suite: Suite, task: str) -> BenchmarkTask:
    """Return a task with its best values, read from its table.

    Only the iterations of a full training count. A training without a final number counts as the worst.

    Raises:
        SweepError: The table can't be read, or can't distinguish methods.
    """
    (metric,) = suite.template.objective.goals
    table = read_table(suite.trainable(task), data=suite.data)
    table.open(suite.template.parameters, metric.name)
    recorded, sign = table.recorded, 1.0 if metric.goal == "minimize" else -1.0
    ran = np.arange(recorded.seconds.shape[2]) < table.lengths[:, :, None]
    judged = _mean(np.where(ran, sign * recorded.metrics[metric.name], np.nan), axis=1)
    ran = ran[:, :, : suite.max_iter]
    final = judged[np.arange(len(judged)), ran.any(axis=1).sum(axis=1) - 1]
    full = np.where(ran, recorded.seconds[:, :, : suite.max_iter], 0.0).sum(axis=2)[ran.any(axis=2)].mean()
    finite = final[np.isfinite(final)]
    if not finite.size or not full:
        lacks = "no training that ends in a number" if not finite.size else "trainings that take no time"
        raise SweepError(f"{suite.trainable(task)}: a task must tell methods apart, but it has {lacks}")
    final = np.where(np.isfinite(final), final, finite.max())
    within = judged[:, : suite.max_iter]
    best, middle = float(within[np.isfinite(within)].min()), float(np.median(final))
    if middle <= best:
        raise SweepError(
            f"{suite.trainable(task)}: a task must tell methods apart, but half of its trainings end at the best value "
            f"that it has, {sign * best:g}"
        )
    return BenchmarkTask(table, float(full), judged, best, middle, threshold=float(np.quantile(final, suite.hit)))


def _mean(values: Floats, axis: int) -> Floats:
    """Return the mean along an axis without NaN; NaN if all values are NaN."""
    is_present = ~np.isnan(values)
    count = is_present.sum(axis=axis)
    total = np.where(is_present, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass
class _Watch(Nobody):
    """Records each report that is better than all earlier ones."""

    task: BenchmarkTask
    objective: Objective
    backend: SimulatedBackend
    workers: int
    best: Score | None = None
    at: list[float] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)
    """Trial to its row in the table."""

    def observe(self, record: Record) -> None:
        """Store a new trial's row, and receive the last report of an ended segment."""
        match record.event:
            case Started(new=Trial() as trial):
                self.rows[trial.number] = self.task.table.find(trial)[0]
            case Finished(reports=reports) | Failed(reports=reports):
                self.report(reports[-1:])

    def report(self, reports: Sequence[Report]) -> None:
        """Receive reports."""
        for report in reports:
            value = self.objective.reported(report.metrics)
            if not is_valid(value):
                continue
            if self.best is None or self.objective.improves(value, self.best):
                self.best = value
                self.at.append(self.backend.now() * self.workers / self.task.mean_seconds)
                self.judged.append(float(self.task.judged[self.rows[report.trial], report.iteration - 1]))


_TASKS: dict[tuple[str, str], BenchmarkTask] = {}
"""(path of the suite, task) to the tasks that this process has read."""


def carry_out(suite: Suite, key: RunKey) -> RunCourse:
    """Simulate a run of a method on a task."""
    name = suite.path, key.task
    if name not in _TASKS:
        _TASKS[name] = task_of(suite, key.task)
    task = _TASKS[name]
    seconds = suite.budgets[-1] * task.mean_seconds / key.workers
    sweep = suite.sweep_of(key.method, key.task, key.seed, key.workers, seconds)
    backend = SimulatedBackend(key.workers, task.table)
    watch = _Watch(task, sweep.objective, backend, key.workers)
    state = simulate(sweep, backend, watch)
    noted = [(at, value) for at, value in zip(watch.at, watch.judged, strict=True) if at <= suite.budgets[-1]]
    return RunCourse(
        [at for at, _ in noted],
        [task.regret(value) for _, value in noted],
        [value <= task.threshold for _, value in noted],
        len(state.rows()),
    )


_FILE = "runs.jsonl"


class Results:
    """The results in a directory. Results of another suite, or from before a change of the suite, are ignored."""

    def __init__(self, directory: Path, suite: Suite) -> None:
        self._path = directory / _FILE
        self._suite = suite
        self.courses: dict[RunKey, RunCourse] = {}
        self._commit = code_version()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lines = self._path.read_text("utf-8", "replace").splitlines() if self._path.exists() else []
        except OSError as error:
            raise StorageError(f"{directory}: expected a folder for results that can be written: {error}") from error
        for line in lines:
            self._add_line(line)

    def _add_line(self, line: str) -> None:
        try:
            record = json.loads(line)
            key = RunKey(*(record[name] for name in RunKey._fields))
            digest, course = record["digest"], RunCourse(*(record[each.name] for each in fields(RunCourse)))
        except (ValueError, LookupError, TypeError, AttributeError):
            return  # an incomplete line of a killed process
        suite = self._suite
        if key.method in suite.known and key.task in suite.tasks and suite.digest(key.method, key.task) == digest:
            self.courses[key] = course

    def add(self, key: RunKey, course: RunCourse) -> None:
        """Store a run's result."""
        digest = {"digest": self._suite.digest(key.method, key.task)}
        course = replace(course, commit=self._commit)
        line = json.dumps(key._asdict() | digest | asdict(course))
        try:
            with self._path.open("a", encoding="utf-8") as file:
                # Don't append to the incomplete line of a killed process.
                file.write(f"{line}\n" if file.tell() == 0 or self._ends_in_newline() else f"\n{line}\n")
        except OSError as error:
            raise StorageError(f"{self._path}: expected a file that can be written: {error}") from error
        self.courses[key] = course

    def _ends_in_newline(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"

    def of(self, method: str, workers: int) -> Mapping[RunKey, RunCourse]:
        """Return the runs of a method."""
        return {key: course for key, course in self.courses.items() if key[1:3] == (method, workers)}


def keys_of(tasks: Sequence[str], methods: Sequence[str], workers: Sequence[int], seeds: int) -> list[RunKey]:
    """Return the runs, ordered so that the first part of them already compares all methods."""
    return [
        RunKey(task, method, count, seed)
        for seed, count, task, method in product(range(seeds), workers, tasks, methods)
    ]


def run_missing(
    suite: Suite, results: Results, keys: Sequence[RunKey], jobs: int, progress: Callable[[int, int], None]
) -> None:
    """Execute the runs that have no result yet.

    Args:
        suite: The suite.
        results: The stored results, to which new ones are added.
        keys: The runs.
        jobs: Number of parallel processes.
        progress: Called with (finished runs, all runs) at the start and after each run.

    Raises:
        SweepError: A table can't be read, or a method can't be run on it.
    """
    missing = [key for key in keys if key not in results.courses]
    for task in dict.fromkeys(key.task for key in missing):
        task_of(suite, task)  # raise errors here, not in another process
    completed = len(keys) - len(missing)
    progress(completed, len(keys))
    context = multiprocessing.get_context("spawn")
    # With more threads, the parallel runs would compete for cores.
    with environment(thread_environment(1)), ProcessPoolExecutor(jobs, context, _begin) as pool:
        pending = {pool.submit(carry_out, suite, key): key for key in missing}
        try:
            for future in as_completed(pending):
                results.add(pending[future], future.result())
                completed += 1
                progress(completed, len(keys))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # a run may take minutes more, and its result isn't stored yet
            raise


def _begin() -> None:
    """Initialize a process of the pool: it ignores Ctrl-C, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
