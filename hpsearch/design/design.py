"""The steps from a data set to a network: analyze, search, train the best network on all rows, test."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpsearch.backends import BackendName, make_backend
from hpsearch.design.data_sets import GOALS, DataSetError, prepare
from hpsearch.design.folder import DesignFolder, DesignRequest
from hpsearch.design.last_fit import best_of, deliver, tested
from hpsearch.design.pace import ENOUGH_EPOCHS, SCORING, STARTING, Clock, check_latency, pace, search_seconds
from hpsearch.design.prepared_rows import read_rows
from hpsearch.design.report import DesignReport
from hpsearch.design.sweep_file import check_sweep, search_space, sweep_text
from hpsearch.design.trees import Trees, best_trees
from hpsearch.errors import DesignError, HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.history import seconds_spent
from hpsearch.journal.journal import Journal
from hpsearch.observers.display import Display, SilentDisplay
from hpsearch.results.study import Study, load
from hpsearch.run.study_run import RunSettings, create_study, run_study
from hpsearch.sweep.file import load_sweep, locate
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import duration, number
from hpsearch_comm.errors import ConfigurationError

_FEW = 2000
"""Maximum number of rows for which all folds are validated; with more, one held-out fold is enough."""

_FOLDS = 5

_QUICK_FOLDS = 2
"""Number of validated folds if networks are slow for the available time."""

_TREES = 0.2
"""Maximum share of the time for trees."""


@dataclass(frozen=True)
class Surroundings:
    """Settings of how a design is run. They aren't part of the request."""

    say: Callable[[str], None] = print
    display: Callable[[], Display] = SilentDisplay
    backend: BackendName = "ray"
    began: float | None = None
    """Start of the requested time, by `time.time()`; None: the time of the call."""
    sweep_only: bool = False
    """End before the search, so that the sweep can be changed."""


def design(request: DesignRequest, folder: Path, around: Surroundings) -> DesignReport | None:
    """Design a network for a data set.

    Args:
        request: The request.
        folder: The target folder, which must be missing or empty.
        around: How it is run.

    Returns:
        The report; None if the run ended before there was a network, so that `resume` can continue it.

    Raises:
        DesignError: The request can't be satisfied.
        HpsearchError: The search can't be run.
    """
    paths = DesignFolder(folder)
    paths.begin({"asked": asdict(request), "spent": 0.0})
    try:
        return resume(folder, around)
    except HpsearchError:
        if not paths.sweep.is_file():  # so that the corrected command can use the same folder
            paths.clear()
        raise


def resume(folder: Path, around: Surroundings, seconds: float | None = None) -> DesignReport | None:
    """Resume a design, or return its report.

    The split doesn't change: rows are read from the folder, not from the data set.

    Args:
        folder: The design's folder.
        around: How it is run.
        seconds: Total time, including earlier runs; None: as first requested. A longer time continues the search.

    Raises:
        DesignError, HpsearchError: See `design`.
    """
    paths = DesignFolder(folder)
    record = paths.read()
    request = DesignRequest(**record["asked"])
    if seconds is not None:
        request = replace(request, seconds=seconds)
    more = request.seconds > record["asked"]["seconds"]
    if paths.report.is_file() and not more:
        around.say(f"{folder}: this design is finished")
        return DesignReport.from_json(json.loads(paths.report.read_text(encoding="utf-8")))
    clock = Clock(request.seconds, record["spent"], around.began)
    record["asked"] = asdict(request)
    try:
        with _own_errors():
            if not paths.sweep.is_file():
                _look(paths, record, request, clock, around)
            _check_stayed(paths, Path(record["constants"]["data"]))
            if around.sweep_only:
                return None
            study = _searched(paths, record, request, clock, around)
            if study is None:
                return None
            return _finished(paths, record, request, study, clock, around)
    finally:
        record["spent"] = clock.spent
        paths.write(paths.record, record)


