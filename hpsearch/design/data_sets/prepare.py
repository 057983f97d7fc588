"""Prepare a data set for a search: analyze it, split it, and fit the preprocessing of a network's inputs."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpsearch.design.data_sets.columns import GOALS, SourceColumn, Targets, fit, look, see_targets
from hpsearch.design.data_sets.preprocessing import features
from hpsearch.design.data_sets.reading import Array, DataSetError
from hpsearch.design.data_sets.sources import Examples, read_examples
from hpsearch_trainers.nearest import nearest

_STANDALONE = ("reading.py", "preprocessing.py", "predict.py")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared data set."""

    kind: str
    """`classes` or `numbers`: the kind of the targets."""
    classes: tuple[str, ...] | None
    """Labels as in the file, in the order of their indices; None if the targets are numbers."""
    class_rows: tuple[int, ...] | None
    """Number of search rows of each class."""
    target: str | None
    """Name of the column or array with the targets; None if it has no name."""
    inputs: tuple[int, ...]
    """The shape of one input: (features,) or (channels, height, width)."""
    search_rows: int
    test_rows: int
    target_mean: float
    """Mean of the search rows' targets if they are numbers, and their standard deviation; 0 and 1 for classes."""
    target_scale: float
    lines: tuple[str, ...]
    """Findings, as lines to print."""
    warnings: tuple[str, ...]
    """Warnings about the data, as lines to print."""


def prepare(
    source: str | os.PathLike[str],
    target: str | None,
    folder: str | os.PathLike[str],
    *,
    goal: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    side: int | None = None,
    look_up: Callable[[], object] = lambda: None,
) -> Prepared:
    """Analyze a data set, split it, fit its preprocessing on the search rows, and write the search's files.

    The files in `folder`:

    - `data/search.npz` and `data/test.npz`: `inputs`, float32 of shape (rows, features), or uint8 or float32 of shape
      (rows, channels, height, width); and `targets`, int64 for classes, float32 for numbers in their own unit;
    - `data/test.csv`, `data/test_rows.npz` or `data/test/`: the original test rows;
    - `data/task.json`: `kind`, `classes`, `class_rows`, `target`, `inputs`, `trained_rows`, `test_rows`, `target_mean`,
      `target_scale`, and `channel_means` and `channel_scales` for images, otherwise null;
    - `model/`: `preprocessing.json`, `predict.py`, and its modules. `predict.py` needs `network.py` and `weights.pt` in
      the same folder, and for `--trees` also `trees.joblib`, whose inputs are the files' `inputs`, flattened to a row.

    `preprocessing.network_inputs` computes the network's inputs: rows are unchanged, images become
    (pixels - channel_means) / channel_scales. The network's outputs are logits of the classes; or numbers of shape
    (rows, 1), where the prediction is target_mean + target_scale * output.

    Args:
        source: A CSV, Parquet or NPZ file; an IDX file with a file of labels, or a folder of these; or a folder with a
            folder of images for each class.
        target: The column to predict, or the array if its name is unusual; otherwise None.
        folder: The target folder; files with these names are replaced.
        goal: The metric, one of `GOALS`; None: the kind of the targets is detected.
        test_share: Fraction of the rows to test on.
        seed: Seed of the split.
        side: Longer side of the images in pixels; None: the original one, but at most 64.
        look_up: Called between steps. After the file is read, the longest step is that of a column. An exception in
            `look_up` ends the preparation.

    Raises:
        DataSetError: The data can't be used.
    """
    if goal is not None and goal not in GOALS:
        raise DataSetError(f"goal: must be one of {', '.join(GOALS)}, got {goal!r}{nearest(goal, GOALS)}")
    if not 0 < test_share < 1:
        raise DataSetError(f"test_share: must lie between 0 and 1, got {test_share}")
    if side is not None and side < 1:
        raise DataSetError(f"side: must be a number of pixels, at least 1, got {side}")
    examples = read_examples(Path(source), target, side)
    look_up()
    name = examples.target or "labels"
    targets = see_targets(name, examples.targets, goal, examples.location, examples.labelled)
    cells = dict(examples.columns)
    columns: list[SourceColumn] = []
    if examples.images is None:
        columns = _look(examples, targets, look_up)
        used = [column for column in columns if not column.left_out]
        groups = equal_rows([column.values for column in used])
    else:
        images = examples.images[targets.rows]
        groups = equal_rows([images])
    chosen = _split(examples, targets, groups, test_share, seed)
    if examples.images is None:
        for column in used:
            look_up()
            fit(column, chosen.search)
        inputs: NDArray[Any] = np.concatenate([features(column.fitted, column.values) for column in used], axis=1)
        fitted: dict[str, Any] = {"width": len(columns), "columns": [column.fitted for column in used]}
        lines_of_inputs = column_lines(columns)
        warnings = [column.warning for column in columns if column.warning] + leaks(used, targets)
    else:
        inputs, warnings = images, []
        fitted = fit_images(examples, images[chosen.search])
        lines_of_inputs = [image_line(inputs)]
    lines, more = split_lines(chosen, groups)
    class_rows = _class_rows(targets, chosen.search)
    for label, rows in zip(targets.classes or (), class_rows or (), strict=True):
        if rows == 0:
            more.append(f"class {label!r} has no row to search with, so that nothing can learn it")
    mean, scale = _unit(targets, chosen.search)
    fitted = {
        "format": 1,
        "kind": "numbers" if targets.classes is None else "classes",
        "classes": targets.classes,
        "target": examples.target,
        "target_mean": mean,
        "target_scale": scale,
        "inputs": list(inputs.shape[1:]),
        "array": examples.array,
        **fitted,
    }
    _write(Path(folder), inputs, targets, chosen, fitted, class_rows)
    write_raw_rows(Path(folder) / "data", examples, cells, targets.rows[chosen.test])
    return Prepared(
        kind=fitted["kind"],
        classes=targets.classes,
        class_rows=class_rows,
        target=examples.target,
        inputs=inputs.shape[1:],
        search_rows=len(chosen.search),
        test_rows=len(chosen.test),
        target_mean=mean,
        target_scale=scale,
        lines=(*lines, *lines_of_inputs, *examples.lines, target_line(targets, name)),
        warnings=(*targets.warnings, *warnings, *more),
    )


