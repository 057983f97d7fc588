"""The sweep that runs the best configurations of a study again, each several times with other seeds."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpsearch.config.checks import InvalidKey, at_least, integer
from hpsearch.errors import JournalError, StudyInUseError, SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.objective import values_of, without_targets
from hpsearch.results.best import no_best
from hpsearch.results.rerun import identity
from hpsearch.results.study import Study, load
from hpsearch.run.study_run import create_study
from hpsearch.seeds import SEED_LIMIT
from hpsearch.space import Space
from hpsearch.sweep.parts import Repeats, Search
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import counted
from hpsearch.trial import TrialRow, Value

_SUFFIX = "-rerun"
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Rerunning:
    """Plan of a rerun."""

    sweep: Sweep
    """All configurations once, then all again, and so on, so that an interrupted rerun has runs of each."""
    origin: dict[str, Any]
    """The new study's record of the original one, which its table needs."""
    folder: Path
    """Folder in which the original study was created, from which scripts, modules and tables are found."""
    notes: tuple[str, ...]
    """Notes to print before it runs."""

    @property
    def source(self) -> Path | None:
        """The sweep file of the original study."""
        return None if self.sweep.source is None else self.folder / self.sweep.source

    @property
    def folders(self) -> tuple[str, ...]:
        """The original study's search path for code."""
        source = () if self.source is None else (str(self.source.resolve().parent),)
        return (str(self.folder), *source)

    def opened(self, directory: Path | None) -> StudyDirectory:
        """Create the new study, or return the existing one.

        Args:
            directory: Its directory; None: the next free `runs/<name>-<n>`.

        Raises:
            SweepError: There is no trainable.
            JournalError: The directory contains something else, for example another rerun.
        """
        try:
            self.sweep.check_runs()
        except InvalidKey:
            former = self.origin["directory"]
            raise SweepError(
                f"{former}: expected a sweep that says what runs a trial, but this one was used with ask and tell. "
                f"Name it in Python: hpsearch.rerun({former!r}, trainable=...)"
            ) from None
        study_dir = None if directory is None else StudyDirectory(directory)
        if study_dir is None or not study_dir.exists():
            return create_study(self.sweep, directory, folder=self.folder, rerun=self.origin)
        there = load(study_dir.path).rerun
        got = "no rerun" if there is None else f"of {_text_of(there.origin)}"
        if there is None or _text_of(there.origin) != _text_of(self.origin):
            raise JournalError(
                f"{study_dir.path}: expected no study, or a rerun of {_text_of(self.origin)}, but the one there is "
                f"{got}. Name another directory (--dir)."
            )
        return study_dir


def plan_rerun(study: Study, top: int, seeds: int, iterations: int | None = None) -> Rerunning:
    """Return the plan to run the best configurations of a study again.

    Args:
        study: The original study.
        top: Number of configurations; fewer if fewer have a value.
        seeds: Runs of each.
        iterations: Iterations of each run; None: the most of the original trials.

    Raises:
        StudyInUseError: A live process runs the study.
        HpsearchError: No trial has a value.
        SweepError: The params of a trial don't match the study's parameters.
    """
    top, seeds = (at_least(1, integer, value, (name,)) for name, value in (("top", top), ("seeds", seeds)))
    if iterations is not None:
        iterations = at_least(1, integer, iterations, ("iterations",))
    holder = StudyDirectory(study.directory).holder()
    if holder is not None:
        raise StudyInUseError(
            f"{study.directory}: a study must have ended to be rerun, as its best trials may still be others, but "
            f"{holder} runs it now. Wait for it, or end it with `hpsearch stop {shlex.quote(str(study.directory))}`."
        )
    if study.sweep.objective.several:
        raise SweepError(
            f"{study.directory}: a rerun compares the means of one metric, but {study.sweep.objective.title} decide "
            "here. Run the trials that you want again by points_to_try, in a sweep of their own."
        )
    rows = _best(study, top)
    space = study.sweep.parameters
    points = [_fitting(study, space, row) for row in rows]
    name = study.sweep.name.removesuffix(_SUFFIX)[: _LONGEST_NAME - len(_SUFFIX)]
    sweep = replace(
        study.sweep,
        name=f"{name}{_SUFFIX}",
        method="random",
        search=Search(),
        metric=without_targets(study.sweep.objective.goals) or None,  # which one lucky run would reach
        limits=replace(study.sweep.limits, patience=None),
        parameters=space,
        early_terminate=None,
        repeats=Repeats(),
        max_iter=_longest(study) if iterations is None else iterations,
        run_cap=len(points) * seeds,
        points_to_try=tuple(points * seeds),
        seed=(study.sweep.seed + 1) % SEED_LIMIT,
    )
    configurations = [
        {"trial": row.number, "value": values_of(row.standing)[0], "iterations": row.iterations}
        for row in rows
        if row.standing is not None
    ]
    origin = {"directory": str(study.directory), "seeds": seeds, "configurations": configurations}
    folder = Path(study.provenance.get("directory") or Path.cwd())
    return Rerunning(sweep, origin, folder, tuple(_notes(study, rows, top)))


def _longest(study: Study) -> int | None:
    """Return the number of iterations of a run: those of the sweep, or of its longest trial if rungs end by costs."""
    if study.sweep.resource is None:
        return study.sweep.iterations
    return max(row.iterations for row in study.trials)


def _best(study: Study, top: int) -> list[TrialRow]:
    """Return the best trials, best first, with the first of those with equal params."""
    ranked = [row for row in study.ranked if row.standing is not None]
    if not ranked:
        raise no_best(study.directory, study.sweep.objective, study.trials, ())
    distinct: dict[str, TrialRow] = {}
    for row in ranked:
        distinct.setdefault(identity(row.params), row)
    return list(distinct.values())[:top]


def _fitting(study: Study, space: Space, row: TrialRow) -> dict[str, Value]:
    """Return a trial's params for an exact repetition: nothing is sampled, rounded or completed."""
    rule = f"{study.directory}: trial {row.number} must have params that the study's parameters allow, to be run again"
    advice = "Run them in a sweep whose parameters hold them, as points_to_try, or take fewer trials (top)."
    try:
        checked = space.check(row.params)
    except InvalidKey as error:
        raise SweepError(f"{rule}, but {error}. {advice}") from None
    if identity(checked) != identity(row.params):
        raise SweepError(f"{rule}, but {identity(row.params)} would run as {identity(checked)}. {advice}")
    return checked


def _notes(study: Study, rows: Sequence[TrialRow], top: int) -> list[str]:
    notes = []
    if study.state != "finished":
        notes.append(f"{study.directory} is {study.state}, not finished: the best of what it has are run again")
    if study.rerun is not None:
        notes.append(
            f"{study.directory} is a rerun itself: its configurations are taken by their best run, not by mean"
        )
    if len(rows) < top:
        notes.append(f"{counted(len(rows), 'configuration')} of the {top} asked for: no other has a value")
    forked = [row.number for row in rows if row.parent is not None]
    if forked:
        numbers = ", ".join(map(str, forked))
        notes.append(f"forked from other trials, now run from their start: {numbers}")
    return notes


def _text_of(origin: Mapping[str, Any]) -> str:
    numbers = ", ".join(str(configuration["trial"]) for configuration in origin["configurations"])
    is_single = len(origin["configurations"]) == 1
    return f"{'trial' if is_single else 'trials'} {numbers} with {counted(origin['seeds'], 'seed')}"