def _look(
    paths: DesignFolder, record: dict[str, Any], request: DesignRequest, clock: Clock, around: Surroundings
) -> None:
    """Split and prepare the rows, train trees and a typical network for comparison, and write the sweep."""
    for folder in (paths.data, paths.model):  # from a run that ended during this step
        shutil.rmtree(folder, ignore_errors=True)

    def check_time() -> None:
        if clock.remaining < 0:
            raise DesignError(
                f"--time must leave time to look at the data, but {duration(clock.spent)} of "
                f"{duration(request.seconds)} are spent and it isn't done: give more, or fewer rows or columns"
            )

    check_time()
    prepared = prepare(
        Path(request.source),
        request.target,
        paths.path,
        goal=request.goal,
        test_share=request.test_share,
        seed=request.seed,
        look_up=check_time,
    )
    lines = tuple(prepared.lines)
    for line in (*lines, *(f"warning: {warning}" for warning in prepared.warnings)):
        around.say(line)
    rows = read_rows(paths.search_rows)
    goal = request.goal or next(name for name, kind in GOALS.items() if kind == rows.task.kind)
    count = len(rows.targets)
    constants: dict[str, Any] = {
        "data": str(paths.search_rows),
        "goal": goal,
        "folds": _FOLDS,
        "validated": _FOLDS if count <= _FEW else 1,
        "split_seed": request.seed,
    }
    workers = request.workers or len(os.sched_getaffinity(0))
    starting = STARTING.get(around.backend, 0.0)
    space = search_space(rows.task, count, goal, constants, request.limits)
    check_latency(space.smallest, rows.task, request.limits)
    usual = space.points[0] if space.points else {}
    paced = pace({**usual, **constants}, clock, workers, starting)
    if constants["validated"] > _QUICK_FOLDS and paced.epochs < ENOUGH_EPOCHS:
        constants["validated"] = _QUICK_FOLDS
        paced = pace({**usual, **constants}, clock, workers, starting)
    seconds = _TREES * (clock.remaining - starting - SCORING)
    trees = best_trees(rows, goal, constants, seconds, workers, paths.trees)
    if trees is not None:
        around.say(f"trees:        {goal} {number(trees.validation)} on the validated rows, {trees.kind}")
    constants |= {"epochs": paced.epochs} | ({"latency": True} if "latency_ms" in request.limits else {})
    for_search = search_seconds(clock, paced.fit_seconds, starting)
    if for_search < 1:
        raise DesignError(
            f"--time must leave a moment for the search; {duration(clock.spent)} were spent on looking at the data, "
            f"and the last fit may take {duration(paced.fit_seconds)}: give more"
        )
    max_time = float(round(for_search))
    record |= {
        "goal": goal,
        "found": lines,
        "constants": constants,
        "fit_seconds": paced.fit_seconds,
        "max_time": max_time,
        "trees": None if trees is None else asdict(trees),
        "looked": clock.spent,
    }
    paths.write(paths.record, {**record, "spent": clock.spent})
    paths.sweep.with_suffix(".new").write_text(sweep_text(record, request, space), encoding="utf-8")
    paths.sweep.with_suffix(".new").replace(paths.sweep)
    around.say(f"sweep:        {paths.sweep}")


def _searched(
    paths: DesignFolder, record: Mapping[str, Any], request: DesignRequest, clock: Clock, around: Surroundings
) -> Study | None:
    """Run the sweep for the available time; return None if it was interrupted."""
    sweep = load_sweep(paths.sweep)
    check_sweep(sweep, paths, record["constants"])
    directory = StudyDirectory(paths.study)
    if not directory.exists():
        create_study(sweep, paths.study, paths.sweep.read_text(encoding="utf-8"))
    with Journal.read(directory.journal) as journal:
        spent = seconds_spent(list(journal.entries()))
    clock.count_at_least(record.get("looked", 0.0) + spent)
    seconds = search_seconds(clock, record["fit_seconds"], STARTING.get(around.backend, 0.0))
    if seconds < 1:
        before = load(paths.study)
        if before.leaders:
            return before
        raise DesignError(
            f"{paths.path}: --time must leave a moment for the search, but {duration(clock.spent)} of "
            f"{duration(request.seconds)} are spent: give more, "
            f"`hpsearch design --resume {shlex.quote(str(paths.path))} --time TIME`"
        )
    own_limit = _own_seconds(sweep, record)
    most = spent + seconds if own_limit is None else min(own_limit, spent + seconds)
    sweep = replace(sweep, limits=replace(sweep.limits, max_time=most))
    run = RunSettings(
        trainable=None,
        backend=lambda sweep: make_backend(around.backend, sweep, None),
        display=around.display(),
        tensorboard=False,
        search_path=(),
    )
    study = run_study(directory, sweep, run)
    if study.state in ("interrupted", "cancelled", "killed"):
        return None
    return study


