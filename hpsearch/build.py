"""Build the searcher and the scheduler that a sweep names."""

from __future__ import annotations

from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.brackets import hyperband_brackets, successive_halving_bracket
from hpsearch.schedulers.full import FullLength
from hpsearch.schedulers.halving import BracketScheduler
from hpsearch.searchers import GridSearcher, PointsToTry, RandomSearcher, Searcher
from hpsearch.sweep import Hyperband, SuccessiveHalving, Sweep

__all__ = ["build_scheduler", "build_searcher"]


def build_searcher(sweep: Sweep) -> Searcher:
    """Build the searcher that a sweep's `method` and `points_to_try` ask for."""
    searcher: Searcher
    if sweep.method == "grid":
        searcher = GridSearcher(sweep.parameters)
    else:
        searcher = RandomSearcher(sweep.parameters, sweep.seed)
    if not sweep.points_to_try:
        return searcher
    return PointsToTry(searcher, sweep.points_to_try, sweep.parameters, sweep.seed)


def build_scheduler(sweep: Sweep) -> Scheduler:
    """Build the scheduler that a sweep's `early_terminate`, `max_iter` and `run_cap` ask for.

    Raises:
        SweepError: Their numbers leave nothing to run.
    """
    goal = sweep.metric.goal
    match sweep.early_terminate:
        case None:
            return FullLength(sweep.max_iter, sweep.run_cap)
        case SuccessiveHalving(max_iter=max_iter, min_iter=min_iter, eta=eta, trials=trials):
            bracket = successive_halving_bracket(max_iter, min_iter, eta, trials)
            return BracketScheduler((bracket,), eta, goal, sweep.run_cap)
        case Hyperband(max_iter=max_iter, min_iter=min_iter, eta=eta, variant=variant, brackets=brackets):
            cycle = hyperband_brackets(max_iter, min_iter, eta, variant)
            return BracketScheduler(cycle, eta, goal, sweep.run_cap, brackets)
