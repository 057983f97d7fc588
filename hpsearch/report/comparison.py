"""Studies beside each other: those that differ in their seed alone are runs of one side."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Literal

from hpsearch.errors import HpsearchError, StorageError
from hpsearch.objective import Objective, hypervolume, values_of
from hpsearch.report.best import reference_point
from hpsearch.report.course import Course, Moment
from hpsearch.report.study import Study, load
from hpsearch.study.directory import StudyDirectory
from hpsearch.sweep.difference import differing
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow

__all__ = [
    "AXES",
    "Axis",
    "Comparison",
    "Difference",
    "Run",
    "Side",
    "Spread",
    "compare",
    "same_but_for_seed",
    "spread",
]

Axis = Literal["trials", "iterations", "seconds"]
AXES: tuple[Axis, ...] = ("trials", "iterations", "seconds")
"""What a search costs: trials begun, iterations that count, seconds in which it ran."""

_SHARES = (0.25, 0.5, 1.0)
"""Of what all runs have spent, at which they are compared."""

_LEAST_FOR_WILCOXON = 6
"""Pairs: of fewer no outcome of the test is below 5 %."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A value over the runs of a side; None stands for a run without any, which is worse than all others."""

    median: float | None
    low: float | None
    """The worse quartile."""
    high: float | None
    """The better one."""


@dataclass(frozen=True)
class Run:
    """One study of a comparison."""

    study: Study
    course: Course
    values: tuple[float, ...]
    """What was best after each change of the course: a value of the goal, of several goals the hypervolume; NaN where
    there was none."""

    def at(self, axis: Axis, amount: float) -> float | None:
        """Give what was best when so much was spent."""
        place = bisect_right(self.course.changes, amount, key=attrgetter(axis))
        return None if not place or math.isnan(self.values[place - 1]) else self.values[place - 1]

    @property
    def value(self) -> float | None:
        """What is best as it stands."""
        return self.at("seconds", math.inf)

    @property
    def seed(self) -> int:
        """The sweep's."""
        return self.study.sweep.seed

    @cached_property
    def worker_seconds(self) -> float:
        """Seconds in workers, of every segment that was started, times its width."""
        return sum((segment.seconds or 0.0) * segment.width for segment in self.study.segments())

    @cached_property
    def best(self) -> TrialRow | None:
        """The best trial; None where there is none, or where several goals decide."""
        leaders = [] if self.study.sweep.objective.several else self.study.leaders
        return leaders[0] if leaders and leaders[0].feasible else None


@dataclass(frozen=True)
class Side:
    """Studies that differ in their seed alone."""

    label: str
    runs: tuple[Run, ...]
    more_is_better: bool

    def spread(self, values: Sequence[float | None]) -> Spread:
        """Give median and quartiles, of which one between a number and none is none."""
        return spread(values, self.more_is_better)

    @property
    def best_run(self) -> Run:
        """The run with the best value; of equal ones the first."""
        sign = -1.0 if self.more_is_better else 1.0
        return min(self.runs, key=lambda run: math.inf if run.value is None else sign * run.value)


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much a side is better than the first one."""

    side: str
    by: Axis | None
    """What both have spent equally much of; None: as they stand."""
    amount: float | None
    mean: float | None
    """Above 0 where it is better; None where a run has none, or an infinite one."""
    interval: tuple[float, float] | None
    """95 %, by Student's t over the pairs, or by Welch's where seeds don't pair; None of too few runs."""
    pairs: int
    """Seeds that both have; 0 where the runs aren't paired."""
    p_value: float | None
    """By Wilcoxon's signed-rank test, from six pairs on."""


