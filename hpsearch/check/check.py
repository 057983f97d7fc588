"""Run the first trial of a sweep several times, in fresh processes and in a warm one, and compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hpsearch.check.differences import Difference, TrialRun, differences
from hpsearch.check.module_state import ModuleState, changes
from hpsearch.check.workers import CheckWorkers, Deadline, FailedRun, Scratch, SegmentRun, scratch
from hpsearch.config.import_paths import is_table
from hpsearch.errors import SweepError, TrainableError
from hpsearch.events import Started
from hpsearch.objective import without_targets
from hpsearch.run.plan import unlearned
from hpsearch.run.reproducibility import bits_of
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import counted, params_line
from hpsearch.trial import Failure, Segment, Trial
from hpsearch.worker.job import CommandLine, Job, job_of, trainable_of
from hpsearch.worker.preflight import check_trainable
from hpsearch.worker.shapes import Shapes

_CONSIDERED = 16
"""Number of first trials from which the second trial is chosen."""

_TIMES = frozenset({"data_wait"})
"""Metrics of a `Trainer` that measure time."""


@dataclass(frozen=True, slots=True)
class TrialComparison:
    """Two runs of a trial that should be equal to the bit."""

    name: Literal["repeated", "restored", "warm worker"]
    verdict: Literal["equal", "differs", "failed", "skipped"]
    text: str = ""
    """Why the comparison was skipped, or another note on it."""
    differences: Sequence[Difference] = ()
    suspects: Sequence[Difference] = ()
    """Values of the user's modules that differ, which may be the cause."""
    failure: Failure | None = None

    @property
    def ok(self) -> bool:
        """Whether both runs are equal, or the comparison was skipped."""
        return self.verdict in ("equal", "skipped")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check."""

    sweep: str
    trials: Sequence[Trial]
    """The trial that is run several times, and the one that runs after it."""
    comparisons: Sequence[TrialComparison]
    module_changes: Sequence[str]
    """Values of the user's modules for which a sweep on Ray replaces the worker that ran the trial."""
    varying: Sequence[str]
    """Harmless differences between equal runs, such as a metric that measures time."""
    seconds: Sequence[float]
    """Seconds of each iteration."""
    memory: int
    """Largest memory of a process, in bytes."""
    gpu_memory: int
    checkpoint_bytes: int | None
    """Size of a checkpoint in bytes; None: no checkpoint is saved."""
    lanes: Shapes
    """Which of the trials can be lanes."""

    @property
    def ok(self) -> bool:
        """Whether both runs are equal, or the comparison was skipped."""
        return all(comparison.ok for comparison in self.comparisons)


def check_sweep(sweep: Sweep, search_path: Sequence[str], say: Callable[[str], object]) -> CheckResult:
    """Run trials of a sweep in their own processes, in a scratch folder that is removed at the end.

    Args:
        sweep: The sweep to check.
        search_path: Folders in which the trainable is searched for first.
        say: Called with a description of each step.

    Raises:
        SweepError: The sweep's trainable can't be trained here.
        TrainableError: The trainable can't be imported, or its first trial fails.
    """
    sweep.check_runs()
    if is_table(sweep.trainable):
        raise SweepError(f"trainable: {sweep.trainable} is a table of what was recorded, which trains nothing to check")
    with scratch() as folder:
        try:
            return _Check(sweep, search_path, folder, say).result()
        except FailedRun as error:  # before a trial began
            raise TrainableError(_failure_text("the trainable can't be imported", error.failure)) from error


