"""Schedulers: how far each trial goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.brackets import hyperband_brackets, successive_halving_bracket
from hpsearch.schedulers.full import FullLength
from hpsearch.schedulers.halving import BracketScheduler

if TYPE_CHECKING:
    from hpsearch.sweep import Sweep

__all__ = ["build_scheduler"]


def build_scheduler(sweep: Sweep) -> Scheduler:
    """Build the scheduler that a sweep's `early_terminate`, `max_iter` and `run_cap` ask for.

    Raises:
        SweepError: Their numbers leave nothing to run.
    """
    # Imported here, so that the sweep may check its own numbers with this package's arithmetic.
    from hpsearch.sweep import Hyperband, SuccessiveHalving

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
