"""A study for other tools: CSV and Parquet, and an Optuna journal that optuna-dashboard opens."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpsearch.export.optuna_storage import check_replaceable, write_optuna_storage
from hpsearch.journal.filesystem import put_in_place
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import csv_field
from hpsearch.tables.trials import REPORTS_NAME, TRIALS_NAME, reports_csv, trials_csv, trials_dataframe
from hpsearch.trial import Report, TrialRow

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OPTUNA_NAME", "PARQUET_NAME", "export_study"]

PARQUET_NAME = "trials.parquet"
OPTUNA_NAME = "optuna.log"


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

    Each file is replaced atomically.

    Args:
        rows: All trials, by number.
        sweep: Defines the params, in the order of the columns, the metric and the name.
        directory: Created if missing.
        curves: (iteration, metric) of every report that counts, by trial: Optuna's intermediate values.
        times: First start and last end of each trial, in seconds since the epoch.
        identity: Of the study: only its own earlier export is replaced.
        reports: Reports that count, by trial and iteration.

    Raises:
        HpsearchError: `optuna.log` exists and isn't this study's earlier export.
    """
    check_replaceable(directory / OPTUNA_NAME, identity)
    directory.mkdir(parents=True, exist_ok=True)
    # Built elsewhere and copied: Optuna syncs its file for each trial, and a study's directory may be on a network.
    names = sweep.parameters.columns(row.params for row in rows)
    with tempfile.TemporaryDirectory(prefix="hpsearch-export-") as scratch:
        built = [Path(scratch) / name for name in (TRIALS_NAME, PARQUET_NAME)]
        built[0].write_text(trials_csv(rows, sweep), encoding="utf-8", newline="\n")
        frame = trials_dataframe(rows, names, metrics=True, objective=sweep.objective)
        _for_parquet(frame).to_parquet(built[1], index=False)
        if sweep.objective.goals:  # a study of Optuna's has one at least
            built.append(Path(scratch) / OPTUNA_NAME)
            write_optuna_storage(built[2], rows, sweep, curves, times, identity)
        built.append(Path(scratch) / REPORTS_NAME)
        built[-1].write_text(reports_csv(reports), encoding="utf-8", newline="\n")
        return [_put_in_place(path, directory) for path in built]


def _for_parquet(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a column that holds several kinds of values as the CSV's strings: Parquet's have one type each.

    But for metrics, which are floats, and null where nothing was reported.
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


def _put_in_place(path: Path, directory: Path) -> Path:
    target = directory / path.name
    put_in_place(path.read_bytes(), target)
    return target
