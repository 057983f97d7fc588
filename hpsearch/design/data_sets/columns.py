"""Detect the types of a table's columns and of its targets, and fit the columns' preprocessing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpsearch.design.data_sets.preprocessing import BOOLEANS, LARGEST, MISSING, bent, parse
from hpsearch.design.data_sets.reading import Array, DataSetError, is_number
from hpsearch.design.scores import SCORES

_MOST_CATEGORIES = 64
"""Maximum number of categories of a column with their own feature; the others share one."""

_TAIL = 15.0
"""A column has heavy tails if a value is more than this many spreads from the median. The largest of a billion values
of a normal distribution is about 6 spreads away."""

_EXACT = 2**53
"""Largest magnitude up to which a float represents every integer."""

_BEYOND = "it holds whole numbers beyond 2**53, which a float can't tell apart, as ids do"

_COMMA = re.compile(r"[+-]?[\d.' ]*\d,\d[\d,.]*")
_CODE = re.compile(r"0\d+")
_OTHER_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}.*")
_PAIRS = tuple(zip(list(BOOLEANS)[::2], list(BOOLEANS)[1::2], strict=True))
_MOST_ODD_TEXTS = 5
_LEAST_NUMBERS = 0.9


@dataclass
class SourceColumn:
    """A column's type and statistics."""

    name: str
    fitted: dict[str, Any] = field(default_factory=dict)
    """The column's entry in preprocessing.json."""
    values: Array = field(default_factory=lambda: np.empty(0))
    left_out: str = ""
    """Why the column isn't used; empty if it is used."""
    warning: str = ""


def look(name: str, cells: Sequence[str] | Array, location: Callable[[int], str]) -> SourceColumn:
    """Detect a column's type, and parse it.

    Raises:
        DataSetError: The type is ambiguous; the message names a row.
    """
    column = SourceColumn(name)
    if isinstance(cells, np.ndarray):
        column.fitted = {"name": name, "kind": "number"}
        if cells.dtype.kind in "iu" and max(abs(int(cells.min())), abs(int(cells.max()))) > _EXACT:
            column.left_out = _BEYOND
    else:
        present = Counter(cells)
        for text in MISSING:
            del present[text]
        if not present:
            column.left_out = "there is nothing in it"
            return column
        _see_kind(column, present, lambda text: location(cells.index(text)))
    if not column.left_out:
        column.values = parse(column.fitted, cells, location)
        _see_too_large(column, cells)
        _see_use(column)
    return column


def _see_too_large(column: SourceColumn, cells: Sequence[str] | Array) -> None:
    """Report finite numbers that count as missing because their squares would be infinite."""
    if column.fitted["kind"] != "number":
        return
    if isinstance(cells, np.ndarray):
        numbers = cells.astype(np.float64)
    else:
        missing = MISSING.union(column.fitted.get("missing_texts", ()))
        numbers = np.array([float(cell) for cell in cells if cell not in missing])
    count = int((np.isfinite(numbers) & (np.abs(numbers) > LARGEST)).sum())
    if count and count < len(numbers):
        warning = f"`{column.name}`: {count} numbers beyond {LARGEST:g} are taken as missing; scale the column down"
        column.warning = "; ".join(filter(None, [column.warning, warning]))


