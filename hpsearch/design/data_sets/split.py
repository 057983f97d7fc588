"""Split rows into search rows and test rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpsearch.design.data_sets.preprocessing import Values

__all__ = ["Split", "equal_rows", "parted", "split"]


def equal_rows(columns: Sequence[Values]) -> NDArray[np.int64]:
    """Number the rows so that exactly the rows with equal values in all columns have the same number.

    Numbers are in order of first rows, so that draws among them don't depend on the values.

    Args:
        columns: Arrays of shape (rows,) or (rows, ...).
    """
    keys = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + _codes(column).astype(np.uint64)
        keys ^= keys >> np.uint64(29)  # so that low bits follow from high ones, too
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers].astype(np.int64)


def _codes(column: Values) -> NDArray[np.int64]:
    if column.ndim > 1:
        rows = np.ascontiguousarray(column.reshape(len(column), -1))
        found: dict[bytes, int] = {}
        return np.array([found.setdefault(row.tobytes(), len(found)) for row in rows], np.int64)
    if column.dtype == object:
        numbers: dict[object, int] = {}
        return np.array([numbers.setdefault(value, len(numbers)) for value in column], np.int64)
    return np.unique(column, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Split:
    """Which rows are for what, each in the order of the rows."""

    search: NDArray[np.int64]
    test: NDArray[np.int64]
    whole: bool
    """Whether rows with equal inputs are on the same side."""


def split(groups: NDArray[np.int64], classes: NDArray[np.int64], share: float, seed: int) -> Split:
    """Draw the test rows: the same fraction of each class, with the rows of a group on the same side.

    Groups are split if they are too large for the number of test rows.

    Args:
        groups: Group of each row, from `equal_rows`.
        classes: Class of each row; all equal without classes. A group counts by its first row's class.
        share: Fraction of the rows to test on.
        seed: Seed of the draw.
    """
    rng = np.random.default_rng(seed)
    test = _draw(groups, classes, share, rng)
    if abs(len(test) - share * len(groups)) > max(2, 0.25 * share * len(groups)):
        test = _draw(np.arange(len(groups)), classes, share, rng)
    chosen = np.zeros(len(groups), bool)
    chosen[test] = True
    return parted(groups, chosen)


def parted(groups: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Split:
    """Return the split with these test rows."""
    return Split(
        np.flatnonzero(~chosen), np.flatnonzero(chosen), not np.isin(groups[chosen], groups[~chosen]).any().item()
    )


def _draw(
    groups: NDArray[np.int64], classes: NDArray[np.int64], share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    of_class: dict[int, list[NDArray[np.int64]]] = {}
    for rows in members:
        of_class.setdefault(int(classes[rows[0]]), []).append(rows)
    drawn = []
    for number in sorted(of_class):
        count = sum(map(len, of_class[number]))
        wanted = round(share * count) or int(count >= 4)
        for index in rng.permutation(len(of_class[number])):
            rows = of_class[number][index]
            if len(rows) <= wanted:
                drawn.append(rows)
                wanted -= len(rows)
    return np.concatenate(drawn) if drawn else np.empty(0, np.int64)
