"""The TensorBoard runs of a study: one for each trial, and one for the study as a whole; and the layout of its page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import metadata
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MarginChartContent,
    MultilineChartContent,
)

from hpsearch.events import Entry
from hpsearch.objective import Objective, hypervolume, values_of
from hpsearch.observers.tensorboard.event_file import EventFiles
from hpsearch.observers.tensorboard.hparams import HParams
from hpsearch.observers.tensorboard.trial_runs import TrialRuns, trial_run
from hpsearch.results.comparison import AXES, Axis
from hpsearch.results.course import Course, Moment
from hpsearch.schedulers.base import RungView
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import counted
from hpsearch.trial import Report, Score

STUDY_RUN = "study"
"""Name of the run that describes a study as a whole."""

FRONT, HYPERVOLUME = "trials on the front", "hypervolume"
"""Further tags if there are several goals. Each goal also has a tag for its best value."""

BUSY_TAG = "workers/busy"
"""Tag of the number of busy workers, over the sweep's running seconds."""

RUNNING_TAG = "trials/running"
"""Tag of the number of running trials. It is used if a worker may train several, as the journal doesn't record the
worker of each trial."""

_WORDS: Mapping[Axis, str] = {"trials": "trial", "iterations": "iteration", "seconds": "second"}


def best(goal: str | None = None) -> str:
    """Return the tag of the best value: `best` with one goal, `best accuracy` with several."""
    return "best" if goal is None else f"best {goal}"


def by_tag(quantity: str, axis: Axis) -> str:
    """Return the tag of a quantity over the study's cost, such as `best/by trial`."""
    return f"{quantity}/by {_WORDS[axis]}"


def load_tag(sweep: Sweep) -> str:
    """Return the tag of the number of busy workers, or of running trials."""
    return BUSY_TAG if sweep.resources.lanes == 1 else RUNNING_TAG


def rung_tag(until: int | None) -> str:
    """Return the tag of the number of trials that ran to this iteration, over the sweep's running seconds."""
    return "rungs/to the end" if until is None else f"rungs/to {counted(until, 'iteration')}"


def spread_tags(quantity: str, axis: Axis) -> tuple[str, str, str]:
    """Return the tags of the median, the lower and the upper quartile."""
    tag = by_tag(quantity, axis)
    return f"{tag}, median", f"{tag}, lower quartile", f"{tag}, upper quartile"


def amount_of(moment: Moment, axis: Axis) -> int:
    """Return a study's cost as a step: trials started, iterations, or whole seconds, rounded up."""
    amount: float = attrgetter(axis)(moment)
    return math.ceil(amount)


def found_by(objective: Objective, front: Sequence[Score]) -> dict[str, float]:
    """Return a front's values by tag: the best value of each goal, and with several goals also those of the front.

    The best value of an empty front is NaN. Without goals there are no tags.
    """
    goals = objective.goals
    columns = zip(*map(values_of, front), strict=True) if front else ((math.nan,) for _ in goals)
    by_name = {
        best(goal.name if objective.several else None): min(column, key=goal.signed)
        for goal, column in zip(goals, columns, strict=True)
    }
    if objective.several:
        by_name[FRONT] = len(front)
        worst = [goal.signed(goal.reference) for goal in goals if goal.reference is not None]
        if len(worst) == len(goals):
            by_name[HYPERVOLUME] = hypervolume([objective.point(score) for score in front], tuple(worst))
    return by_name


class StepScalar:
    """A scalar that changes in steps. A point is added before each change, as TensorBoard draws straight lines.

    Of several values at one step the last one counts, as TensorBoard's data server drops the earlier ones.

    Args:
        files: The event files.
        run: Name of the run.
        tag: Tag of the scalar.
    """

    def __init__(self, files: EventFiles, run: str, tag: str) -> None:
        self._files, self._run, self._tag = files, run, tag
        self._buffered: tuple[float, int, float] | None = None  # (time, step, value), not written yet
        self._last: tuple[int, float] | None = None  # (step, value) that was written last
        self._end = 0

    def put(self, when: float, step: int, value: float) -> None:
        """Set the value from a step on.

        Args:
            when: Time in seconds since the epoch.
            step: The step. A step before the last one counts as the last one, as reverted iterations count as cost.
            value: The value.
        """
        step = self._end = max(step, self._end)
        if self._buffered is not None and self._buffered[1] < step and self._changes(self._buffered[2]):
            self.flush()
        self._buffered = when, step, value

    def flush(self) -> None:
        """Write the buffered newest step."""
        if self._buffered is None:
            return
        (when, step, value), self._buffered = self._buffered, None
        if self._last is not None:
            last_step, last = self._last
            if step == last_step and not self._changes(value):
                return
            if last_step < step - 1:  # also if the values are equal: this step may get another value
                self._files.scalars(self._run, when, step - 1, [(self._tag, last)])
        self._files.scalars(self._run, when, step, [(self._tag, value)])
        self._last = step, value

    def _changes(self, value: float) -> bool:
        """Return whether a value differs from the one that was written last."""
        return self._last is None or not _equal(value, self._last[1])


