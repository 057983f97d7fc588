"""Comparison of studies. Studies that differ only in their seed are repeated runs of one side."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Literal

from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.objective import Objective, hypervolume, values_of
from hpsearch.results.best import reference_point
from hpsearch.results.course import Course, Moment
from hpsearch.results.samples import Spread, mean_of_pairs, mean_of_two, signed_rank, spread
from hpsearch.results.study import Study, load
from hpsearch.sweep.difference import differing
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow

Axis = Literal["trials", "iterations", "seconds"]
AXES: tuple[Axis, ...] = ("trials", "iterations", "seconds")
"""Measures of a search's cost: trials started, iterations that count, and running seconds since its first trial."""

_SHARES = (0.25, 0.5, 1.0)
"""Runs are compared at these fractions of the cost that all runs have spent."""

_LEAST_FOR_WILCOXON = 6
"""Smallest number of pairs for the test. With fewer, its p-value can't be below 5 %."""


_LARGEST = 1e300
"""Largest absolute value that is compared. Sums of larger values could overflow."""


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One study of a comparison."""

    study: Study
    course: Course
    values: tuple[float, ...]
    """Best value after each change of the front, or with several goals the hypervolume; NaN if there is none."""

    def at(self, axis: Axis, amount: float) -> float | None:
        """Return the best value at a cost; None if there is none."""
        count = bisect_right(self.course.changes, amount, key=attrgetter(axis))
        return None if not count or math.isnan(self.values[count - 1]) else self.values[count - 1]

    @property
    def value(self) -> float | None:
        """The best value at the end."""
        return self.at("seconds", math.inf)

    @property
    def seed(self) -> int:
        """Seed of the sweep."""
        return self.study.sweep.seed

    @cached_property
    def worker_seconds(self) -> float:
        """Total seconds of all started segments, each multiplied by its number of workers."""
        return sum((segment.seconds or 0.0) * segment.width for segment in self.study.segments())

    @cached_property
    def best(self) -> TrialRow | None:
        """The best trial; None if there is none, or if there are several goals."""
        leaders = [] if self.study.sweep.objective.several else self.study.leaders
        return leaders[0] if leaders and leaders[0].feasible else None


@dataclass(frozen=True)
class Side:
    """Studies that differ only in their seed."""

    label: str
    runs: tuple[ComparedRun, ...]
    more_is_better: bool

    def spread(self, values: Sequence[float | None]) -> Spread:
        """Return the median and quartiles; a run without a value is worse than all others."""
        return spread(values, self.more_is_better)

    @property
    def best_run(self) -> ComparedRun:
        """The run with the best value; if several are equal, the first."""
        sign = -1.0 if self.more_is_better else 1.0
        return min(self.runs, key=lambda run: math.inf if run.value is None else sign * run.value)


@dataclass(frozen=True, slots=True)
class SideDifference:
    """A side's difference from the first side. Studies of a side with the same seed count as their mean."""

    side: str
    by: Axis | None
    """Measure of the cost at which the sides are compared; None: they are compared at their ends."""
    amount: float | None
    mean: float | None = None
    """Mean difference, above 0 if this side is better than the first; None if `without` isn't empty."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval, by Student's t over pairs, or by Welch's t if the runs aren't paired; None if there are
    too few seeds."""
    pairs: int = 0
    """Number of common seeds; 0 if the runs aren't paired."""
    p_value: float | None = None
    """p-value of Wilcoxon's signed-rank test; None with fewer than six pairs."""
    left_out: tuple[ComparedRun, ...] = ()
    """Runs whose seed the other side doesn't have, if other runs are paired."""
    without: tuple[ComparedRun, ...] = ()
    """Runs without a finite value at that cost."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of sides."""

    objective: Objective
    sides: tuple[Side, ...]
    reference: tuple[float, ...] | None
    """With several goals, the hypervolumes' reference point, signed so that lower is better."""

    @property
    def runs(self) -> list[ComparedRun]:
        """Studies of all sides."""
        return [run for side in self.sides for run in side.runs]

    def text(self) -> str:
        """Return the text that `hpsearch compare` prints."""
        from hpsearch.tables.comparison import comparison_text

        return comparison_text(self)

    def plots(self, directory: str | Path) -> list[Path]:
        """Plot the best value over trials, iterations and seconds as SVG; return the paths.

        Raises:
            StorageError: The files can't be written.
        """
        from hpsearch.page.comparing import save_courses

        return save_courses(self, Path(directory))

    def amounts(self, axis: Axis) -> list[float]:
        """Return the costs at which sides are compared: fractions of the cost that all runs have reached."""
        least = min(getattr(run.course.end, axis) for run in self.runs)
        marks = [least * fraction for fraction in _SHARES]
        if axis == "seconds":
            return marks if least else []
        return list(dict.fromkeys(float(int(mark)) for mark in marks if mark >= 1))

    def differing(self, side: Side) -> dict[str, tuple[str, str]]:
        """Return the keys in which a side's sweep differs from the first side's, each with both values."""
        return _without_seed(self.sides[0].runs[0].study.sweep, side.runs[0].study.sweep)

    @cached_property
    def differences(self) -> list[SideDifference]:
        """Return the difference of each further side from the first side, at their ends and at equal cost."""
        differences = []
        for side in self.sides[1:]:
            differences.append(self._difference(side, None, None))
            differences += [self._difference(side, axis, marks[-1]) for axis in AXES if (marks := self.amounts(axis))]
        return differences

    def _difference(self, side: Side, axis: Axis | None, amount: float | None) -> SideDifference:
        sides = self.sides[0], side
        shared = {run.seed for run in sides[0].runs} & {run.seed for run in side.runs}
        pairs = len(shared) if len(shared) > 1 else 0
        left_out = tuple(run for item in sides for run in item.runs if pairs and run.seed not in shared)
        first, other = (_values([run for run in item.runs if run not in left_out], axis, amount) for item in sides)
        without = tuple(run for run, value in [*first.items(), *other.items()] if value is None)
        difference = SideDifference(side.label, axis, amount, pairs=pairs, left_out=left_out, without=without)
        if without:
            return difference
        sign = 1.0 if side.more_is_better else -1.0
        left, right = _by_seed(first, sign), _by_seed(other, sign)
        if not pairs:
            mean, interval = mean_of_two(list(right.values()), list(left.values()))
            return replace(difference, mean=mean, interval=interval)
        both = [(right[seed], value) for seed, value in left.items()]
        mean, interval = mean_of_pairs([better - worse for better, worse in both])
        p_value = signed_rank(both) if pairs >= _LEAST_FOR_WILCOXON else None
        return replace(difference, mean=mean, interval=interval, p_value=p_value)


