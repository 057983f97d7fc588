"""Reads results of other searches from the user's sources."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from hpsearch.errors import SweepError
from hpsearch.journal.file import APPLICATION
from hpsearch.objective import Objective
from hpsearch.results.study import Study, load
from hpsearch.searchers import KNOWN, Past
from hpsearch.study.warm_start import WarmStart
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Score, TrialRow, TrialState
from hpsearch.warm_start.found import LeftOut, Source, SourceTrial, select_trials
from hpsearch.warm_start.table import dataframe_name, from_csv, from_dataframe, from_parquet

if TYPE_CHECKING:
    import optuna
    import pandas as pd

Given = Union[str, Path, Study, "optuna.Study", "pd.DataFrame"]
"""A source: a study's directory, a CSV or Parquet file, an Optuna storage, or a Python object."""

_SQLITE = b"SQLite format 3\0"
_PARQUET = b"PAR1"


def read_warm_start(sources: Sequence[Given], sweep: Sweep) -> WarmStart:
    """Read the results that a sweep's searcher begins with.

    Raises:
        SweepError: The search method doesn't support a warm start; or a source can't be read, doesn't match the sweep,
            or has no usable trial.
    """
    _check_method(sweep)
    resolved = [_resolved(item) for item in sources]
    past: list[Past] = []
    descriptions = []
    earlier: dict[str, set[tuple[str, str]]] = {}
    for item, (_, read) in zip(sources, resolved, strict=True):
        source = read(sweep)
        trials, notes = select_trials(source, sweep)
        if not trials:
            raise SweepError(
                f"--from {source.shown}: expected trials of this sweep's parameters with values of "
                f"{sweep.objective.title}, got none: {notes}. Give the sweep the parameters and ranges of that search, "
                "or leave the source out"
            )
        _check_new(str(item) if isinstance(item, str | Path) else source.shown, trials, earlier)
        past += trials
        descriptions.append(f"{source.shown}: {notes}")
    return WarmStart(tuple(name for name, _ in resolved), tuple(descriptions), tuple(past))


def source_name(source: Given) -> str:
    """Return a source's identity, which depends on its location and not on its content.

    Raises:
        SweepError: The object isn't a source.
    """
    name, _ = _resolved(source)
    return name


def _resolved(source: Given) -> tuple[str, Callable[[Sweep], Source]]:
    """Return a source's identity, and a function that reads it for a sweep."""
    match source:
        case Study():
            return str(source.directory.resolve()), lambda sweep: _from_study(source, sweep)
        case str() | Path():
            return _name(str(source)), lambda sweep: _read_named(str(source), sweep)
    at_hand: Any = source
    if _is_of(at_hand, "optuna.", "Study"):
        from hpsearch.warm_start.optuna_study import from_optuna

        return f"the Optuna study {at_hand.study_name}", lambda sweep: from_optuna(at_hand, sweep)
    if _is_of(at_hand, "pandas.", "DataFrame"):
        return dataframe_name(at_hand), lambda sweep: from_dataframe(at_hand, sweep)
    raise SweepError(
        "warm_start: expected a study's directory, a CSV or Parquet file, a storage of Optuna's as URL#study, a Study "
        f"of hpsearch or Optuna, or a DataFrame, got {type(source).__name__}"
    )


def _name(source: str) -> str:
    if "://" in source:
        from hpsearch.warm_start.optuna_study import database_name

        url, mark, name = source.partition("#")
        return f"{database_name(url)}{mark}{name}"
    path, study = _path_and_study(source)
    return str(path.resolve()) + ("" if study is None else f"#{study}")


def _check_method(sweep: Sweep) -> None:
    searcher = sweep.searcher
    if searcher.capabilities.learns and searcher.capabilities.recalls:
        return
    capabilities = {method: kind.capabilities for method, kind in KNOWN.items()}
    able = ", ".join(sorted(method for method, kind in capabilities.items() if kind.learns and kind.recalls))
    why = "can't begin with results" if searcher.capabilities.learns else "doesn't learn from results"
    advice = f"take one of {able}, or leave --from out"
    if searcher.capabilities.learns:
        advice += "; one of your own says `recalls = True` and takes them in `recall`"
    raise SweepError(
        f"--from: expected a method that begins with results that exist, but {sweep.method} {why}; {advice}"
    )


def _check_new(shown: str, past: Sequence[Past], earlier: dict[str, set[tuple[str, str]]]) -> None:
    """Check that a source doesn't repeat an earlier source: by another name, as a copy, or as a table of its trials.

    Names aren't sufficient: a link, a URL, a study object and an export may be the same study. So params and final
    scores are compared.

    Args:
        shown: Name of the source, as the user wrote it.
        past: Trials of the source.
        earlier: Trials of the earlier sources, by name. This source is added.
    """
    trials = {(json.dumps(trial.params, sort_keys=True), repr([*trial.values.values()][-1])) for trial in past}
    for name, former in earlier.items():
        if trials <= former or former <= trials:
            raise SweepError(
                f"--from {shown}: expected each source once, but these are the trials of {name}, too: those that "
                "were taken from one of them are in both. Leave that one out"
            )
    earlier[shown] = trials


