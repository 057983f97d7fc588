"""The targets: classes or numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpsearch.design.data_sets.columns import is_number
from hpsearch.design.data_sets.preprocessing import LARGEST, MISSING, Values
from hpsearch.design.data_sets.reading import DataSetError

__all__ = ["GOALS", "Targets", "see_targets"]

GOALS = {
    "accuracy": "classes",
    "balanced_accuracy": "classes",
    "f1": "classes",
    "log_loss": "classes",
    "rmse": "numbers",
    "mae": "numbers",
    "r2": "numbers",
}
"""The metrics that may be a goal, and what each is of."""

_MOST_CLASSES = 1000
_MOST_COUNTED_CLASSES = 20
"""Most different integers that count as classes, if no goal defines the kind."""

_LEAST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the rows that have one."""

    rows: NDArray[np.int64]
    """Which they are."""
    values: NDArray[np.int64] | NDArray[np.float32]
    """Numbers of classes; or numbers."""
    classes: tuple[str, ...] | None
    """Labels as they were written; None where targets are numbers."""
    warnings: tuple[str, ...]


def see_targets(
    name: str, cells: Sequence[str] | Values, goal: str | None, place: Callable[[int], str], labelled: bool = False
) -> Targets:
    """Detect the kind of the targets.

    Args:
        name: Their name.
        cells: The targets, as written.
        goal: The metric, which defines the kind; None: it is detected.
        place: Returns a row's location.
        labelled: Whether they are certainly labels, and none is missing.

    Raises:
        DataSetError: They don't match the goal, or there are too few.
    """
    if isinstance(cells, np.ndarray):
        cells = [text(value) for value in cells.tolist()]
    missing = frozenset() if labelled else MISSING
    rows = np.array([row for row, cell in enumerate(cells) if cell not in missing], np.int64)
    if len(rows) < _LEAST_ROWS:
        raise DataSetError(f"{name}: must have at least {_LEAST_ROWS} rows with a target, got {len(rows)}")
    present = [cells[row] for row in rows]
    warnings = []
    if len(rows) < len(cells):
        absent = Counter(cell for cell in cells if cell in missing)
        written = ", ".join(repr(cell) for cell in sorted(absent))
        warnings.append(f"{absent.total()} rows are left out, whose target is missing (written {written})")
    counts = Counter(present)
    kind = GOALS[goal] if goal is not None else "classes" if labelled else _kind(counts)
    if kind == "numbers":
        return Targets(rows, _numbers(name, present, rows, goal, place), None, tuple(warnings))
    _check_classes(name, counts, labelled)
    few = [label for label, count in counts.items() if count < 10]
    if few:
        some = ", ".join(f"{label!r} has {counts[label]}" for label in sorted(few)[:5])
        some_classes = "1 class has" if len(few) == 1 else f"{len(few)} classes have"
        warnings.append(
            f"{some_classes} fewer than 10 rows, too few to learn and to test ({some}): add rows, or put "
            "classes together"
        )
    classes = _in_order(counts)
    numbers = {label: number for number, label in enumerate(classes)}
    values = np.array([numbers[label] for label in present], np.int64)
    return Targets(rows, values, classes, tuple(warnings))


def text(value: object) -> str:
    """Write a label of an array as a cell has it."""
    return "" if value is None or value != value else str(value).strip()


def _kind(counts: Counter[str]) -> str:
    if not all(map(is_number, counts)):
        return "classes"
    whole = all(float(label).is_integer() for label in counts)
    return "classes" if whole and len(counts) <= _MOST_COUNTED_CLASSES else "numbers"


def _in_order(counts: Counter[str]) -> tuple[str, ...]:
    if all(map(is_number, counts)):
        return tuple(sorted(counts, key=lambda label: (float(label), label)))
    return tuple(sorted(counts))


def _check_classes(name: str, counts: Counter[str], labelled: bool) -> None:
    if len(counts) < 2:
        raise DataSetError(f"{name!r} must have at least two classes, got {next(iter(counts))!r} alone")
    if len(counts) > _MOST_CLASSES or len(counts) > counts.total() / 2:
        wanted = "a goal of numbers, such as rmse" if all(map(is_number, counts)) else "another target"
        raise DataSetError(
            f"{name!r} must have at most {_MOST_CLASSES} classes, with two rows each on average, got {len(counts)} in "
            f"{counts.total()} rows: choose {wanted}"
        )
    written: dict[object, str] = {}
    for label in () if labelled else counts:
        key = float(label) if is_number(label) and len(label) < 16 else label
        if written.setdefault(key, label) != label:
            raise DataSetError(
                f"{name!r} must have each class written in one way, got {written[key]!r} and {label!r}, which are the "
                "same number"
            )


def _numbers(
    name: str, cells: Sequence[str], rows: NDArray[np.int64], goal: str | None, place: Callable[[int], str]
) -> NDArray[np.float32]:
    wanted = "" if goal is None else f" for the goal {goal}"
    for row, cell in zip(rows.tolist(), cells, strict=True):
        if not is_number(cell) or not abs(float(cell)) <= LARGEST:
            raise DataSetError(f"{place(row)}: {name!r} must hold finite numbers{wanted}, got {cell!r}")
    exact = np.array(cells, dtype=np.float64)
    if exact.min() == exact.max():
        raise DataSetError(f"{name!r} must have more than one value, got {cells[0]} in all rows")
    if np.abs(exact).max() > 1e30 or np.abs(exact.astype(np.float32) - exact).max() > 1e-3 * np.std(exact):
        raise DataSetError(
            f"{name!r} must differ from row to row by more than a float32 rounds off, got numbers from {exact.min():g} "
            f"to {exact.max():g}: subtract their mean, or divide by their size"
        )
    return exact.astype(np.float32)
