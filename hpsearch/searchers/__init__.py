"""Searchers say what to try next."""

from __future__ import annotations

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.searchers.grid import GridSearcher
from hpsearch.searchers.points import PointsToTry
from hpsearch.searchers.random import RandomSearcher
from hpsearch.seeds import trial_seed
from hpsearch.sweep import Sweep

__all__ = [
    "GridSearcher",
    "PointsToTry",
    "RandomSearcher",
    "Searcher",
    "Suggestion",
    "build_searcher",
    "trial_seed",
]


def build_searcher(sweep: Sweep) -> Searcher:
    """Build the searcher that a sweep asks for."""
    searcher: Searcher
    if sweep.method == "grid":
        searcher = GridSearcher(sweep.parameters)
    else:
        searcher = RandomSearcher(sweep.parameters, sweep.seed)
    if not sweep.points_to_try:
        return searcher
    return PointsToTry(searcher, sweep.points_to_try, sweep.parameters, sweep.seed)