class _Check:
    def __init__(self, sweep: Sweep, search_path: Sequence[str], folder: Scratch, say: Callable[[str], object]) -> None:
        self._sweep, self._folder, self._say = sweep, folder, say
        self._job = _job_of(sweep, search_path, folder.path)
        check_trainable(self._job)
        self._is_script = isinstance(self._job.trainable, CommandLine)
        self._iterations = min(2, sweep.iterations or 2)
        most = math.inf if sweep.limits.max_time is None else sweep.limits.max_time
        self._deadline = Deadline(time.monotonic() + most, "limits.max_time")
        self._attempts = 0
        self._trials = _trials_of(sweep)
        self._fresh: ModuleState = {}
        """The user's modules in a fresh process."""
        self._after_first: ModuleState = {}
        """The user's modules after the first trial."""

    def result(self) -> CheckResult:
        """Run the trials and compare them."""
        first, second = self._trials
        warm: SegmentRun | Failure | None = None
        with self._workers() as workers:
            self._say(f"trial {first.number} for {counted(self._iterations, 'iteration')}: {params_line(first.params)}")
            uninterrupted = self._attempt(workers, first, 0, self._iterations)
            if isinstance(uninterrupted, Failure):
                raise TrainableError(_failure_text(f"trial {first.number} failed", uninterrupted))
            if (no_warm := self._why_not_warm()) is None:
                self._say(f"trial {second.number} in the same process: {params_line(second.params)}")
                warm = self._attempt(workers, second, 0, self._iterations)
        expected = self._trial_run(uninterrupted)
        self._fresh, self._after_first = uninterrupted.before, uninterrupted.after
        restored = self._restored(first, expected)
        alone, lanes = self._alone(second, warm is not None)
        after_other = self._after_other(warm, alone, no_warm)
        comparisons = [restored, after_other]
        if any(not comparison.ok for comparison in comparisons) or restored.verdict == "skipped":
            self._say(f"trial {first.number} again, in a fresh process")
            repeated, varying = self._repeated(first, expected)
            comparisons = [repeated, *(_without(comparison, repeated, varying) for comparison in comparisons)]
        else:
            varying = ()
            comparisons.insert(0, TrialComparison("repeated", "equal"))
        return CheckResult(
            sweep=self._sweep.name,
            trials=self._trials,
            comparisons=comparisons,
            module_changes=uninterrupted.result.module_changes,
            varying=[f"{difference.kind} {difference.name}" for difference in varying],
            seconds=[report.seconds for report in uninterrupted.reports],
            memory=uninterrupted.memory,
            gpu_memory=uninterrupted.gpu_memory,
            checkpoint_bytes=None if expected.checkpoint is None else _bytes_in(expected.checkpoint),
            lanes=lanes,
        )

    def _workers(self) -> CheckWorkers:
        return CheckWorkers(self._job, self._folder, self._deadline, self._sweep.limits.trial_timeout)

    def _attempt(
        self, workers: CheckWorkers, trial: Trial, start: int, end: int, checkpoint: str | None = None
    ) -> SegmentRun | Failure:
        self._attempts += 1
        bounded = self._sweep.iterations is not None or self._sweep.resource is not None
        last = end if bounded else None
        segment = Segment(trial.number, start, last, checkpoint, self._attempts, self._job.widest)
        try:
            return workers.run(trial, segment, None if bounded else end)
        except FailedRun as error:
            return error.failure

    def _trial_run(self, *runs: SegmentRun) -> TrialRun:
        reports = [report for run in runs for report in run.reports]
        metrics = {
            report.iteration: {name: value for name, value in report.metrics.items() if name not in _TIMES}
            for report in reports
        }
        trace = {iteration: line for run in runs for iteration, line in run.trace.items()}
        address = runs[-1].result.checkpoint
        return TrialRun(metrics, trace, None if address is None else self._folder.path / address)

    def _restored(self, trial: Trial, expected: TrialRun) -> TrialComparison:
        """Run a trial up to its first checkpoint, and resume it in another process."""
        if self._iterations == 1:
            return TrialComparison("restored", "skipped", "a trial has one iteration")
        if len(expected.metrics) < self._iterations:
            return TrialComparison("restored", "skipped", "the trial ended on its own after iteration 1")
        if expected.checkpoint is None:
            subject = "the script" if self._is_script else "the trainable"
            return TrialComparison(
                "restored", "skipped", f"{subject} saves no checkpoint: each promotion starts from zero"
            )
        self._say(f"trial {trial.number} up to iteration 1")
        with self._workers() as workers:
            first = self._attempt(workers, trial, 0, 1)
        if isinstance(first, Failure):
            return TrialComparison("restored", "failed", "in a segment that ends after iteration 1", failure=first)
        if first.result.checkpoint is None:
            return TrialComparison("restored", "skipped", "no checkpoint was saved at the end of iteration 1")
        self._say(f"trial {trial.number} from its checkpoint, in a fresh process")
        with self._workers() as workers:
            resumed = self._attempt(workers, trial, 1, 2, first.result.checkpoint)
        if isinstance(resumed, Failure):
            return TrialComparison("restored", "failed", "from the checkpoint of iteration 1", failure=resumed)
        differing = differences(expected, self._trial_run(first, resumed))
        if differing and resumed.result.ignored_checkpoint:
            differing.insert(0, Difference("checkpoint", "trial.checkpoint", 2, "", "", "was never read"))
        return self._compared("restored", differing, first.after, resumed.before, resumed.before)

    def _repeated(self, trial: Trial, expected: TrialRun) -> tuple[TrialComparison, Sequence[Difference]]:
        """Run a trial once more; return the comparison and the harmless differences."""
        with self._workers() as workers:
            run = self._attempt(workers, trial, 0, self._iterations)
        if isinstance(run, Failure):
            return TrialComparison("repeated", "failed", "in another process", failure=run), ()
        differing = differences(expected, self._trial_run(run))
        deciding = self._sweep.objective.names
        natural = [
            difference
            for difference in differing
            if difference.kind == "state" or (difference.kind == "metric" and difference.name not in deciding)
        ]
        if len(natural) == len(differing):
            return TrialComparison("repeated", "equal"), natural
        return TrialComparison("repeated", "differs", differences=differing), ()

    def _why_not_warm(self) -> str | None:
        if self._is_script:
            return "a script has a process of its own"
        return "resources.fresh_process is true" if self._sweep.resources.fresh_process else None

    def _alone(self, trial: Trial, runs: bool) -> tuple[SegmentRun | Failure | None, Shapes]:
        """Run the second trial in a fresh process, and check there whether it could be a lane."""
        if self._is_script:
            return None, Shapes(why_none="a script has a process of its own")
        run: SegmentRun | Failure | None = None
        with self._workers() as workers:
            if runs:
                self._say(f"trial {trial.number} in a fresh process")
                run = self._attempt(workers, trial, 0, self._iterations)
            if isinstance(run, Failure):
                return run, Shapes(why_none=f"trial {trial.number} failed")
            try:
                job = replace(self._job, lanes=max(self._sweep.resources.lanes, 2))
                return run, workers.shapes(job, self._trials)
            except FailedRun as error:
                return run, Shapes(why_none=error.failure.message)

    def _after_other(
        self, warm: SegmentRun | Failure | None, alone: SegmentRun | Failure | None, why_not: str | None
    ) -> TrialComparison:
        if why_not is not None or warm is None or alone is None:
            return TrialComparison("warm worker", "skipped", why_not or "")
        if isinstance(alone, Failure):
            text = f"trial {self._trials[1].number}, also in a fresh process"
            return TrialComparison("warm worker", "failed", text, failure=alone)
        if isinstance(warm, Failure):
            suspects = self._suspects(self._fresh, self._after_first, alone.before)
            text = f"trial {self._trials[1].number} fails only in a process that has run another trial"
            return TrialComparison("warm worker", "failed", text, suspects=suspects, failure=warm)
        differing = differences(self._trial_run(alone), self._trial_run(warm))
        return self._compared("warm worker", differing, alone.before, warm.before, alone.before)

    def _compared(
        self,
        name: Literal["restored", "warm worker"],
        differing: Sequence[Difference],
        first: ModuleState,
        second: ModuleState,
        fresh: ModuleState,
    ) -> TrialComparison:
        if not differing:
            return TrialComparison(name, "equal")
        return TrialComparison(name, "differs", differences=differing, suspects=self._suspects(first, second, fresh))

    def _suspects(self, first: ModuleState, second: ModuleState, fresh: ModuleState) -> list[Difference]:
        """Return the values of the user's modules that differ, except those that differ in every process."""
        always_differing = {name for name, _, _ in changes(self._fresh, fresh)}
        return [
            Difference("module state", name, None, value, other)
            for name, value, other in changes(first, second)
            if name not in always_differing
        ]


