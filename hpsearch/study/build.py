"""Build the searcher and the scheduler that a sweep names."""

from __future__ import annotations

from collections.abc import Callable

from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.full import FullLength
from hpsearch.searchers import PointsToTry, Searcher
from hpsearch.sweep.sweep import Sweep

__all__ = ["build_scheduler", "build_searcher"]


def build_searcher(sweep: Sweep, wrap: Callable[[Searcher], Searcher] = lambda searcher: searcher) -> PointsToTry:
    """Build the searcher that a sweep's `method` and `points_to_try` ask for.

    Args:
        sweep: What is searched.
        wrap: Gives what is asked in place of a searcher that learns, such as one that works off the loop.
    """
    searcher = sweep.searcher.build(sweep.parameters, sweep.seed)
    asked = wrap(searcher) if searcher.learns else searcher
    return PointsToTry(asked, sweep.points_to_try, sweep.parameters, sweep.seed)


def build_scheduler(sweep: Sweep) -> Scheduler:
    """Build the scheduler that a sweep's `early_terminate`, `max_iter` and `run_cap` ask for.

    Raises:
        SweepError: Their numbers leave nothing to run.
    """
    if sweep.early_terminate is None:
        return FullLength(sweep.max_iter, sweep.run_cap)
    return sweep.early_terminate.scheduler(sweep.objective, sweep.run_cap)
