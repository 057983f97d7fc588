"""Rows of a data set as they came, so that what is delivered can be tested on what users will give it."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpsearch_trainers.data_sets.sources import Examples

__all__ = ["write_raw_rows"]


def write_raw_rows(
    folder: Path, examples: Examples, columns: Mapping[str, Sequence[str] | NDArray[Any]], rows: NDArray[np.int64]
) -> None:
    """Write some rows, without their targets, where predict.py reads them: a CSV or NPZ file, or a folder of images.

    Args:
        folder: Gets `test.csv`, `test_rows.npz` or `test/`, whose files have names in the order of the rows.
        examples: The data set.
        columns: Of a table, as they were read.
        rows: Their numbers in the data set.
    """
    if examples.array is not None:
        found = examples.images
        array = np.stack(list(columns.values()), 1)[rows] if found is None else found[rows]
        if found is not None and array.shape[1] == 1:
            array = array[:, 0]  # as images of one channel usually are kept
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
            image = Path(examples.place(row))
            shutil.copyfile(image, folder / "test" / f"{number:09}{image.suffix}")