def _own_seconds(sweep: Sweep, record: Mapping[str, Any]) -> float | None:
    """Return the search's `max_time` if a user changed it in the sweep file; otherwise None."""
    limit = sweep.limits.max_time
    return None if limit == record["max_time"] else limit


def _finished(
    paths: DesignFolder,
    record: dict[str, Any],
    request: DesignRequest,
    study: Study,
    clock: Clock,
    around: Surroundings,
) -> DesignReport:
    if not study.leaders:
        own_limit = _own_seconds(load_sweep(paths.sweep), record)
        where = locate(paths.sweep, "limits.max_time")
        more = (
            f"give more: `hpsearch design --resume {paths.path} --time ...`"
            if own_limit is None
            else f"raise limits.max_time, which ends the search after {duration(own_limit)} ({where})"
        )
        raise DesignError(f"{paths.path}: no network came as far as to be validated within the search's time; {more}")
    best = best_of(study)
    if best is None:
        raise _none_keeps(paths, study)
    around.say(f"last fit:     trial {best.trial} on all {len(read_rows(paths.search_rows).targets)} rows")
    cost, training = deliver(best, paths.model, study.sweep.seed)
    trees = None if record["trees"] is None else Trees(**record["trees"])
    expected = training.predictions(read_rows(paths.test_rows))
    report = tested(paths, record, best, cost, trees, request, expected)
    offered = paths.model / paths.trees.name
    if report.trees_win:
        shutil.copyfile(paths.trees, offered)
    else:
        offered.unlink(missing_ok=True)
    if best.left_out:
        note = f"the last fit had time for {best.epochs} of {best.epochs + best.left_out} epochs: a longer --time helps"
        report = replace(report, notes=(*report.notes, note))
    report = replace(report, seconds=clock.spent)
    paths.write(paths.report, asdict(report))
    return report


def _check_stayed(paths: DesignFolder, rows: Path) -> None:
    """Check that the sweep reads its rows from this folder: after a move, trials would read other rows, or none."""
    here = paths.search_rows
    if here != rows and not (here.exists() and rows.exists() and here.samefile(rows)):
        raise DesignError(
            f"{paths.path}: must lie where it was made until it is finished, in {rows.parent.parent}, where its trials "
            "read the rows: move it back, and go on there"
        )


def _none_keeps(paths: DesignFolder, study: Study) -> DesignError:
    """Describe how close the best trial is to the bounds, which no trial satisfies."""
    nearest, objective = study.leaders[0], study.sweep.objective
    broken, metrics = objective.broken(nearest.score), study.metrics_of(nearest)
    values = (
        f"{bound.metric} {number(metrics[bound.metric])}" for bound in objective.constraints if str(bound) in broken
    )
    return DesignError(
        f"{paths.path}: a network must keep {' and '.join(broken)}, but none that was validated does; the nearest, "
        f"trial {nearest.number}, has {' and '.join(values)}. Design anew with a looser --limit or a longer --time, or "
        f"search on: `hpsearch design --resume {paths.path} --time ...`"
    )


@contextmanager
def _own_errors() -> Iterator[None]:
    """Convert errors of trainers and data sets to `DesignError`."""
    try:
        yield
    except (ConfigurationError, DataSetError) as error:
        raise DesignError(str(error)) from error