def _is_of(source: Any, package: str, name: str) -> bool:
    """Return whether an object is an instance of a package's class, without importing the package."""
    return any(f"{base.__module__}.".startswith(package) and base.__name__ == name for base in type(source).__mro__)


def _read_named(source: str, sweep: Sweep) -> Source:
    if "://" in source:
        from hpsearch.warm_start.optuna_study import from_database

        url, _, name = source.partition("#")
        return from_database(url, name or None, sweep)
    path, study = _path_and_study(source)
    if path.is_dir():
        if study is not None:
            raise SweepError(f"--from {source}: expected a study's directory alone, without #{study}")
        return _from_study(load(path), sweep)
    if not path.is_file():
        raise SweepError(
            f"--from {source}: expected a study's directory, a CSV or Parquet file, or a storage of Optuna's as "
            "sqlite:///study.db#name, but there is nothing of this name"
        )
    return _read_file(path, study, sweep)


def _read_file(path: Path, study: str | None, sweep: Sweep) -> Source:
    from hpsearch.export.export import is_journal_file
    from hpsearch.warm_start.optuna_study import from_database, from_journal_file

    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE))
        is_journal = is_journal_file(path)
    except OSError as error:
        raise SweepError(f"--from {path}: expected a file that can be read, got: {error.strerror}") from error
    is_sqlite, is_parquet = head == _SQLITE, head.startswith(_PARQUET)
    if is_sqlite and _is_ours(path):
        return _from_study(load(path.parent), sweep)
    if is_sqlite:
        from sqlalchemy.engine import URL

        return from_database(str(URL.create("sqlite", database=str(path))), study, sweep)
    if is_journal:
        return from_journal_file(path, study, sweep)
    if is_parquet and study is None:
        return from_parquet(path, sweep)
    if study is not None:
        raise SweepError(f"--from {path}#{study}: expected a storage of Optuna's in front of the #, got another file")
    return from_csv(path, sweep)


def _path_and_study(source: str) -> tuple[Path, str | None]:
    """Split `journal.log#study` into path and study, unless a file has this whole name."""
    path, mark, study = source.rpartition("#")
    if not mark or Path(source).expanduser().exists():
        return Path(source).expanduser(), None
    return Path(path).expanduser(), study


def _is_ours(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION)
    except sqlite3.Error:
        return False


def _from_study(study: Study, sweep: Sweep) -> Source:
    """Return the trials of an hpsearch study, which may be running.

    Raises:
        SweepError: The study's metric or direction differs from the sweep's.
    """
    there, here = study.sweep.objective, sweep.objective
    if set(there.names) != set(here.names) or there.several != here.several:
        raise SweepError(
            f"--from {study.directory}: expected a study that is decided by {_names(here.names)}, as the sweep is, got "
            f"one by {_names(there.names)}. Give both the same metric names, or give a table (`hpsearch trials DIR "
            "--metrics --format csv`) if that study reported them, too"
        )
    goals = {goal.name: goal.goal for goal in there.goals}
    for goal in here.goals:
        if goals.get(goal.name) != goal.goal:
            raise SweepError(
                f"--from {study.directory}: expected a study whose goal is to {goal.goal} {goal.name}, got "
                f"{goals.get(goal.name, 'none')}"
            )
    if study.configurations:
        configurations = sorted(study.configurations, key=lambda row: row.number)
        return Source(str(study.directory), [_source_configuration(study, row, here) for row in configurations])
    rows = study.trials
    curves = study.scores(here)
    trials = [_source_trial(row, curves.get(row.number, []), study.sweep) for row in rows]
    return Source(str(study.directory), trials)


def _names(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))


def _source_configuration(study: Study, row: TrialRow, objective: Objective) -> SourceTrial:
    """Return a configuration of a study with repeats, with its value over them."""
    score = None if row.repeated is None else objective.reported(study.mean_metrics(row.repeated.configuration))
    if row.standing is None or score is None:
        return SourceTrial({}, {}, left_out=LeftOut("have repeats without a value, or fewer than others"))
    return SourceTrial(row.params, {row.iterations: score}, study.sweep.iterations)


def _source_trial(row: TrialRow, curve: list[tuple[int, Score]], sweep: Sweep) -> SourceTrial:
    if row.state is TrialState.FAILED:
        return SourceTrial({}, {}, left_out=LeftOut("failed"))
    is_complete = row.state is TrialState.COMPLETE
    # A complete trial that returned before the sweep's last iteration counts as trained to that iteration.
    return SourceTrial(row.params, dict(curve), sweep.iterations if is_complete else row.iterations, is_complete)