def _equal(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


class StudyRuns:
    """Reads a study's journal from its first entry, and writes the study's runs.

    Times come from the journal: the time of a report is its segment's start plus the duration of the iterations since.
    So output that is written live equals output that is written later.

    Args:
        files: The event files.
        sweep: The sweep.
        hparams: The HParams columns.
        name: Folder of the study's runs, if there are several studies; empty: no such folder.
        has_run: Returns whether a trial gets a run.
        column: Name of the study in HParams; None: HParams has no column for studies.
    """

    def __init__(
        self,
        files: EventFiles,
        sweep: Sweep,
        hparams: HParams,
        name: str = "",
        has_run: Callable[[int], bool] = lambda _: True,
        column: str | None = None,
    ) -> None:
        self._folder = f"{name}/" if name else ""
        self.name = f"{self._folder}{STUDY_RUN}"
        """Name of the run of the study as a whole."""
        self._files, self._sweep, self._has_run = files, sweep, has_run
        self.journaled = JournaledState(sweep)
        """The current state."""
        self.course = Course()
        """Course of the study so far."""
        self._trial_runs = TrialRuns(files, sweep, hparams, self.run_of, column)
        self._steps: dict[str, StepScalar] = {}
        self._values: Mapping[str, float] = {}
        self._front: Sequence[Score] | None = None
        """Front that `_values` was computed from; None at the beginning."""

    def run_of(self, trial: int) -> str | None:
        """Return the name of a trial's run; None if the trial has no run."""
        return f"{self._folder}{trial_run(trial, self._sweep.run_cap)}" if self._has_run(trial) else None

    def take(self, entry: Entry) -> None:
        """Apply the next entry of the journal.

        Raises:
            JournalError: It doesn't belong to this sweep.
        """
        for _ in self.journaled.read([entry]):
            self._trial_runs.take(entry)
            for decision in entry.followed.decisions:
                if decision.action == "complete":
                    self._trial_runs.compare(self.journaled, decision.trial)
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        """Write what an entry changed in the study as a whole."""
        self.course.take(entry, self.journaled)
        now = self.course.end
        if now.front != (self._front or ()):
            self._front, self._values = now.front, found_by(self._sweep.objective, now.front)
        for quantity, value in self._values.items():
            for axis in AXES:
                self._put(by_tag(quantity, axis), amount_of(now, axis), value)
        busy = sum(segment.width for segment in self.journaled.records.segments())
        self._put(load_tag(self._sweep), amount_of(now, "seconds"), busy)

    def report(self, reports: Sequence[Report]) -> None:
        """Receive live reports of running attempts."""
        self._trial_runs.report(reports)

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Receive the number of trials that ran to each rung's iteration, over all brackets."""
        counts: Counter[int | None] = Counter()
        for rung in rungs:
            counts[rung.until] += rung.finished
        for until, count in counts.items():
            self._put(rung_tag(until), amount_of(self.course.end, "seconds"), count)

    def settle(self) -> None:
        """Record that no process runs the study, so that failures are final."""
        self._trial_runs.settle()

    def flush(self) -> None:
        """Write the current state."""
        self._trial_runs.flush(self.journaled)
        for steps in self._steps.values():
            steps.flush()

    def _put(self, tag: str, step: int, value: float) -> None:
        if tag not in self._steps:
            self._steps[tag] = StepScalar(self._files, self.name, tag)
        self._steps[tag].put(self.course.end.time, step, value)


def layout(sweeps: Sequence[Sweep], repeated: bool) -> Summary.Value:
    """Return the layout of the Custom Scalars page for studies.

    Args:
        sweeps: The sweep of each study.
        repeated: Whether some studies differ only in their seed.
    """
    quantities = list(dict.fromkeys(quantity for sweep in sweeps for quantity in found_by(sweep.objective, ())))
    categories = [
        Category(title=quantity, chart=[_lines(by_tag(quantity, axis)) for axis in AXES]) for quantity in quantities
    ]
    if repeated:
        charts = [_margins(quantity, axis) for quantity in quantities for axis in AXES]
        categories.insert(0, Category(title="over seeds: median and quartiles", chart=charts))
    loads = [_lines(tag) for tag in dict.fromkeys(map(load_tag, sweeps))]
    rungs = Chart(title="trials per rung", multiline=MultilineChartContent(tag=["^rungs/"]))
    categories.append(Category(title="course", chart=[*loads, rungs]))
    content = Layout(category=categories).SerializeToString()
    return Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=TensorProto(dtype=DT_STRING, string_val=[content]),
    )


def _lines(tag: str) -> Chart:
    return Chart(title=tag, multiline=MultilineChartContent(tag=[f"^{re.escape(tag)}$"]))


def _margins(quantity: str, axis: Axis) -> Chart:
    median, lower, upper = spread_tags(quantity, axis)
    series = MarginChartContent.Series(value=median, lower=lower, upper=upper)
    return Chart(title=by_tag(quantity, axis), margin=MarginChartContent(series=[series]))
