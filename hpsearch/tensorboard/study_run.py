"""The run of a study as a whole: its best over what it cost, its rungs, its workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

from hpsearch.events import Entry
from hpsearch.objective import Objective, hypervolume, values_of
from hpsearch.results.comparison import AXES, Axis
from hpsearch.results.course import CourseSoFar, Moment
from hpsearch.schedulers.base import RungView
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import counted
from hpsearch.tensorboard.event_file import EventFiles
from hpsearch.tensorboard.steps import Steps
from hpsearch.trial import Score

__all__ = [
    "BUSY_TAG",
    "FRONT",
    "HYPERVOLUME",
    "RUNNING_TAG",
    "STUDY_RUN",
    "StudyRun",
    "amount_of",
    "best",
    "by_tag",
    "found_by",
    "load_tag",
    "rung_tag",
]

STUDY_RUN = "study"
"""The name of the run of a study as a whole, beside those of its trials."""

FRONT, HYPERVOLUME = "trials on the front", "hypervolume"
"""What several goals have beside the best value of each."""

BUSY_TAG = "workers/busy"
"""Names the scalar that counts the workers that run a segment, over seconds in which the sweep ran."""

RUNNING_TAG = "trials/running"
"""The same of trials, where a worker may train several: which one it was isn't recorded."""

_WORDS: Mapping[Axis, str] = {"trials": "trial", "iterations": "iteration", "seconds": "second"}


def best(goal: str | None = None) -> str:
    """Name what is best: of one goal `best`, of several `best accuracy`."""
    return "best" if goal is None else f"best {goal}"


def by_tag(what: str, axis: Axis) -> str:
    """Name the scalar that holds something over what the study cost: `best/by trial`."""
    return f"{what}/by {_WORDS[axis]}"


def load_tag(sweep: Sweep) -> str:
    """Name the scalar that says how much of a study ran at once."""
    return BUSY_TAG if sweep.resources.lanes == 1 else RUNNING_TAG


def rung_tag(until: int | None) -> str:
    """Name the scalar that counts the trials that ran until this iteration, over seconds in which the sweep ran."""
    return "rungs/to the end" if until is None else f"rungs/to {counted(until, 'iteration')}"


def amount_of(moment: Moment, axis: Axis) -> int:
    """Give what a study had cost, as a step: trials begun, iterations, or whole seconds, which have passed by then."""
    amount: float = attrgetter(axis)(moment)
    return math.ceil(amount)


def found_by(objective: Objective, front: Sequence[Score]) -> dict[str, float]:
    """Give what a front is worth, by names: the best value of each goal, and of several what they have beside it.

    NaN stands for the best of a front of none. Without goals there is nothing.
    """
    goals = objective.goals
    columns = zip(*map(values_of, front), strict=True) if front else ((math.nan,) for _ in goals)
    found = {
        best(goal.name if objective.several else None): min(column, key=goal.signed)
        for goal, column in zip(goals, columns, strict=True)
    }
    if objective.several:
        found[FRONT] = len(front)
        worst = [goal.signed(goal.reference) for goal in goals if goal.reference is not None]
        if len(worst) == len(goals):
            found[HYPERVOLUME] = hypervolume([objective.point(score) for score in front], tuple(worst))
    return found


class StudyRun:
    """Follows a study, and writes what is to be said of it as a whole.

    Args:
        files: Where to.
        run: Its run's name.
        sweep: What is run.
    """

    def __init__(self, files: EventFiles, run: str, sweep: Sweep) -> None:
        self.objective = sweep.objective
        self._load_tag = load_tag(sweep)
        self.course = CourseSoFar()
        """How it went."""
        self._files, self._run = files, run
        self._steps: dict[str, Steps] = {}
        self._found: Mapping[str, float] = {}
        self._front: Sequence[Score] | None = None
        """The front that `_found` is of; None: there was none yet."""

    def take(self, entry: Entry, journaled: JournaledState) -> None:
        """Take the next entry of the journal, and the state that it led to."""
        self.course.take(entry, journaled)
        now = self.course.now
        if now.front != (self._front or ()):
            self._front, self._found = now.front, found_by(self.objective, now.front)
        for what, value in self._found.items():
            for axis in AXES:
                self._put(by_tag(what, axis), amount_of(now, axis), value)
        busy = sum(segment.width for segment in journaled.records.segments())
        self._put(self._load_tag, amount_of(now, "seconds"), busy)

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Take how many trials ran until each rung's iteration, over all brackets."""
        counts: Counter[int | None] = Counter()
        for rung in rungs:
            counts[rung.until] += rung.finished
        for until, count in counts.items():
            self._put(rung_tag(until), amount_of(self.course.now, "seconds"), count)

    def flush(self) -> None:
        """Write how it stands."""
        for steps in self._steps.values():
            steps.flush()

    def _put(self, tag: str, step: int, value: float) -> None:
        if tag not in self._steps:
            self._steps[tag] = Steps(self._files, self._run, tag)
        self._steps[tag].put(self.course.now.time, step, value)