def _see_kind(column: SourceColumn, present: Counter[str], where: Callable[[str], str]) -> None:
    name, total = column.name, present.total()
    odd = [text for text in present if not is_number(text)]
    column.fitted = {"name": name, "kind": "number"}
    if not odd:
        if any(text[0] == "0" and _CODE.fullmatch(text) for text in present):
            column.fitted["kind"] = "category"  # 007 and 7 are different categories
        elif any(
            len(text) > 15 and "." not in text and text.lstrip("+-").isdecimal() and abs(int(text)) > _EXACT
            for text in present
        ):
            column.left_out = _BEYOND
        return
    if any({text.lower() for text in present} <= set(pair) for pair in _PAIRS):
        column.fitted["kind"] = "boolean"
        return
    if _see_dates(column, present, where):
        return
    comma = next((text for text in odd if _COMMA.fullmatch(text)), None)
    if comma is not None and all(_COMMA.fullmatch(text) for text in odd):
        raise DataSetError(
            f"{where(comma)}: column {name!r} must hold numbers with a decimal point and nothing between thousands, "
            f"got {comma!r}: write them so"
        )
    numbers = total - sum(present[text] for text in odd)
    if len(odd) <= _MOST_ODD_TEXTS and numbers >= _LEAST_NUMBERS * total:
        column.fitted["missing_texts"] = sorted(odd)
        some = ", ".join(f"{text!r} ({where(text)})" for text in sorted(odd))
        column.warning = f"`{name}` holds numbers, and {total - numbers} cells that are none, taken as missing: {some}"
        return
    column.fitted["kind"] = "category"
    if len(present) > 20 and len(present) > total / 2:
        if all(_OTHER_DATE.fullmatch(text) for text in present):
            column.left_out = "it seems to hold dates, which must be written as 2024-05-31"
        else:
            column.left_out = f"it holds {len(present)} different texts in {total} rows, as ids and sentences do"


def _see_dates(column: SourceColumn, present: Counter[str], where: Callable[[str], str]) -> bool:
    zones: dict[bool, str] = {}
    for text in present:
        for zoned in (False, True):
            try:
                parse({"name": column.name, "kind": "date", "zoned": zoned}, [text], str)
            except DataSetError:
                continue
            zones[zoned] = text
            break
        else:
            return False
    if len(zones) == 2:
        raise DataSetError(
            f"{where(zones[True])}: column {column.name!r} must hold times that all have a time zone, or none of which "
            f"has one, got {zones[True]!r} and {zones[False]!r}: write them all in one way"
        )
    column.fitted |= {"kind": "date", "zoned": True in zones}
    return True


def _see_use(column: SourceColumn) -> None:
    """Drop constant columns, and columns that only identify rows."""
    values = column.values
    if column.fitted["kind"] == "category":
        if len({value for value in values}) == 1:
            column.left_out = "it is the same in all rows"
        return
    present = values[~np.isnan(values)]
    if len(present) == 0:
        column.left_out = f"it holds no number up to {LARGEST:g}"
    elif len(present) == len(values) and (present == present[0]).all():
        column.left_out = "it is the same in all rows"
    elif column.fitted["kind"] == "number" and _counts(present) and len(present) == len(values):
        named = bool(re.search(r"(^|[_ ])(id|index|key)$|^column 1$|[a-z]I[dD]$|^row", column.name, re.IGNORECASE))
        if named or np.ptp(present) == len(present) - 1:
            column.left_out = "it numbers the rows"


def _counts(values: NDArray[np.float64]) -> bool:
    return bool((values == np.floor(values)).all()) and len(np.unique(values)) == len(values)


