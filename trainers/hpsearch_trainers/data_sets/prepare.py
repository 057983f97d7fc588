"""Make a data set ready for a search: look at it, split it, and fit what makes a network's inputs of it."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpsearch_trainers.data_sets.columns import Column, fit, look
from hpsearch_trainers.data_sets.preprocessing import features
from hpsearch_trainers.data_sets.reading import DataSetError, read_table
from hpsearch_trainers.data_sets.raw_rows import write_rows
from hpsearch_trainers.data_sets.split import equal_rows, split
from hpsearch_trainers.data_sets.targets import GOALS, Targets, see_targets

__all__ = ["Prepared", "prepare"]

_STANDALONE = ("reading.py", "preprocessing.py", "predict.py")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was found in a data set, and made of it."""

    kind: str
    """`classes` or `numbers`: what is to be predicted."""
    classes: tuple[str, ...] | None
    """Labels as they were written, in the order of their numbers; None where the targets are numbers."""
    class_rows: tuple[int, ...] | None
    """Search rows of each class."""
    target: str | None
    """The column or array that holds the targets, where it has a name."""
    inputs: tuple[int, ...]
    """The shape of one input: (features,) or (channels, height, width)."""
    search_rows: int
    test_rows: int
    target_mean: float
    """Of the search rows' targets where they are numbers, and their standard deviation; 0 and 1 for classes."""
    target_scale: float
    lines: tuple[str, ...]
    """What was found, fit to print."""
    warnings: tuple[str, ...]
    """What may be wrong with the data, fit to print."""


def prepare(
    source: str | os.PathLike[str],
    target: str | None,
    folder: str | os.PathLike[str],
    *,
    goal: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    side: int | None = None,
) -> Prepared:
    """Look at a data set, split it, fit its preprocessing on the search rows, and write what the search needs.

    Into `folder` go

    - `data/search.npz` and `data/test.npz`: `inputs`, float32 of shape (rows, features), or uint8 or float32 of shape
      (rows, channels, height, width); and `targets`, int64 for classes, float32 for numbers in their own unit;
    - `data/test.csv`: of a table the test rows as they were written;
    - `data/task.json`: `kind`, `classes`, `class_rows`, `target`, `inputs`, `trained_rows`, `test_rows`, `target_mean`,
      `target_scale`, and for images `channel_means` and `channel_scales`, else null;
    - `model/`: `preprocessing.json`, `reading.py`, `preprocessing.py` and `predict.py`, which want `network.py` and
      `weights.pt` beside them. Into that network goes what `preprocessing.network_inputs` gives: rows as they are, images
      as (pixels - channel_means) / channel_scales. Of it come logits of the classes; or, of shape (rows, 1), numbers of
      which target_mean + target_scale * output is the prediction.

    Args:
        source: A CSV or Parquet file.
        target: The column to predict.
        folder: Where to; what lies there under these names is replaced.
        goal: The metric, one of `GOALS`; if None, what the targets are follows from how they look.
        test_share: Of the rows, to test on.
        seed: Of the split.
        side: Pixels of the longer side that images are made to have; if None, as they are, but at most 64.

    Raises:
        DataSetError: The data can't be used as they are.
    """
    if goal is not None and goal not in GOALS:
        raise DataSetError(f"goal: must be one of {', '.join(GOALS)}, got {goal!r}")
    if not 0 < test_share < 1:
        raise DataSetError(f"test_share: must lie between 0 and 1, got {test_share}")
    path, into = Path(source), Path(folder)
    table = read_table(path)
    if target not in table.columns:
        names = ", ".join(repr(name) for name in table.columns)
        raise DataSetError(f"target: must be one of the columns of {path}, got {target!r}; there are {names}")
    targets = see_targets(target, table.columns[target], goal, table.place)
    columns = [look(name, cells, table.place) for name, cells in table.columns.items() if name != target]
    used = [column for column in columns if not column.left_out]
    if not used:
        raise DataSetError(f"{path}: must have a column to predict {target!r} from, got none that tells anything")
    for column in used:
        column.values = column.values[targets.rows]
    groups = equal_rows([column.values for column in used])
    strata = targets.values if targets.classes is not None else np.zeros(len(groups), np.int64)
    search, test, whole = split(groups, strata.astype(np.int64), test_share, seed)
    for column in used:
        fit(column, search)
    inputs = np.concatenate([features(column.fitted, column.values) for column in used], axis=1)
    lines, warnings = _found(columns, targets, groups, whole)
    mean, scale = _unit(targets, search)
    fitted = {
        "format": 1,
        "examples": "table",
        "kind": "numbers" if targets.classes is None else "classes",
        "classes": targets.classes,
        "target": target,
        "target_mean": mean,
        "target_scale": scale,
        "inputs": list(inputs.shape[1:]),
        "columns": [column.fitted for column in used],
    }
    _write(into, inputs, targets, search, test, fitted)
    write_rows(into / "data" / "test.csv", table, targets.rows[test])
    return Prepared(
        fitted["kind"],
        targets.classes,
        _class_rows(targets, search),
        target,
        inputs.shape[1:],
        len(search),
        len(test),
        mean,
        scale,
        tuple(lines),
        (*targets.warnings, *warnings),
    )


def _unit(targets: Targets, search: NDArray[np.int64]) -> tuple[float, float]:
    if targets.classes is not None:
        return 0.0, 1.0
    values = targets.values[search].astype(np.float64)
    return float(values.mean()), float(values.std()) or 1.0


def _class_rows(targets: Targets, search: NDArray[np.int64]) -> tuple[int, ...] | None:
    if targets.classes is None:
        return None
    return tuple(np.bincount(targets.values[search].astype(np.int64), minlength=len(targets.classes)).tolist())


def _found(
    columns: list[Column], targets: Targets, groups: NDArray[np.int64], whole: bool
) -> tuple[list[str], list[str]]:
    kinds = Counter(column.fitted["kind"] for column in columns if not column.left_out)
    lines = [f"{len(columns)} columns: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())]
    lines += [f"`{column.name}` is left out: {column.left_out}" for column in columns if column.left_out]
    return lines, [column.warning for column in columns if column.warning]


def _write(
    folder: Path,
    inputs: NDArray[Any],
    targets: Targets,
    search: NDArray[np.int64],
    test: NDArray[np.int64],
    fitted: Mapping[str, Any],
) -> None:
    for name in ("data", "model"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, rows in (("search", search), ("test", test)):
        np.savez(folder / "data" / f"{name}.npz", inputs=inputs[rows], targets=targets.values[rows])
    task = {
        "kind": fitted["kind"],
        "classes": fitted["classes"],
        "class_rows": _class_rows(targets, search),
        "target": fitted["target"],
        "inputs": fitted["inputs"],
        "trained_rows": len(search),
        "test_rows": len(test),
        "target_mean": fitted["target_mean"],
        "target_scale": fitted["target_scale"],
        "channel_means": fitted.get("channel_means"),
        "channel_scales": fitted.get("channel_scales"),
    }
    for path, content in ((folder / "data/task.json", task), (folder / "model/preprocessing.json", fitted)):
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    for name in _STANDALONE:
        shutil.copyfile(Path(__file__).parent / name, folder / "model" / name)
