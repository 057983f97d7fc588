"""A study as an Optuna storage in one SQLite file, for optuna-dashboard and Optuna's own plots."""

from __future__ import annotations

import json
import math
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hpsearch.errors import HpsearchError
from hpsearch.objective import Objective, excesses_of
from hpsearch.report.optuna_distributions import OptunaParameter, optuna_parameter
from hpsearch.report.tables import strict_json
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow, TrialState

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

__all__ = ["MARK", "check_replaceable", "write_optuna_storage"]

MARK = "hpsearch"
"""User attribute of a study that holds the identity of ours."""

KNOWN_SCHEMA = "v3.2.0.a"
"""Revision of Optuna's tables that `_insert` writes to."""

_COLUMNS = {
    "trials": ("trial_id", "study_id", "number", "state", "datetime_start", "datetime_complete"),
    "trial_params": ("trial_id", "param_name", "param_value", "distribution_json"),
    "trial_values": ("trial_id", "objective", "value", "value_type"),
    "trial_intermediate_values": ("trial_id", "step", "intermediate_value", "intermediate_value_type"),
    "trial_user_attributes": ("trial_id", "key", "value_json"),
    "trial_system_attributes": ("trial_id", "key", "value_json"),
}
"""Those tables."""


def write_optuna_storage(
    path: Path,
    rows: Sequence[TrialRow],
    sweep: Sweep,
    curves: Mapping[int, Sequence[tuple[int, float]]],
    times: Mapping[int, tuple[float, float | None]],
    identity: str,
) -> None:
    """Write a new SQLite file with one study.

    Stopped trials become PRUNED, and failed ones, or those that ended without a value, FAIL: Optuna's own best trial is
    therefore the best of those that ran to their end. Constraints on outcomes become those that `Trial.set_constraint`
    sets. The rest of a row is in user attributes, and so is a parameter whose values Optuna would bend:
    `params.<name>`, in JSON.

    Args:
        path: Must not exist.
        rows: All trials, numbered from 0 without a gap.
        sweep: Gives the distributions, the metric's name and direction, and the study's name in the storage.
        curves: Trial number to (iteration, metric): the intermediate values, which Optuna has of one goal only.
        times: Trial number to when it began and ended, in seconds since the epoch.
        identity: Of our study: marks the storage as its export.
    """
    with _quiet_optuna():
        import optuna
        from sqlalchemy import URL

        storage = optuna.storages.RDBStorage(str(URL.create("sqlite", database=str(path))))
        try:
            goals = sweep.objective.goals
            directions = [goal.goal for goal in goals]
            study = optuna.create_study(storage=storage, study_name=sweep.name, directions=directions)
            study.set_metric_names([goal.name for goal in goals])
            study.set_user_attr(MARK, identity)
            parameters = {
                name: optuna_parameter(parameter.distribution, [row.params[name] for row in rows if name in row.params])
                for name in sweep.parameters.columns(row.params for row in rows)
                if (parameter := sweep.parameters.find(name)) is not None
            }
            trials = [
                _trial(row, parameters, curves.get(row.number, ()), times.get(row.number), sweep.objective)
                for row in rows
            ]
            if storage.get_current_version() == KNOWN_SCHEMA:
                _insert(storage, storage.get_study_id_from_name(sweep.name), trials)
            else:
                study.add_trials(trials)
        finally:
            storage.remove_session()
            storage.engine.dispose()


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna's lines off the screen, and leave its settings as they were."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def check_replaceable(path: Path, identity: str) -> None:
    """See that a file is free, or holds a former export of this study and nothing else.

    Raises:
        HpsearchError: It holds something else, which would be lost.
    """
    if not path.exists():
        return
    query = (
        "SELECT study_name, value_json FROM studies LEFT JOIN study_user_attributes AS attributes "
        "ON attributes.study_id = studies.study_id AND attributes.key = ?"
    )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            studies = connection.execute(query, (MARK,)).fetchall()
    except sqlite3.Error as error:
        raise _not_ours(path, f"a file that isn't an Optuna storage ({error})") from error
    foreign = [name for name, mark in studies if mark != json.dumps(identity)]
    if foreign:
        raise _not_ours(path, f"the Optuna study {foreign[0]!r}")


def _not_ours(path: Path, found: str) -> HpsearchError:
    return HpsearchError(
        f"{path}: expected no file, or a former export of this very study; got {found}, which is left as it is. "
        "Export to another folder (--to), or move the file away."
    )