def fit(column: SourceColumn, rows: NDArray[np.int64]) -> None:
    """Fit the preprocessing of a column on the search rows."""
    fitted, values = column.fitted, column.values[rows]
    if fitted["kind"] == "category":
        counts = Counter(value for value in values if value is not None)
        least = max(3, len(rows) // 1000)
        often = [name for name, count in counts.most_common(_MOST_CATEGORIES) if count >= least]
        if len(often) == len(counts) - 1:  # a single one needs no encoding
            often = list(counts)
        fitted["categories"] = sorted(often)
        fitted["rare"] = sorted(set(counts) - set(often))
        fitted["others"] = bool(fitted["rare"])
        fitted["indicator"] = counts.total() < len(rows)
        return
    present = values[~np.isnan(values)]
    fitted["indicator"] = len(present) < len(values)
    if len(present) == 0:
        present = np.zeros(1)
    if fitted["kind"] == "date":
        fitted["cycles"] = ["year", "week"] + (["day"] if (present % 86400.0).any() else [])
    low, median, high = np.quantile(present, [0.25, 0.5, 0.75])
    spread = float(high - low) / 1.349 or float(np.std(present)) or 1.0  # as for a normal distribution, by quartiles
    fitted["median"], fitted["spread"] = float(median), spread
    fitted["log"] = fitted["kind"] == "number" and bool(np.abs(present - median).max() > _TAIL * spread)
    shaped = bent(fitted, np.where(np.isnan(values), median, values))
    fitted["mean"], fitted["scale"] = float(np.mean(shaped)), float(np.std(shaped)) or 1.0


GOALS = {name: score.kind for name, score in SCORES.items()}
"""Metrics that may be the goal, with the kind of targets that each needs."""

_MOST_CLASSES = 1000
_MOST_COUNTED_CLASSES = 20
"""Maximum number of different integers that count as classes, if no goal defines the kind."""

_LEAST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the rows that have one."""

    rows: NDArray[np.int64]
    """Indices of these rows."""
    values: NDArray[np.int64] | NDArray[np.float32]
    """Indices of classes (int64), or numbers (float32)."""
    classes: tuple[str, ...] | None
    """Labels as in the file; None if targets are numbers."""
    warnings: tuple[str, ...]


def see_targets(
    name: str, cells: Sequence[str] | Array, goal: str | None, location: Callable[[int], str], labelled: bool = False
) -> Targets:
    """Detect the kind of the targets.

    Args:
        name: Name of the target.
        cells: The targets as in the file.
        goal: The metric, which defines the kind; None: the kind is detected.
        location: Returns a row's location.
        labelled: Whether the targets are certainly labels, and none is missing.

    Raises:
        DataSetError: The targets don't match the goal, or there are too few.
    """
    if isinstance(cells, np.ndarray):
        cells = ["" if value is None or value != value else str(value).strip() for value in cells.tolist()]
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
        return Targets(rows, _numbers(name, present, rows, goal, location), None, tuple(warnings))
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


def _kind(counts: Counter[str]) -> str:
    if not all(map(is_number, counts)):
        return "classes"
    are_integers = all(float(label).is_integer() for label in counts)
    return "classes" if are_integers and len(counts) <= _MOST_COUNTED_CLASSES else "numbers"


def _in_order(counts: Counter[str]) -> tuple[str, ...]:
    if all(map(is_number, counts)):
        return tuple(sorted(counts, key=lambda label: (float(label), label)))
    return tuple(sorted(counts))


def _check_classes(name: str, counts: Counter[str], labelled: bool) -> None:
    if len(counts) < 2:
        raise DataSetError(f"{name!r} must have at least two classes, got {next(iter(counts))!r} alone")
    if len(counts) > _MOST_CLASSES or len(counts) > counts.total() / 2:
        alternative = "a goal of numbers, such as rmse" if all(map(is_number, counts)) else "another target"
        raise DataSetError(
            f"{name!r} must have at most {_MOST_CLASSES} classes, with two rows each on average, got {len(counts)} in "
            f"{counts.total()} rows: choose {alternative}"
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
    name: str, cells: Sequence[str], rows: NDArray[np.int64], goal: str | None, location: Callable[[int], str]
) -> NDArray[np.float32]:
    for_goal = "" if goal is None else f" for the goal {goal}"
    for row, cell in zip(rows.tolist(), cells, strict=True):
        if not is_number(cell) or not abs(float(cell)) <= LARGEST:
            raise DataSetError(f"{location(row)}: {name!r} must hold finite numbers{for_goal}, got {cell!r}")
    exact = np.array(cells, dtype=np.float64)
    if exact.min() == exact.max():
        raise DataSetError(f"{name!r} must have more than one value, got {cells[0]} in all rows")
    if np.abs(exact).max() > 1e30 or np.abs(exact.astype(np.float32) - exact).max() > 1e-3 * np.std(exact):
        raise DataSetError(
            f"{name!r} must differ from row to row by more than a float32 rounds off, got numbers from {exact.min():g} "
            f"to {exact.max():g}: subtract their mean, or divide by their size"
        )
    return exact.astype(np.float32)
