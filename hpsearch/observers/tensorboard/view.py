"""Writes several studies to one folder for TensorBoard, and keeps it up to date while they run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hpsearch.errors import HpsearchError, JournalError
from hpsearch.events import Finished
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import BEGINNING, Journal, Position
from hpsearch.objective import Objective
from hpsearch.observers.tensorboard.address import COLOURS, MOST_RUNS
from hpsearch.observers.tensorboard.event_file import EventFiles
from hpsearch.observers.tensorboard.hparams import HParams
from hpsearch.observers.tensorboard.study_runs import (
    FRONT,
    HYPERVOLUME,
    STUDY_RUN,
    StudyRuns,
    amount_of,
    best,
    by_tag,
    found_by,
    layout,
    spread_tags,
)
from hpsearch.observers.tensorboard.trial_runs import metrics_of
from hpsearch.results.comparison import AXES, Axis, same_but_for_seed
from hpsearch.results.course import Course, Moment
from hpsearch.results.importance import importance_of
from hpsearch.results.samples import spread
from hpsearch.results.study import Study, load

_MOST_PINNED = 4
_MOST_POINTS = 400
"""Most points of a scalar. If there are more than TensorBoard keeps, it samples them for each tag separately, and then
the three curves of a chart don't match."""


@dataclass(slots=True)
class _Followed:
    """A study, and how much of it is written."""

    study: Study
    """The study as it was at the beginning."""
    runs: StudyRuns
    position: Position = BEGINNING
    problem: str = ""
    """Why the study is no longer updated; empty if it is."""