def _look(examples: Examples, targets: Targets, look_up: Callable[[], object]) -> list[SourceColumn]:
    """Detect the columns' types, and keep the rows with a target."""
    columns = []
    for name in list(examples.columns):
        look_up()
        column = look(name, examples.columns.pop(name), examples.location)  # pop: frees the column's cells
        if not column.left_out:
            column.values = column.values[targets.rows]
        columns.append(column)
    if all(column.left_out for column in columns):
        reasons = "; ".join(f"{column.name!r}: {column.left_out}" for column in columns[:5]) or "there are no others"
        raise DataSetError(
            f"{examples.path}: must have a column to predict from, got none that is informative ({reasons})"
        )
    return columns


def _split(examples: Examples, targets: Targets, groups: NDArray[np.int64], test_share: float, seed: int) -> Split:
    if examples.given_test is None:
        classes = np.zeros(len(groups), np.int64) if targets.classes is None else targets.values.astype(np.int64)
        chosen = split(groups, classes, test_share, seed)
    else:
        chosen = parted(groups, examples.given_test[targets.rows])
    if not len(chosen.test) or not len(chosen.search):
        raise DataSetError(
            f"{examples.path}: must have rows to search with and to test on, got {len(chosen.search)} and "
            f"{len(chosen.test)}: choose another share to test on"
        )
    return chosen


def _unit(targets: Targets, search: NDArray[np.int64]) -> tuple[float, float]:
    if targets.classes is not None:
        return 0.0, 1.0
    values = targets.values[search].astype(np.float64)
    return float(values.mean()), float(values.std()) or 1.0


def _class_rows(targets: Targets, search: NDArray[np.int64]) -> tuple[int, ...] | None:
    if targets.classes is None:
        return None
    return tuple(np.bincount(targets.values[search].astype(np.int64), minlength=len(targets.classes)).tolist())


