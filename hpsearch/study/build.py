"""Build the searcher and the scheduler that a sweep names."""

from __future__ import annotations

from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.full import FullLength
from hpsearch.searchers import Searcher
from hpsearch.sweep.sweep import Sweep

__all__ = ["build_scheduler", "build_searcher"]


def build_searcher(sweep: Sweep) -> Searcher:
    """Build the searcher that a sweep's `method` asks for."""
    return sweep.searcher.build(sweep.problem)


def build_scheduler(sweep: Sweep) -> Scheduler:
    """Build the scheduler that a sweep's `early_terminate`, `max_iter` and `run_cap` ask for.

    Raises:
        SweepError: Their numbers leave nothing to run.
    """
    if sweep.early_terminate is None:
        return FullLength(sweep.max_iter, sweep.run_cap)
    return sweep.early_terminate.scheduler(sweep.objective, sweep.run_cap)