@dataclass(frozen=True)
class Comparison:
    """Sides beside each other."""

    objective: Objective
    sides: tuple[Side, ...]
    reference: tuple[float, ...] | None
    """Of several goals the point, signed so that less is better, that hypervolumes are measured from."""

    @property
    def runs(self) -> list[Run]:
        """Those of all sides."""
        return [run for side in self.sides for run in side.runs]

    def text(self) -> str:
        """Give what the command prints."""
        from hpsearch.report.comparison_tables import comparison_text

        return comparison_text(self)

    def plots(self, directory: str | Path) -> list[Path]:
        """Draw the best over trials, iterations and seconds, as SVG and as PNG; give the files.

        Raises:
            StorageError: They can't be written.
        """
        from hpsearch.report.page.comparing import courses

        folder, paths = Path(directory), []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for axis, picture in courses(self).items():
                for suffix in ("svg", "png"):
                    paths.append(folder / f"best-by-{axis}.{suffix}")
                    picture.save(paths[-1])
        except OSError as error:
            raise StorageError(f"{folder}: expected a place for plots that can be written: {error}") from error
        return paths

    def amounts(self, axis: Axis) -> list[float]:
        """Give what is compared at: shares of what every run has spent."""
        least = min(getattr(run.course.end, axis) for run in self.runs)
        marks = [least * share for share in _SHARES]
        return list(dict.fromkeys(marks if axis == "seconds" else [float(int(mark)) for mark in marks if mark >= 1]))

    def differing(self, side: Side) -> dict[str, tuple[str, str]]:
        """Give the keys in which a side's sweep differs from the first one's, and what each has there."""
        return _without_seed(self.sides[0].runs[0].study.sweep, side.runs[0].study.sweep)

    @cached_property
    def differences(self) -> list[Difference]:
        """Of every side but the first: as they stand, and at equal cost."""
        found = []
        for side in self.sides[1:]:
            found.append(self._difference(side, None, None))
            found += [self._difference(side, axis, marks[-1]) for axis in AXES if (marks := self.amounts(axis))]
        return found

    def _difference(self, side: Side, axis: Axis | None, amount: float | None) -> Difference:
        sign = 1.0 if side.more_is_better else -1.0

        def by_seed(one: Side) -> dict[int, list[float | None]]:
            found: dict[int, list[float | None]] = {}
            for run in one.runs:
                value = run.at(axis or "seconds", math.inf if amount is None else amount)
                found.setdefault(run.seed, []).append(None if value is None else sign * value)
            return found

        first, other = by_seed(self.sides[0]), by_seed(side)
        seeds = [seed for seed in first if seed in other]
        if len(seeds) >= 2:
            first, other = ({seed: one[seed] for seed in seeds} for one in (first, other))
        left, right = ([value for values in one.values() for value in values] for one in (first, other))
        if not all(value is not None and math.isfinite(value) for value in [*left, *right]):
            return Difference(side.label, axis, amount, None, None, 0, None)
        if len(seeds) < 2:
            mean, interval = _welch([v for v in right if v is not None], [v for v in left if v is not None])
            return Difference(side.label, axis, amount, mean, interval, 0, None)
        gains = [_mean(other[seed]) - _mean(first[seed]) for seed in seeds]
        mean, interval = _student(gains)
        p_value = _wilcoxon(gains) if len(gains) >= _LEAST_FOR_WILCOXON else None
        return Difference(side.label, axis, amount, mean, interval, len(gains), p_value)


def compare(*given: Study | str | Path) -> Comparison:
    """Compare studies; those whose sweeps differ in the seed alone are one side.

    Args:
        given: Studies, or their directories, one at least.

    Raises:
        HpsearchError: They don't search for the same, or one is there twice.
        JournalError: One can't be read.
    """
    studies = [one if isinstance(one, Study) else load(one) for one in given]
    if not studies:
        raise HpsearchError("compare: expected studies, or their directories, got none")
    first = studies[0]
    for place, study in enumerate(studies):
        if (twice := next((other for other in studies[:place] if _is_same(study, other)), None)) is not None:
            there = "" if twice.directory == study.directory else f", in {twice.directory} too"
            raise HpsearchError(
                f"{study.directory}: expected different studies, got this one twice{there}; name it once"
            )
        wanted, aims = (_aims(one.sweep.objective) for one in (first, study))
        if wanted != aims:
            raise HpsearchError(
                f"{study.directory}: expected a study that is to {first.sweep.objective.aim}, as {first.directory} is, "
                f"got one that is to {study.sweep.objective.aim}; compare those apart"
            )
    objective = first.sweep.objective
    if not objective.goals:
        raise HpsearchError(
            f"{first.directory}: expected studies with a metric to compare by, but its sweep names none"
        )
    courses = [study.course() for study in studies]
    fronts = [score for known in courses for moment in known.changes for score in moment.front]
    reference = reference_point(objective.goals, {}, fronts) if objective.several else None
    runs = [
        Run(study, known, tuple(_value(moment, objective, reference) for moment in known.changes))
        for study, known in zip(studies, courses, strict=True)
    ]
    groups = [[runs[place] for place in places] for places in same_but_for_seed([one.sweep for one in studies])]
    more = objective.several or objective.goals[0].goal == "maximize"
    labels = _labels([group[0].study for group in groups])
    sides = tuple(Side(label, tuple(group), more) for label, group in zip(labels, groups, strict=True))
    return Comparison(objective, sides, reference)


