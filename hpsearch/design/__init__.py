"""A network for a data set: look at it, search, train the best on all rows, and test it on rows that nothing saw."""

from __future__ import annotations

from hpsearch.design.asked import Asked
from hpsearch.design.design import design, resume

__all__ = ["Asked", "design", "resume"]