def _trial(
    row: TrialRow,
    parameters: Mapping[str, OptunaParameter | None],
    curve: Sequence[tuple[int, float]],
    times: tuple[float, float | None] | None,
    objective: Objective,
) -> FrozenTrial:
    from optuna.trial import TrialState as OptunaState
    from optuna.trial import create_trial

    state = {
        TrialState.WAITING: OptunaState.WAITING,
        TrialState.RUNNING: OptunaState.RUNNING,
        TrialState.COMPLETE: OptunaState.COMPLETE if row.values else OptunaState.FAIL,
        TrialState.STOPPED: OptunaState.PRUNED,
        TrialState.FAILED: OptunaState.FAIL,
    }[row.state]
    has_value = state in (OptunaState.COMPLETE, OptunaState.PRUNED)
    held = {name: parameter for name, parameter in parameters.items() if parameter is not None and name in row.params}
    attributes = {
        "origin": row.origin,
        "iterations": row.iterations,
        "width": row.width,
        "parent": row.parent,
        "inherited": row.inherited,
        "checkpoint": row.checkpoint,
        "reason": row.reason,
        "reverted": row.reverted,
        "asynchronous": row.asynchronous or None,
        "failure": None if row.failure is None else row.failure.message,
        **{f"metrics.{name}": strict_json(value) for name, value in row.metrics.items()},
        **{f"params.{name}": json.dumps(value) for name, value in row.params.items() if name not in held},
    }
    trial = create_trial(
        state=state,
        values=row.values if has_value and row.values else None,
        params={name: parameter.value(row.params[name]) for name, parameter in held.items()},
        distributions={name: parameter.distribution for name, parameter in held.items()},
        user_attrs={name: value for name, value in attributes.items() if value not in (None, "")},
        intermediate_values=dict(curve),
    )
    if row.score is not None:
        for constraint, excess in zip(objective.constraints, excesses_of(row.score), strict=True):
            trial.set_constraint(str(constraint), excess)
    trial.number = row.number
    began, ended = times or (None, None)
    trial.datetime_start = None if state == OptunaState.WAITING else _local(began)
    trial.datetime_complete = _local(ended) if state.is_finished() else None
    return trial


def _local(when: float | None) -> datetime | None:
    """Give a time as Optuna's trials hold it: of the local clock, without saying so."""
    return None if when is None else datetime.fromtimestamp(when)


def _insert(storage: RDBStorage, study: int, trials: Sequence[FrozenTrial]) -> None:
    """Write all trials of a study in one transaction.

    `add_trials` takes several transactions and a query per value: 10 ms a trial, where this takes 0.1 ms.
    """
    from optuna.distributions import distribution_to_json

    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in _COLUMNS}
    for key, trial in enumerate(trials, 1):
        started, completed = _stored_time(trial.datetime_start), _stored_time(trial.datetime_complete)
        rows["trials"].append((key, study, trial.number, trial.state.name, started, completed))
        for name, distribution in trial.distributions.items():
            internal = distribution.to_internal_repr(trial.params[name])
            rows["trial_params"].append((key, name, internal, distribution_to_json(distribution)))
        for place, value in enumerate(trial.values or ()):
            rows["trial_values"].append((key, place, *_stored_number(value)))
        for step, value in trial.intermediate_values.items():
            rows["trial_intermediate_values"].append((key, step, *_stored_number(value)))
        for name, value in trial.user_attrs.items():
            rows["trial_user_attributes"].append((key, name, json.dumps(value)))
        for name, value in trial.system_attrs.items():
            rows["trial_system_attributes"].append((key, name, json.dumps(value)))
    with storage.engine.begin() as connection:
        for table, columns in _COLUMNS.items():
            if rows[table]:
                places = ", ".join("?" for _ in columns)
                statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
                connection.exec_driver_sql(statement, rows[table])


def _stored_number(value: float) -> tuple[float | None, str]:
    """Give a float as Optuna's tables hold it: SQLite knows no NaN, other databases no infinity."""
    if math.isfinite(value):
        return value, "FINITE"
    if math.isnan(value):
        return None, "NAN"
    return None, "INF_POS" if value > 0 else "INF_NEG"


def _stored_time(local: datetime | None) -> str | None:
    """Give a local time of day as Optuna's tables hold it: UTC, without saying so."""
    if local is None:
        return None
    return local.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