def compare(*given: Study | str | Path) -> Comparison:
    """Compare studies. Studies whose sweeps differ only in the seed are repeated runs of one side.

    Args:
        given: Studies or their directories, at least one.

    Raises:
        HpsearchError: The studies' objectives differ, or a study appears twice.
        JournalError: A journal can't be read.
    """
    studies = [each if isinstance(each, Study) else load(each) for each in given]
    if not studies:
        raise HpsearchError("compare: expected studies, or their directories, got none")
    first = studies[0]
    for index, study in enumerate(studies):
        if (twice := next((other for other in studies[:index] if _is_same(study, other)), None)) is not None:
            there = "" if twice.directory == study.directory else f", in {twice.directory} too"
            raise HpsearchError(
                f"{study.directory}: expected different studies, got this one twice{there}; name it once"
            )
        aimed, got = _aim(first.sweep.objective), _aim(study.sweep.objective)
        if aimed != got:
            raise HpsearchError(
                f"{study.directory}: expected a study that is to {aimed}, as {first.directory} is, got one that is to "
                f"{got}; compare those apart"
            )
    objective = first.sweep.objective
    if not objective.goals:
        raise HpsearchError(
            f"{first.directory}: expected studies with a metric to compare by, but its sweep names none"
        )
    courses = [study.course() for study in studies]
    fronts = [score for course in courses for moment in course.changes for score in moment.front]
    worst = _references(study.sweep.objective for study in studies)
    reference = reference_point(objective.goals, worst, fronts) if objective.several else None
    runs = [
        ComparedRun(study, course, tuple(_value(moment, objective, reference) for moment in course.changes))
        for study, course in zip(studies, courses, strict=True)
    ]
    groups = [[runs[index] for index in indices] for indices in same_but_for_seed([each.sweep for each in studies])]
    more = objective.several or objective.goals[0].goal == "maximize"
    labels = _labels([group[0].study for group in groups])
    sides = tuple(Side(label, tuple(group), more) for label, group in zip(labels, groups, strict=True))
    return Comparison(objective, sides, reference)


