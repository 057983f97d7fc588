"""Exports a study for other tools: CSV, Parquet, and an Optuna journal file for optuna-dashboard."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hpsearch.config.import_paths import is_installed
from hpsearch.errors import HpsearchError
from hpsearch.journal.filesystem import put_in_place
from hpsearch.objective import Objective, excesses_of
from hpsearch.results.optuna_distributions import OptunaParameter, optuna_parameter, quiet_optuna
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import csv_field, strict_json
from hpsearch.tables.trials import REPORTS_NAME, TRIALS_NAME, reports_csv, trials_csv, trials_dataframe
from hpsearch.trial import Report, TrialRow, TrialState

if TYPE_CHECKING:
    import pandas as pd
    from optuna.trial import FrozenTrial

PARQUET_NAME = "trials.parquet"
OPTUNA_NAME = "optuna.log"

MARK = "hpsearch"
"""User attribute of an Optuna study that holds our study's identity."""


def export_study(
    rows: Sequence[TrialRow],
    sweep: Sweep,
    directory: Path,
    curves: Mapping[int, Sequence[tuple[int, float]]],
    times: Mapping[int, tuple[float, float | None]],
    identity: str,
    reports: Mapping[int, Sequence[Report]],
) -> list[Path]:
    """Write `trials.csv`, `trials.parquet`, `optuna.log` and `reports.csv` into a directory; return their paths.

    Each file is replaced atomically. Without pyarrow, `trials.parquet` is left out.

    Args:
        rows: All trials, by number.
        sweep: Sweep that defines the params and the order of their columns, the metric and the name.
        directory: Output directory, which is created if missing.
        curves: (iteration, metric) of every report that counts, by trial. They become Optuna's intermediate values.
        times: First start and last end of each trial, in seconds since the epoch.
        identity: The study's identity. Only an earlier export of the same study is replaced.
        reports: Reports that count, by trial and iteration.

    Raises:
        HpsearchError: `optuna.log` exists and isn't this study's earlier export.
    """
    _check_replaceable(directory / OPTUNA_NAME, identity)
    directory.mkdir(parents=True, exist_ok=True)
    names = sweep.parameters.columns(row.params for row in rows)
    files = {TRIALS_NAME: trials_csv(rows, sweep).encode()}
    if is_installed("pyarrow"):
        frame = trials_dataframe(rows, names, metrics=True, objective=sweep.objective)
        files[PARQUET_NAME] = _for_parquet(frame).to_parquet(index=False)
    if sweep.objective.goals:  # an Optuna study has at least one
        # Written to a temporary directory: Optuna syncs its file for each trial, and a study's directory may be on a
        # network file system.
        with tempfile.TemporaryDirectory(prefix="hpsearch-export-") as scratch:
            path = Path(scratch) / OPTUNA_NAME
            write_optuna_storage(path, rows, sweep, curves, times, identity)
            files[OPTUNA_NAME] = path.read_bytes()
    files[REPORTS_NAME] = reports_csv(reports).encode()
    for name, content in files.items():
        put_in_place(content, directory / name)
    return [directory / name for name in files]


def _for_parquet(frame: pd.DataFrame) -> pd.DataFrame:
    """Prepare a DataFrame for Parquet, whose columns have one type each.

    A column with several types of values gets the strings of the CSV. Metrics are floats, or null if nothing was
    reported.
    """
    import pandas as pd
    import pyarrow as pa

    frame = frame.copy()
    for name in frame.columns:
        if name.startswith("metrics."):
            # pandas itself would turn NaN into null.
            array = pa.array(frame[name].tolist(), type=pa.float64(), from_pandas=False)
            frame[name] = pd.Series(pd.arrays.ArrowExtensionArray(array))
        elif frame[name].dtype == object:
            frame[name] = [None if value is None or value is pd.NA else csv_field(value) for value in frame[name]]
    return frame


def write_optuna_storage(
    path: Path,
    rows: Sequence[TrialRow],
    sweep: Sweep,
    curves: Mapping[int, Sequence[tuple[int, float]]],
    times: Mapping[int, tuple[float, float | None]],
    identity: str,
) -> None:
    """Write a new Optuna journal file with one study.

    SQLite isn't used, as Optuna makes several queries per value, which takes minutes for 10,000 trials.

    Stopped trials become PRUNED. Failed trials and trials without a value become FAIL. So Optuna's best trial is the
    best completed trial. Outcome constraints become those of `Trial.set_constraint`. The rest of a row is stored in
    user attributes. A parameter whose values Optuna would change is also a user attribute: `params.<name>`, in JSON.

    Args:
        path: Path of the new file, which must not exist.
        rows: All trials, numbered from 0 without gaps.
        sweep: Sweep that defines the distributions, the metric, and the study's name in the storage.
        curves: (iteration, metric) by trial. They become intermediate values, which Optuna only has for a single goal.
        times: First start and last end of each trial, in seconds since the epoch.
        identity: Our study's identity, which marks the file as an export of this study.
    """
    with quiet_optuna():
        import optuna
        from optuna.storages.journal import JournalFileBackend

        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
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
            _trial(row, parameters, curves.get(row.number, ()), times.get(row.number), sweep.objective) for row in rows
        ]
        # Study.add_trials refuses a trial without times, which was pruned before it started.
        study_id = storage.get_study_id_from_name(sweep.name)
        for trial in trials:
            storage.create_new_trial(study_id, template_trial=trial)


def _check_replaceable(path: Path, identity: str) -> None:
    """Check that a file doesn't exist, or contains only an earlier export of this study.

    Raises:
        HpsearchError: The file contains other data, which would be lost.
    """
    if not path.exists():
        return
    if not is_journal_file(path):
        raise _not_ours(path, "a file that isn't a journal of Optuna's")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        studies = JournalStorage(JournalFileBackend(str(path))).get_all_studies()
    except Exception as error:
        raise _not_ours(path, f"a file that Optuna can't read ({type(error).__name__}: {error})") from error
    foreign = [study.study_name for study in studies if study.user_attrs.get(MARK) != identity]
    if foreign:
        raise _not_ours(path, f"the Optuna study {foreign[0]!r}")


def is_journal_file(path: Path) -> bool:
    """Return whether a file is an Optuna journal file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"op_code"')


def _not_ours(path: Path, content: str) -> HpsearchError:
    return HpsearchError(
        f"{path}: expected no file, or a former export of this very study; got {content}, which is left as it is. "
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
    active = {name: parameter for name, parameter in parameters.items() if parameter is not None and name in row.params}
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
        **{f"params.{name}": json.dumps(value) for name, value in row.params.items() if name not in active},
    }
    trial = create_trial(
        state=state,
        values=row.values if has_value and row.values else None,
        params={name: parameter.value(row.params[name]) for name, parameter in active.items()},
        distributions={name: parameter.distribution for name, parameter in active.items()},
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
    """Return a time in the format of Optuna's trials: local time without a time zone."""
    return None if when is None else datetime.fromtimestamp(when)
