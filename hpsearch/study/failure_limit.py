"""When a sweep has seen too many of its trials fail: a pure function of two counts."""

from __future__ import annotations

from dataclasses import dataclass

from hpsearch.errors import TrainableError
from hpsearch.events import Failed
from hpsearch.sweep.parts import MaxFailures

__all__ = ["Tally", "mistake_of", "too_many"]

_FIRST = 5
"""Trials that fail before any other comes through say that the next one would fail, too."""

_ENOUGH = 20
"""Trials from which on a share of failures says something."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many trials failed."""

    failed: int
    tried: int
    """Those that failed or reached the end of a segment, each once."""


def too_many(tally: Tally, limit: MaxFailures) -> bool:
    """Say whether so many trials failed that the sweep should end."""
    if limit == "none":
        return False
    if limit == "auto":
        least = _FIRST if tally.failed == tally.tried else _ENOUGH
        return tally.tried >= least and 2 * tally.failed >= tally.tried
    return tally.failed >= limit


def mistake_of(event: Failed, tally: Tally, limit: MaxFailures) -> TrainableError | None:
    """Give the mistake for which a sweep ends, now that a trial has failed; None: it goes on.

    Args:
        event: The failure, for good.
        tally: With this failure.
        limit: `limits.max_failures`.
    """
    failure = event.failure
    if failure.kind == "contract" and tally.failed == tally.tried:
        # Every trial would break it the same way.
        return TrainableError(failure.message)
    if not too_many(tally, limit):
        return None
    traceback = f"\n{failure.traceback.strip()}" if failure.traceback.strip() else ""
    return TrainableError(
        f"{tally.failed} of the {tally.tried} trials that were tried have failed; the last one, trial {event.trial}: "
        f"{failure.message}{traceback}\n"
        "they will run again when the sweep goes on, but for those whose rung is decided; to go on whatever fails: "
        "--set limits.max_failures=none"
    )
