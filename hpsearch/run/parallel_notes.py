"""Notes on parallel trials, before a sweep runs."""

from __future__ import annotations

from hpsearch.sweep.parallel import STRATEGY
from hpsearch.sweep.sweep import Sweep

__all__ = ["parallel_notes"]


def parallel_notes(sweep: Sweep) -> list[str]:
    """Return which strategies aren't reproducible."""
    asynchronous = sweep.strategies.asynchronous
    if not asynchronous:
        return []
    return [
        f"{STRATEGY} {', '.join(asynchronous)}: workers don't wait for each other, so the same trial gives other "
        "numbers each time; its row says asynchronous"
    ]