def spread(values: Sequence[float | None], more_is_better: bool) -> Spread:
    """Give median and quartiles; None is worse than all numbers, and one between a number and None is None."""
    sign = -1.0 if more_is_better else 1.0
    signed = sorted(math.inf if value is None else sign * value for value in values)
    found = [_quantile(signed, share) for share in (0.5, 0.75, 0.25)]
    return Spread(*(None if math.isnan(value) or value == math.inf else sign * value for value in found))


def same_but_for_seed(sweeps: Sequence[Sweep]) -> list[list[int]]:
    """Give the places of those that differ in their seed alone together, in their order."""
    groups: list[list[int]] = []
    for place, sweep in enumerate(sweeps):
        same = next((group for group in groups if not _without_seed(sweeps[group[0]], sweep)), None)
        if same is None:
            groups.append([place])
        else:
            same.append(place)
    return groups


def _is_same(one: Study, other: Study) -> bool:
    """Say whether two are one study: under another path, by a link, or a copy, which would count as a run of its own.

    Those that were run in memory have no place, and nothing else tells them apart.
    """
    if one is other or not StudyDirectory(one.directory).exists():
        return one is other
    is_known = one.created > 0 and one.identity == other.identity  # a study of an early version doesn't say when
    return is_known or one.directory.resolve() == other.directory.resolve()


def _aims(objective: Objective) -> list[tuple[str, str, str]]:
    return [(goal.name, goal.goal, goal.scope) for goal in objective.goals]


def _without_seed(one: Sweep, other: Sweep) -> dict[str, tuple[str, str]]:
    found = differing(one.to_json(), other.to_json())
    return {key: both for key, both in found.items() if key != "seed"}


def _labels(studies: Sequence[Study]) -> list[str]:
    names = [study.sweep.name for study in studies]
    return names if len(set(names)) == len(names) else [str(study.directory) for study in studies]


def _value(moment: Moment, objective: Objective, reference: tuple[float, ...] | None) -> float:
    if reference is not None:
        return hypervolume([objective.point(score) for score in moment.front], reference)
    return values_of(moment.front[0])[0] if moment.front else math.nan


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Give a quantile between neighbours, linearly."""
    place = share * (len(ordered) - 1)
    low, rest = int(place), place - int(place)
    if not rest or ordered[low] == ordered[low + 1]:
        return ordered[low]
    return ordered[low] + rest * (ordered[low + 1] - ordered[low])


def _mean(values: Sequence[float | None]) -> float:
    return statistics.fmean(value for value in values if value is not None)


def _student(gains: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    from scipy.stats import t

    mean = statistics.fmean(gains)
    half = float(t.ppf(0.975, len(gains) - 1)) * statistics.stdev(gains) / math.sqrt(len(gains))
    return mean, (mean - half, mean + half)


def _welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    mean = statistics.fmean(one) - statistics.fmean(other)
    if len(one) < 2 or len(other) < 2:
        return mean, None
    shares = [statistics.variance(values) / len(values) for values in (one, other)]
    if not sum(shares):
        return mean, (mean, mean)
    from scipy.stats import t

    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(values) - 1) for share, values in zip(shares, (one, other), strict=True)
    )
    half = float(t.ppf(0.975, freedom)) * math.sqrt(sum(shares))
    return mean, (mean - half, mean + half)


def _wilcoxon(gains: Sequence[float]) -> float:
    if not any(gains):
        return 1.0
    from scipy.stats import wilcoxon

    return float(wilcoxon(gains).pvalue)
