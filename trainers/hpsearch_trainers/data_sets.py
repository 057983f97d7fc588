"""Former import path of `hpsearch.design.data_sets`."""

from __future__ import annotations

from hpsearch.design.data_sets import GOALS, DataSetError, Prepared, prepare

__all__ = ["GOALS", "DataSetError", "Prepared", "prepare"]
