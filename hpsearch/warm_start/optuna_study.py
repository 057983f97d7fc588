"""Trials of an Optuna study: from a database, a journal file, or a study object in Python."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.config.checks import InvalidKey, key_text, nearest
from hpsearch.errors import SweepError
from hpsearch.export.export import MARK
from hpsearch.objective import Objective
from hpsearch.results.optuna_distributions import optuna_parameter
from hpsearch.space import Space
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import JointScore, Score
from hpsearch.warm_start.cells import metric, param
from hpsearch.warm_start.found import LeftOut, Source, SourceTrial

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial
    from sqlalchemy.engine import URL

_SQLITE = "sqlite"

_METRIC = "metrics."
"""Prefix of user attributes that hold reported metrics."""


def from_database(url: str, study: str | None, sweep: Sweep) -> Source:
    """Read an Optuna study from a database.

    Args:
        url: URL in the format of Optuna and SQLAlchemy, such as `sqlite:///study.db`.
        study: Name of the study in the database; None: the only study.
        sweep: The sweep to warm-start.

    Raises:
        SweepError: The study can't be read, or doesn't match the sweep.
    """
    from optuna.storages import RDBStorage

    parsed = _parsed(url)
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == _SQLITE:
        _check_sqlite(Path(parsed.database or ""), shown)
    with _explained(shown):
        # Nothing is written to the file, even if it isn't an Optuna database.
        storage = RDBStorage(url, skip_table_creation=True)
        try:
            return _from_storage(storage, study, sweep, shown)
        finally:
            storage.remove_session()
            storage.engine.dispose()


def database_name(url: str) -> str:
    """Return a database's identity: the URL without a password, and with the absolute path of a file.

    Raises:
        SweepError: The text isn't a database URL.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == _SQLITE:
        return f"sqlite:///{Path(parsed.database or '').resolve()}"
    return parsed.render_as_string(hide_password=True)


def _parsed(url: str) -> URL:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return make_url(url)
    except SQLAlchemyError as error:
        raise SweepError(f"--from {url}: expected the URL of a database, such as sqlite:///study.db#name") from error


def _check_sqlite(path: Path, name: str) -> None:
    """Check that the database file exists, as Optuna would create it."""
    if not path.is_file():
        raise SweepError(f"--from {name}: expected a file of Optuna's, but {path} is none")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT study_id, study_name FROM studies LIMIT 1").fetchall()
    except sqlite3.Error as error:
        raise SweepError(
            f"--from {name}: expected a storage of Optuna's, but {path} can't be read as one: {error}. A study of "
            "hpsearch is given by its directory"
        ) from error


def from_journal_file(path: Path, study: str | None, sweep: Sweep) -> Source:
    """Read an Optuna study from a journal file.

    Args:
        path: The journal file.
        study: Name of the study in the file; None: the only study.
        sweep: The sweep to warm-start.

    Raises:
        SweepError: The study can't be read, or doesn't match the sweep.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with _explained(str(path)):
        return _from_storage(JournalStorage(JournalFileBackend(str(path))), study, sweep, str(path))


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Add the storage's name to errors of Optuna and its database."""
    try:
        yield
    except SweepError:
        raise
    except Exception as error:
        raise SweepError(
            f"--from {name}: expected a storage that Optuna can read, got {type(error).__name__}: {error}"
        ) from error


def _from_storage(storage: BaseStorage, study: str | None, sweep: Sweep, name: str) -> Source:
    import optuna

    names = sorted(summary.study_name for summary in storage.get_all_studies())
    if study is None and len(names) == 1:
        (study,) = names
    if study not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        problem = "expected the name of a study behind a #" if study is None else f"it has no study {study!r}"
        raise SweepError(f"--from {name}: {problem}; {there}. {nearest(study or '', names) if study else ''}".strip())
    loaded = optuna.load_study(study_name=study, storage=storage)
    return _read(loaded, sweep, f"{name}#{study}")


def from_optuna(study: Study, sweep: Sweep) -> Source:
    """Return the trials of an Optuna study object.

    Raises:
        SweepError: The study doesn't match the sweep.
    """
    return _read(study, sweep, f"the Optuna study {study.study_name}")


