"""Data sets as they lie in files, made ready for a search, and the code that predicts for new ones.

`prepare` looks at a data set, splits it, and writes what a search needs. What it leaves under `model/` runs without
this package: its Python files are copies of `reading`, `preprocessing` and `predict`.
"""

from __future__ import annotations

from hpsearch.design.data_sets.columns import GOALS
from hpsearch.design.data_sets.prepare import Prepared, prepare
from hpsearch.design.data_sets.reading import DataSetError

__all__ = ["GOALS", "DataSetError", "Prepared", "prepare"]
