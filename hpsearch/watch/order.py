"""Trials in the order of a column, kept up as they change."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any

from hpsearch.trial import TrialRow

__all__ = ["Order"]

_Keyed = tuple[Any, int]
"""(What it is sorted by, number)."""


class Order:
    """A sorted list of rows with cheap updates: a changed trial takes about the same time however many there are.

    Args:
        key: Returns a row's sort key; None: it comes last.
        rows: All rows.
        descending: Sort in descending order; rows with key None still come last.
    """

    def __init__(self, key: Callable[[TrialRow], Any], rows: Iterable[TrialRow], descending: bool = False) -> None:
        self._key = key
        self._descending = descending
        self._keys: dict[int, Any] = {row.number: key(row) for row in rows}
        self._having: list[_Keyed] = sorted((of, number) for number, of in self._keys.items() if of is not None)
        self._lacking: list[_Keyed] = sorted((0, number) for number, of in self._keys.items() if of is None)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> int:
        """Return the trial at an index, from 0."""
        having = len(self._having)
        if index >= having:
            return self._lacking[index - having][1]
        return self._having[having - 1 - index if self._descending else index][1]

    def __contains__(self, trial: int) -> bool:
        return trial in self._keys

    def place(self, trial: int) -> int:
        """Return a trial's index."""
        key, having = self._keys[trial], len(self._having)
        if key is None:
            return having + bisect_left(self._lacking, (0, trial))
        place = bisect_left(self._having, (key, trial))
        return having - 1 - place if self._descending else place

    def take(self, row: TrialRow) -> None:
        """Add or update a row."""
        trial, key = row.number, self._key(row)
        if trial in self._keys:
            former = self._keys[trial]
            if former == key:
                return
            found = self._lacking if former is None else self._having
            del found[bisect_left(found, (0 if former is None else former, trial))]
        self._keys[trial] = key
        if key is None:
            insort(self._lacking, (0, trial))
        else:
            insort(self._having, (key, trial))
