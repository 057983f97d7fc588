"""Rows of a table as they were written, so that what is delivered can be tested on what users will give it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpsearch_trainers.data_sets.reading import Table

__all__ = ["write_rows"]


def write_rows(path: Path, table: Table, rows: NDArray[np.int64]) -> None:
    """Write some rows with all of their columns, the target's too, as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        lines.writerow(table.columns)
        lines.writerows([cells[row] for cells in table.columns.values()] for row in rows.tolist())