class View:
    """Writes studies to one folder. Each study has a folder in it, with a run for each trial and a run `study`.

    Studies that differ only in their seed share one more run, with medians and quartiles. HParams only reads the first
    description of parameters that it finds in the folder, so this description covers all studies.

    Args:
        directories: The studies' directories, at least one.
        folder: Output folder, which contains nothing else.
        every_trial: Whether each trial gets a run. Otherwise only the best ones do, few enough that TensorBoard selects
            them by default.

    Raises:
        JournalError: A directory has no study, or it can't be read.
        HpsearchError: A study appears twice.
    """

    def __init__(self, directories: Sequence[Path], folder: Path, every_trial: bool = False) -> None:
        self.names = study_names(directories)
        """Names of the studies."""
        self._studies = [load(directory) for directory in directories]
        self._files = EventFiles(folder)
        self._ranked = [study.ranked for study in self._studies]
        self._sides = [
            indices
            for indices in same_but_for_seed([study.sweep for study in self._studies])
            if len(indices) > 1 and self._studies[indices[0]].sweep.objective.goals
        ]
        most_trials = MOST_RUNS - len(self._studies) - len(self._sides)
        self.left_out = 0 if every_trial else max(0, sum(study.count for study in self._studies) - most_trials)
        """Number of trials without a run."""
        several = len(self._studies) > 1
        self._hparams = HParams(
            [space for study in self._studies for space in study.spaces],
            forks=any(row.parent is not None for study in self._studies for row in study.trials),
            brackets=any(_may_have_brackets(study) for study in self._studies),
            studies=self.names if several else (),
            repeats=any(study.sweep.repeats.several for study in self._studies),
        )
        self._followed = [
            _Followed(
                study,
                StudyRuns(
                    self._files,
                    study.sweep,
                    self._hparams,
                    name,
                    _has_run(study.count, frozenset(numbers) if self.left_out else None),
                    name if several else None,
                ),
            )
            for study, name, numbers in zip(self._studies, self.names, self._best(most_trials), strict=True)
        ]
        self._repeats: list[tuple[str, OverSeeds]] = []
        for indices in self._sides:
            self._repeats.append(self._repeated(indices))
        self._begin()

    @property
    def several(self) -> bool:
        """Whether there is more than one study."""
        return len(self._studies) > 1

    @property
    def trials(self) -> int:
        """Number of trials at the beginning."""
        return sum(study.count for study in self._studies)

    @property
    def study_runs(self) -> list[str]:
        """Names of the runs of studies as a whole, and of those with medians."""
        return [followed.runs.name for followed in self._followed] + [name for name, _ in self._repeats]

    @property
    def same_colour(self) -> list[list[str]]:
        """Groups of folders whose runs share a colour: each study is a group. There are none for a single study.

        If there are too few colours, all studies that differ only in their seed are one group, with their medians.
        """
        if not self.several:
            return []
        if len(self.study_runs) <= COLOURS:
            return [[_folder(run)] for run in self.study_runs]
        medians = {indices[0]: run for indices, (run, _) in zip(self._sides, self._repeats, strict=True)}
        groups = []
        for indices in same_but_for_seed([study.sweep for study in self._studies]):
            runs = [self._followed[at].runs.name for at in indices]
            groups.append([_folder(run) for run in [*runs, *filter(None, [medians.get(indices[0])])]])
        return groups

    @property
    def problems(self) -> list[str]:
        """Why studies are no longer updated."""
        return [followed.problem for followed in self._followed if followed.problem]

    def best(self, count: int) -> list[str]:
        """Return the runs of the best trials, and those of the studies.

        Each study has the same number of best trials, at least one. The ranking is from the beginning of the view.
        """
        of_trials = [
            run
            for followed, numbers in zip(self._followed, self._best(count), strict=True)
            for trial in numbers
            if (run := followed.runs.run_of(trial)) is not None
        ]
        return [*of_trials, *self.study_runs]

    def pinned(self) -> list[str]:
        """Return the most important scalars."""
        objectives = [study.sweep.objective for study in self._studies]
        goals = dict.fromkeys(goal.name for objective in objectives for goal in objective.goals)
        if not goals:  # without goals: all reported metrics
            rows = chain.from_iterable(study.trials for study in self._studies)
            return list(dict.fromkeys(name for row in rows for name in row.metrics))[:_MOST_PINNED]
        quantities = dict.fromkeys(quantity for objective in objectives for quantity in found_by(objective, ()))
        best = (
            [HYPERVOLUME]
            if HYPERVOLUME in quantities
            else [quantity for quantity in quantities if quantity.startswith("best")]
        )
        tags = [*list(goals)[: _MOST_PINNED - 1], *(by_tag(quantity, "trials") for quantity in best)]
        return tags[:_MOST_PINNED]

    def describe(self) -> None:
        """Write the parameters and metrics of all studies for HParams, once.

        Parameter importance takes seconds to compute. It is computed from the study with the most trials.
        """
        study = max(self._studies, key=lambda study: study.count)
        metrics = {tag: name for study in self._studies for tag, name in metrics_of(study.sweep).items()}
        first = () if study.sweep.objective.several else tuple(importance_of(study).shares)
        experiment = self._hparams.experiment(", ".join(self.names), metrics, self._studies[0].created, first)
        self._files.summary(self._followed[0].runs.name, self._studies[0].created, experiment)
        self._files.flush()

    def read(self) -> None:
        """Write the journals' new entries."""
        for followed in self._followed:
            if not followed.problem:
                try:
                    _write_new_entries(followed)
                except HpsearchError as error:
                    followed.problem = str(error)
            followed.runs.flush()
        for _, repeats in self._repeats:
            repeats.flush()
        self._files.flush()

    def _best(self, count: int) -> list[list[int]]:
        """Return the numbers of the best trials of each study: `count` in total, and at least one per study."""
        ranks = [(rank, at) for at, rows in enumerate(self._ranked) for rank in range(len(rows))]
        chosen = sorted(ranks)[: max(count, len(self._ranked))]
        return [
            [self._ranked[at][rank].number for rank, study in chosen if study == at] for at in range(len(self._ranked))
        ]

    def _repeated(self, indices: Sequence[int]) -> tuple[str, OverSeeds]:
        """Return the run's name and the writer for studies that differ only in their seed."""
        study, used, number = self._studies[indices[0]], set(self.study_runs), 1
        run = f"{study.sweep.name}, {len(indices)} seeds/{STUDY_RUN}"
        while run in used:
            number += 1
            run = f"{study.sweep.name} ({number}), {len(indices)} seeds/{STUDY_RUN}"
        courses = [self._followed[at].runs.course for at in indices]
        return run, OverSeeds(self._files, run, study.sweep.objective, courses)

    def _begin(self) -> None:
        """Begin the runs of studies, the first one with the layout of Custom Scalars.

        TensorBoard orders runs by start, and the older pages assign their seven colours in that order. So the studies'
        runs begin before all others, and have distinct colours.
        """
        began = min(study.created for study in self._studies)
        for run in self.study_runs:
            self._files.create(run, began)
        page = layout([study.sweep for study in self._studies], bool(self._repeats))
        self._files.summary(self._followed[0].runs.name, self._studies[0].created, page)


def _has_run(existing: int, chosen: Collection[int] | None) -> Callable[[int], bool]:
    """Return a function that tells which trials get a run: all new ones, and of the existing ones those chosen."""
    return lambda trial: chosen is None or trial >= existing or trial in chosen


def _folder(run: str) -> str:
    return run.rpartition("/")[0]


def _may_have_brackets(study: Study) -> bool:
    open_ = study.state in ("running", "paused", "open") and study.sweep.early_terminate is not None
    return open_ or len({rung.bracket for rung in study.rungs}) > 1