def _read(study: Study, sweep: Sweep, name: str) -> Source:
    goals = sweep.objective.goals
    if len(study.directions) != len(goals):
        requested = "one objective" if len(goals) == 1 else f"{len(goals)} objectives"
        raise SweepError(f"--from {name}: expected a study of {requested}, got {len(study.directions)}")
    named = study.metric_names
    for index, goal in enumerate(goals):
        direction = study.directions[index].name.lower()
        if direction != goal.goal:
            raise SweepError(
                f"--from {name}: expected a study whose goal is to {goal.goal} {goal.name}, as the sweep's, got "
                f"{direction}"
            )
        if named and named[index] != goal.name:
            raise SweepError(
                f"--from {name}: expected values of {goal.name!r}, the sweep's metric, got values of {named[index]!r}"
            )
    trials = study.get_trials(deepcopy=False)
    # Optuna's steps may start at 0 or 1; our iterations start at 1.
    shift = 1 if any(0 in trial.intermediate_values for trial in trials) else 0
    space = sweep.parameters
    ours = MARK in study.user_attrs
    source_trials = [_source_trial(trial, shift, space, ours, sweep.objective) for trial in trials]
    return Source(name, source_trials, () if named else (f"its values are taken as {sweep.objective.title}",))


def _source_trial(trial: FrozenTrial, shift: int, space: Space, ours: bool, objective: Objective) -> SourceTrial:
    from optuna.trial import TrialState

    if trial.state == TrialState.FAIL:
        return SourceTrial({}, {}, left_out=LeftOut("failed"))
    if min(trial.intermediate_values, default=0) < 0:
        return SourceTrial({}, {}, left_out=LeftOut("have a step below 0"))
    values: dict[int | None, Score] = {}
    if not objective.joint:
        values |= {step + shift: value for step, value in sorted(trial.intermediate_values.items())}
    last = max(trial.intermediate_values, default=None)
    # With several goals there are no intermediate values, but our exports have the number of iterations.
    reached = (trial.user_attrs.get("iterations") if ours else None) if last is None else last + shift
    is_complete = trial.state == TrialState.COMPLETE
    # Our exports also have the score of a trial that was ended early.
    if trial.values is not None and (is_complete or (ours and objective.joint)):
        score = _score(trial, ours, objective)
        if isinstance(score, LeftOut):
            return SourceTrial({}, {}, left_out=score)
        values[reached] = score
    return SourceTrial(dict(_params(trial, space, ours)), values, reached, is_complete)


def _score(trial: FrozenTrial, ours: bool, objective: Objective) -> Score | LeftOut:
    """Return a trial's final score, or why it is unknown."""
    names = [str(constraint) for constraint in objective.constraints]
    if ours and objective.joint and all(name in trial.constraints for name in names):
        return JointScore(tuple(trial.values), tuple(trial.constraints[name] for name in names))
    attributes = {name: trial.user_attrs.get(f"{_METRIC}{name}") for name in objective.names}
    try:
        read = {name: metric(value, f"{_METRIC}{name}") for name, value in attributes.items()}
    except InvalidKey as error:
        return LeftOut(f"have a user attribute {key_text(error.key)} that can't be read", error.problem)
    measured = {name: value for name, value in read.items() if value is not None}
    goals = dict(zip((goal.name for goal in objective.goals), trial.values, strict=True))
    # In our exports the best value of a trial may be from another iteration than its metrics.
    score = objective.reported(goals | measured if ours else measured | goals)
    if score is None:
        lacks = next(bound.metric for bound in objective.constraints if bound.metric not in measured)
        return LeftOut(f"have no {lacks}", "is wanted as user attribute metrics.NAME")
    return score


def _params(trial: FrozenTrial, space: Space, ours: bool) -> Iterator[tuple[str, Any]]:
    for name, value in trial.params.items():
        parameter = space.find(name)
        distribution = None if parameter is None else parameter.distribution
        if distribution is not None and isinstance(value, str) and ours:
            theirs = optuna_parameter(distribution, [])
            yield name, json.loads(value) if theirs is not None and theirs.as_json else value
        else:
            # Optuna doesn't store lists, so users store them as JSON.
            yield name, value if distribution is None else param(value, distribution, name, is_text=False)
    if ours:
        for key, value in trial.user_attrs.items():
            if key.startswith("params."):
                yield key.removeprefix("params."), json.loads(value)
