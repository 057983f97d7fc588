"""Searchers say what to try next."""

from __future__ import annotations

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.searchers.grid import GridSearcher
from hpsearch.searchers.points import PointsToTry
from hpsearch.searchers.random import RandomSearcher

__all__ = ["GridSearcher", "PointsToTry", "RandomSearcher", "Searcher", "Suggestion"]
