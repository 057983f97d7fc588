"""One run of a method on a task, on the virtual clock: how good the best report was, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.benchmark.suite import Suite
from hpsearch.errors import SweepError
from hpsearch.events import Failed, Finished, Started
from hpsearch.objective import Objective, is_valid
from hpsearch.observers.base import Record
from hpsearch.run.simulate import Nobody, simulate
from hpsearch.simulation.table import Floats, Table
from hpsearch.simulation.table_file import read_table
from hpsearch.trial import Report, Score, Trial

__all__ = ["BenchmarkTask", "RunCourse", "RunKey", "carry_out", "task_of"]


class RunKey(NamedTuple):
    """Which run it is."""

    task: str
    method: str
    workers: int
    seed: int


@dataclass(frozen=True)
class RunCourse:
    """Result of a run."""

    at: Sequence[float]
    """When the best report so far was surpassed, in full-training equivalents: time x workers / mean full training."""
    regret: Sequence[float]
    """Regret of each: 0 for the best value of the table, 1 for the median of its final values. If params were run
    repeatedly, a report counts as their mean at that iteration."""
    hit: Sequence[bool]
    """Whether each is as good as the final values of the best rows."""
    trials: int


@dataclass(frozen=True)
class BenchmarkTask:
    """A table, and its best values."""

    table: Table
    mean_seconds: float
    """Final values of full trainings, by row."""
    judged: Floats
    """[rows, iterations]: values of reports, lower is better; NaN after a row's end."""
    best: float
    middle: float
    threshold: float
    """A value as low as this is a hit."""

    def regret(self, value: float) -> float:
        """Return the share of the way from the best value to the median of the final ones."""
        return (value - self.best) / (self.middle - self.best)


def task_of(suite: Suite, task: str) -> BenchmarkTask:
    """Read a task, and compute its best values.

    Only iterations of a full training count; a training without a final number counts as the worst.

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
    known = final[np.isfinite(final)]
    if not known.size or not full:
        lacks = "no training that ends in a number" if not known.size else "trainings that take no time"
        raise SweepError(f"{suite.trainable(task)}: a task must tell methods apart, but it has {lacks}")
    final = np.where(np.isfinite(final), final, known.max())
    within = judged[:, : suite.max_iter]
    best, middle = float(within[np.isfinite(within)].min()), float(np.median(final))
    if middle <= best:
        raise SweepError(
            f"{suite.trainable(task)}: a task must tell methods apart, but half of its trainings end at the best value "
            f"that it has, {sign * best:g}"
        )
    return BenchmarkTask(table, float(full), judged, best, middle, threshold=float(np.quantile(final, suite.hit)))


def _mean(values: Floats, axis: int) -> Floats:
    """Return the mean of what isn't NaN; NaN where all is."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass
class _Watch(Nobody):
    """Records each report that is better than all before."""

    task: BenchmarkTask
    objective: Objective
    backend: SimulatedBackend
    workers: int
    best: Score | None = None
    at: list[float] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)
    """Trials to rows of the table."""

    def observe(self, record: Record) -> None:
        """Learn a new trial's row, and take what its segment reported last."""
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
"""Tasks that this process has read, by the suite's path and name."""


def carry_out(suite: Suite, key: RunKey) -> RunCourse:
    """Run a method on a task."""
    place = suite.path, key.task
    if place not in _TASKS:
        _TASKS[place] = task_of(suite, key.task)
    task = _TASKS[place]
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