def same_but_for_seed(sweeps: Sequence[Sweep]) -> list[list[int]]:
    """Group the indices of studies that differ only in their seed, in order."""
    groups: list[list[int]] = []
    for index, sweep in enumerate(sweeps):
        equal = next((group for group in groups if not _without_seed(sweeps[group[0]], sweep)), None)
        if equal is None:
            groups.append([index])
        else:
            equal.append(index)
    return groups


def _values(runs: Iterable[ComparedRun], axis: Axis | None, amount: float | None) -> dict[ComparedRun, float | None]:
    """Return each run's best value at a cost, or at its end; None if the value isn't finite."""
    values = {run: run.value if axis is None or amount is None else run.at(axis, amount) for run in runs}
    return {run: None if value is None or abs(value) > _LARGEST else value for run, value in values.items()}


def _by_seed(values: Mapping[ComparedRun, float | None], sign: float) -> dict[int, float]:
    """Return the mean value of each seed, so that several studies with one seed count once."""
    by_seed: dict[int, list[float]] = {}
    for run, value in values.items():
        if value is not None:
            by_seed.setdefault(run.seed, []).append(sign * value)
    return {seed: statistics.fmean(of_seed) for seed, of_seed in by_seed.items()}


def _is_same(study: Study, other: Study) -> bool:
    """Return whether two studies are the same one, also by another path, by a link, or as a copy.

    Studies in memory have no path: they are compared as Python objects.
    """
    if study is other or not StudyDirectory(study.directory).exists():
        return study is other
    is_known = study.created > 0 and study.identity == other.identity  # a study may have no time of creation
    return is_known or study.directory.resolve() == other.directory.resolve()


def _aim(objective: Objective) -> str:
    """Return a description of an objective. Equal descriptions mean comparable objectives."""
    best = [goal.name for goal in objective.goals if goal.scope == "best"]
    aim = objective.aim + (f", of all reports of a trial the best {' and '.join(best)}" if best else "")
    return aim + (f", where {' and '.join(sorted(map(str, objective.constraints)))}" if objective.constraints else "")


def _references(objectives: Iterable[Objective]) -> dict[str, float]:
    """Return the worst reference value of each goal over all objectives."""
    references: dict[str, float] = {}
    for goal in (goal for objective in objectives for goal in objective.goals):
        if goal.reference is not None:
            references[goal.name] = max(references.get(goal.name, goal.reference), goal.reference, key=goal.signed)
    return references


def _without_seed(sweep: Sweep, other: Sweep) -> dict[str, tuple[str, str]]:
    difference = differing(sweep.to_json(), other.to_json())
    return {key: both for key, both in difference.items() if key != "seed"}


def _labels(studies: Sequence[Study]) -> list[str]:
    names = [study.sweep.name for study in studies]
    return names if len(set(names)) == len(names) else [str(study.directory) for study in studies]


def _value(moment: Moment, objective: Objective, reference: tuple[float, ...] | None) -> float:
    if reference is not None:
        return hypervolume([objective.point(score) for score in moment.front], reference)
    return values_of(moment.front[0])[0] if moment.front else math.nan
