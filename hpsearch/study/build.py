"""Build the searcher and the scheduler that a sweep names."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from hpsearch.errors import SearcherError, exception_line
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.full import FullLength
from hpsearch.schedulers.race import Race
from hpsearch.searchers import Past, Searcher
from hpsearch.sweep.sweep import Sweep


def build_searcher(sweep: Sweep, past: Sequence[Past] = ()) -> Searcher:
    """Build the searcher for a sweep's `method`.

    Args:
        sweep: The sweep.
        past: Trials of other searches, for a warm start.

    Raises:
        SearcherError: The searcher can't use these trials.
    """
    searcher = sweep.searcher.build(sweep.problem)
    if past:
        try:
            searcher.recall(past)
        except Exception as error:
            raise SearcherError(
                f"a searcher must take what the search begins with, but {type(searcher).__name__}.recall raised "
                f"{exception_line(error)}. Mend it and resume the study, or begin with nothing in a new one.\n"
                f"{traceback.format_exc()}"
            ) from error
    return searcher


def build_scheduler(sweep: Sweep) -> Scheduler:
    """Build the scheduler for a sweep's `early_terminate`, `max_iter` and `run_cap`.

    Raises:
        SweepError: With these numbers no trial would run.
    """
    if sweep.repeats.racing:
        return Race(sweep.objective, sweep.repeats.n, sweep.max_iter, sweep.run_cap)
    if sweep.early_terminate is None:
        return FullLength(sweep.max_iter, sweep.run_cap, sweep.repeats.n)
    return sweep.early_terminate.scheduler(sweep.objective, sweep.run_cap)