def _write_new_entries(followed: _Followed) -> None:
    """Write new entries of a study's journal.

    Raises:
        JournalError: The journal can no longer be read, or was replaced.
    """
    study_dir, runs = StudyDirectory(followed.study.directory), followed.runs
    with Journal.read(study_dir.journal) as journal:
        added = journal.added(followed.position)
    if added is None:
        raise JournalError(
            f"{study_dir.path}: another study lies here than when it was opened, or its journal was written anew, so "
            "it is followed no further. Open it again."
        )
    entries, followed.position = added
    for entry in entries:
        runs.take(entry)
        if isinstance(entry.event, Finished):
            runs.rungs(runs.journaled.rungs())
    if entries:
        runs.rungs(runs.journaled.rungs())
    if study_dir.holder() is None and not runs.journaled.is_ask_tell:
        runs.settle()


def study_names(directories: Sequence[Path]) -> list[str]:
    """Return a unique name for each study's directory: its last part, with as many parent folders as necessary.

    Raises:
        HpsearchError: A study appears twice.
    """
    paths = [directory.resolve() for directory in directories]
    for directory, (path, count) in zip(directories, ((path, paths.count(path)) for path in paths), strict=True):
        if count > 1:
            raise HpsearchError(f"{directory}: expected different studies, got {path} {count} times; name it once")
    parts = [path.parts[1:] or ("study",) for path in paths]
    lengths = [1] * len(paths)
    while True:
        names = ["/".join(folders[-length:]) for folders, length in zip(parts, lengths, strict=True)]
        counts = Counter(names)
        equal = [at for at, name in enumerate(names) if counts[name] > 1 and lengths[at] < len(parts[at])]
        if not equal:
            return names
        for at in equal:
            lengths[at] += 1


class OverSeeds:
    """Writes the common course of studies that differ only in their seed, up to the cost that all have reached.

    Args:
        files: The event files.
        run: The run's name.
        objective: The objective.
        courses: Course of each study.
    """

    def __init__(self, files: EventFiles, run: str, objective: Objective, courses: Sequence[Course]) -> None:
        self._files, self._run, self._objective, self._courses = files, run, objective, courses
        better = {best(goal.name if objective.several else None): goal.goal == "maximize" for goal in objective.goals}
        self._more_is_better: Mapping[str, bool] = {**better, FRONT: True, HYPERVOLUME: True}
        self._written: dict[str, tuple[int, tuple[float, ...]]] = {}
        self._last_moments: list[Moment] = []

    def flush(self) -> None:
        """Write new values."""
        now = [course.end for course in self._courses]
        if now == self._last_moments:
            return
        self._last_moments = now
        for axis in AXES:
            end = min(amount_of(moment, axis) for moment in now)
            steps = _thinned(sorted({step for course in self._courses for step in _steps(course, axis, end)}))
            for step in steps:
                moments = [_at(course.changes, axis, step) for course in self._courses]
                values_by_study = [
                    found_by(self._objective, () if moment is None else moment.front) for moment in moments
                ]
                for quantity in values_by_study[0]:
                    self._put(quantity, axis, step, [values[quantity] for values in values_by_study])

    def _put(self, quantity: str, axis: Axis, step: int, values: Sequence[float]) -> None:
        optional_values = [None if math.isnan(value) else value for value in values]
        over = spread(optional_values, self._more_is_better[quantity])
        if over.median is None or over.low is None or over.high is None:
            return  # too many studies have no value yet
        three = over.median, over.low, over.high
        tags = spread_tags(quantity, axis)
        last_step, last = self._written.get(tags[0], (-1, ()))
        if step > last_step or (step == last_step and three != last):
            self._written[tags[0]] = step, three
            when = max(moment.time for moment in self._last_moments)
            self._files.scalars(self._run, when, step, list(zip(tags, three, strict=True)))


def _steps(course: Course, axis: Axis, end: int) -> set[int]:
    """Return the steps at and just before each change of a study's best value, and the end, to draw a step curve."""
    changes = {amount_of(moment, axis) for moment in course.changes}
    return {step for step in (*changes, *(step - 1 for step in changes), end) if 0 <= step <= end}


def _thinned(steps: Sequence[int]) -> Sequence[int]:
    apart = math.ceil(len(steps) / _MOST_POINTS)
    return [step for index, step in enumerate(steps) if index % apart == 0 or index == len(steps) - 1] if steps else []


def _at(changes: Sequence[Moment], axis: Axis, step: int) -> Moment | None:
    """Return the last change of the front at or before a cost; None if there was none."""
    count = bisect_right(changes, step, key=lambda moment: amount_of(moment, axis))
    return changes[count - 1] if count else None