def _without(comparison: TrialComparison, repeated: TrialComparison, varying: Sequence[Difference]) -> TrialComparison:
    """Return a comparison without the differences that also occur between two equal runs."""
    if comparison.verdict != "differs":
        return comparison
    keys = {difference.key for difference in (*repeated.differences, *varying)}
    remaining = [difference for difference in comparison.differences if difference.key not in keys]
    if remaining:
        return replace(comparison, differences=remaining)
    if repeated.ok:
        return TrialComparison(comparison.name, "equal")
    return TrialComparison(comparison.name, "skipped", "nothing is known of it, as equal runs differ")


def _job_of(sweep: Sweep, search_path: Sequence[str], root: Path) -> Job:
    endless = replace(sweep, metric=without_targets(sweep.objective.goals) or None)
    trainable = trainable_of(sweep, str(Path.cwd()))
    job = job_of(endless, str(root), trainable, search_path, bits_of(sweep).get("mkl_cbwr"))
    lanes = job.lanes if job.rounded else 1
    return replace(job, save_every=None, widest=sweep.resources.workers_per_trial, lanes=lanes, packs=False)


def _trials_of(sweep: Sweep) -> tuple[Trial, Trial]:
    """Return the first trial, and that of the next few trials that differs from it in the most parameters."""
    sweep_state, trials = SweepState(unlearned(sweep)), list[Trial]()
    while len(trials) < _CONSIDERED and isinstance(event := sweep_state.next(), Started) and event.new is not None:
        trials.append(event.new)
        sweep_state.apply(event)
    first, *candidates = trials
    if not candidates:  # the same configuration, as another trial
        return first, replace(first, number=first.number + 1)

    def distance(trial: Trial) -> int:
        return sum(trial.params.get(name) != value for name, value in first.params.items())

    return first, max(candidates, key=distance)


def _failure_text(title: str, failure: Failure) -> str:
    return f"{title}: {failure.message}\n{failure.traceback}".rstrip()


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
