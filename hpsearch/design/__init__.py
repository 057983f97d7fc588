"""A network for a data set: look at it, search, train the best on all rows, and say what it is worth on the test rows."""

from __future__ import annotations

from hpsearch.design.asked import Asked
from hpsearch.design.design import design, resume

__all__ = ["Asked", "design", "resume"]