def _write(
    folder: Path,
    inputs: NDArray[Any],
    targets: Targets,
    chosen: Split,
    fitted: Mapping[str, Any],
    class_rows: tuple[int, ...] | None,
) -> None:
    for name in ("data", "model"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, rows in (("search", chosen.search), ("test", chosen.test)):
        np.savez(folder / "data" / f"{name}.npz", inputs=inputs[rows], targets=targets.values[rows])
    names = ("kind", "classes", "target", "inputs", "target_mean", "target_scale", "channel_means", "channel_scales")
    rows_of = {"class_rows": class_rows, "trained_rows": len(chosen.search), "test_rows": len(chosen.test)}
    task = {name: fitted.get(name) for name in names} | rows_of
    for path, content in ((folder / "data/task.json", task), (folder / "model/preprocessing.json", fitted)):
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    for name in _STANDALONE:
        shutil.copyfile(Path(__file__).parent / name, folder / "model" / name)


_ROWS_AT_ONCE = 1000


def fit_images(examples: Examples, images: Array) -> dict[str, Any]:
    """Fit mean and scale of each channel on the search rows, (rows, channels, height, width)."""
    count = images.size // images.shape[1]
    chunks = [images[start : start + _ROWS_AT_ONCE] for start in range(0, len(images), _ROWS_AT_ONCE)]
    means = sum(chunk.sum((0, 2, 3), dtype=np.float64) for chunk in chunks) / count
    far = [np.square(chunk - means[:, None, None]).sum((0, 2, 3)) for chunk in chunks]
    scales = np.sqrt(sum(far) / count)
    if not np.isfinite(scales).all():
        raise DataSetError(
            f"{examples.path}: must have pixels whose squares a float can hold, got up to {images.max()}"
        )
    if not scales.any():
        raise DataSetError(f"{examples.path}: must have images that differ, got {images.min()} in all their pixels")
    return {
        "channel_means": means.tolist(),
        "channel_scales": np.where(scales > 0, scales, 1.0).tolist(),
        "bytes": images.dtype == np.uint8,
        "least": float(images.min()),
        "most": float(images.max()),
        "size": None if examples.size is None else list(examples.size),
    }


def image_line(images: Array) -> str:
    """Describe the images."""
    channels, height, width = images.shape[1:]
    kind = {1: "grey images", 3: "images in color"}.get(channels, f"images of {channels} channels")
    return f"{kind}, {height} x {width} pixels (height x width), " + (
        "in bytes" if images.dtype == np.uint8 else f"from {images.min():g} to {images.max():g}"
    )


def write_raw_rows(
    folder: Path, examples: Examples, columns: Mapping[str, Sequence[str] | NDArray[Any]], rows: NDArray[np.int64]
) -> None:
    """Write rows without their targets, as inputs of predict.py: a CSV or NPZ file, or a folder of images.

    Args:
        folder: Folder for `test.csv`, `test_rows.npz` or `test/`. The names of images are in the order of the rows.
        examples: The data set.
        columns: A table's columns, as read from the file.
        rows: Indices of the rows in the data set.
    """
    if examples.array is not None:
        images = examples.images
        array = np.stack(list(columns.values()), 1)[rows] if images is None else images[rows]
        if images is not None and array.shape[1] == 1:
            array = array[:, 0]  # images of one channel are usually stored without the axis
        named: dict[str, Any] = {examples.array: array}
        np.savez(folder / "test_rows.npz", **named)
    elif examples.images is None:
        with (folder / "test.csv").open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
            lines.writerow(columns)
            lines.writerows([cells[row] for cells in columns.values()] for row in rows.tolist())
    else:
        (folder / "test").mkdir(exist_ok=True)
        for number, row in enumerate(rows.tolist()):
            image = Path(examples.location(row))
            shutil.copyfile(image, folder / "test" / f"{number:09}{image.suffix}")


_MOST_NAMES = 5
_PLURALS = {"number": "numbers", "category": "categories", "boolean": "booleans", "date": "dates"}


def column_lines(columns: Sequence[SourceColumn]) -> list[str]:
    """Describe the columns' types, missing values, and dropped columns."""
    used = [column for column in columns if not column.left_out]
    kinds = Counter(column.fitted["kind"] for column in used)
    parts = [f"{count} {kind if count == 1 else _PLURALS[kind]}" for kind, count in kinds.most_common()]
    if len(used) < len(columns):
        parts.append(f"{len(columns) - len(used)} left out")
    shares = {column.name: _absent(column.values) for column in used}
    missing = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    line = f"{len(columns)} columns: {', '.join(parts)}" if len(columns) > 1 else f"1 column: {', '.join(parts)}"
    if missing:
        line += "; missing: " + _some([f"{100 * shares[name]:.2g} % in `{name}`" for name in missing])
    lines = [line]
    reasons: dict[str, list[str]] = {}
    for column in columns:
        if column.left_out:
            reasons.setdefault(column.left_out, []).append(f"`{column.name}`")
    lines += [f"left out: {_some(names)}: {reason}" for reason, names in reasons.items()]
    tails = [f"`{column.name}`" for column in used if column.fitted.get("log")]
    if tails:
        lines.append(f"logarithms are taken, as tails are heavy: {_some(tails)}")
    return lines


def _absent(values: Array) -> float:
    if values.dtype == object:
        return sum(value is None for value in values) / len(values)
    return float(np.isnan(values).mean())


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def target_line(targets: Targets, name: str) -> str:
    """Describe the targets."""
    if targets.classes is None:
        values = targets.values
        return (
            f"{name}: numbers from {values.min():.6g} to {values.max():.6g}, on average {values.mean(dtype=float):.6g}"
        )
    counts = np.bincount(targets.values.astype(np.int64), minlength=len(targets.classes))
    shares = [
        f"{targets.classes[number]!r} {100 * counts[number] / counts.sum():.2g} %" for number in np.argsort(-counts)
    ]
    shown = ", ".join(shares) if len(shares) <= _MOST_NAMES else f"from {shares[0]} to {shares[-1]}"
    return f"{name}: {len(shares)} classes: {shown}"


def split_lines(split: Split, groups: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """Return a description of the split, and warnings about it."""
    lines = [f"{len(groups)} rows: {len(split.search)} to search with, {len(split.test)} to test on"]
    repeated = len(groups) - len(np.unique(groups))
    if repeated and split.keeps_groups:
        lines.append(f"{repeated} rows have the same inputs as another; such rows lie on one side of the split")
    if split.keeps_groups:
        return lines, []
    shared = int(np.isin(groups[split.test], groups[split.search]).sum())
    return lines, [f"{shared} of the {len(split.test)} test rows have the same inputs as one that the search sees"]


def leaks(columns: Sequence[SourceColumn], targets: Targets) -> list[str]:
    """Return the columns that determine the target."""
    warnings = []
    answers = equal_rows([targets.values])
    for column in columns:
        if targets.classes is None:
            is_leak = column.values.dtype != object and _follows(column.values, targets.values.astype(np.float64))
        else:
            codes = equal_rows([column.values])
            pairs = equal_rows([codes, answers])
            is_leak = codes.max() == answers.max() == pairs.max()
        if is_leak:
            warnings.append(
                f"`{column.name}` tells the target: each value of one goes with one of the other; leave it out unless "
                "it is known before the target is"
            )
    return warnings


def _follows(values: NDArray[np.float64], targets: NDArray[np.float64]) -> bool:
    """Return whether numbers are a linear function of the targets, up to float32 rounding."""
    there = ~np.isnan(values)
    if there.sum() < 3 or np.ptp(values[there]) == 0 or np.ptp(targets[there]) == 0:
        return False
    first, second = (
        (column - column.mean()) / np.abs(column - column.mean()).max() for column in (values[there], targets[there])
    )
    return bool(abs(first @ second) > (1 - 1e-9) * np.sqrt((first @ first) * (second @ second)))


def equal_rows(columns: Sequence[Array]) -> NDArray[np.int64]:
    """Return a group number for each row; rows have the same number if they are equal in all columns.

    Groups are numbered by their first rows, so that sampling of groups doesn't depend on the values.

    Args:
        columns: Arrays of shape (rows,) or (rows, ...).
    """
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if column.ndim > 1:
            column = np.fromiter((row.tobytes() for row in np.ascontiguousarray(column)), object, len(column))
        codes, _ = pd.factorize(column, use_na_sentinel=False)
        numbers, _ = pd.factorize(numbers * len(numbers) + codes)
    return numbers


@dataclass(frozen=True, slots=True)
class Split:
    """Search rows and test rows, each in the order of the data set."""

    search: NDArray[np.int64]
    test: NDArray[np.int64]
    keeps_groups: bool
    """Whether rows with equal inputs are on the same side."""


def split(groups: NDArray[np.int64], classes: NDArray[np.int64], fraction: float, seed: int) -> Split:
    """Sample the test rows: the same fraction of each class, with the rows of a group on the same side.

    Groups are split if they are too large for the number of test rows.

    Args:
        groups: Group of each row, from `equal_rows`.
        classes: Class of each row; all equal without classes. A group counts by its first row's class.
        fraction: Fraction of the rows to test on.
        seed: Seed of the sample.
    """
    rng = np.random.default_rng(seed)
    test = _draw(groups, classes, fraction, rng)
    if abs(len(test) - fraction * len(groups)) > max(2, 0.25 * fraction * len(groups)):
        test = _draw(np.arange(len(groups)), classes, fraction, rng)
    chosen = np.zeros(len(groups), bool)
    chosen[test] = True
    return parted(groups, chosen)


def parted(groups: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Split:
    """Return the split with these test rows."""
    return Split(
        np.flatnonzero(~chosen), np.flatnonzero(chosen), not np.isin(groups[chosen], groups[~chosen]).any().item()
    )


def _draw(
    groups: NDArray[np.int64], classes: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    of_class: dict[int, list[NDArray[np.int64]]] = {}
    for rows in members:
        of_class.setdefault(int(classes[rows[0]]), []).append(rows)
    drawn = []
    for number in sorted(of_class):
        count = sum(map(len, of_class[number]))
        remaining = round(fraction * count) or int(count >= 4)
        for index in rng.permutation(len(of_class[number])):
            rows = of_class[number][index]
            if len(rows) <= remaining:
                drawn.append(rows)
                remaining -= len(rows)
    return np.concatenate(drawn) if drawn else np.empty(0, np.int64)
