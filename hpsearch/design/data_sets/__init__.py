"""Reading and preparation of data sets for a search, and the code that predicts for new examples.

`prepare` analyzes a data set, splits it, and writes the files for a search. The files that it writes to `model/` run
without this package: the Python files are copies of `reading`, `preprocessing` and `predict`.
"""

from __future__ import annotations

from hpsearch.design.data_sets.columns import GOALS
from hpsearch.design.data_sets.prepare import Prepared, prepare
from hpsearch.design.data_sets.reading import DataSetError

__all__ = ["GOALS", "DataSetError", "Prepared", "prepare"]
