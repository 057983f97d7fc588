"""The reasons of decisions in words, as tables and TensorBoard show them."""

from __future__ import annotations

from hpsearch.objective import is_valid
from hpsearch.schedulers.base import Outcome

__all__ = ["ordinal", "passed_over", "ran", "ranked", "unopened"]


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, ..., 11th, ..., 21st."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def ranked(outcome: Outcome, rung: int, rank: int, size: int, promoted: int) -> str:
    """Return a trial's rank in its rung: `"rung 2: 7th of 9, top 3 go on"`."""
    nan = " (NaN)" if outcome.value is not None and not is_valid(outcome.value) else ""
    verb = "goes" if promoted == 1 else "go"
    return f"rung {rung}: {ordinal(rank)} of {size}{nan}, top {promoted} {verb} on"


def passed_over(rung: int, rank: int, size: int, top: int, nan: bool) -> str:
    """Return the rank of a trial that was never promoted: `"rung 2: 7th of 9 at the end, top 3 go on"`."""
    if nan:
        return f"rung {rung}: NaN, which never goes on"
    verb = "goes" if top == 1 else "go"
    return f"rung {rung}: {ordinal(rank)} of {size} at the end, top {top} {verb} on"


def unopened(rung: int, rank: int, size: int, nan: bool) -> str:
    """Return a trial's rank in the highest rung that was opened: `"rung 2: 7th of 9 at the end, no rung was ..."`."""
    shown = " (NaN)" if nan else ""
    return f"rung {rung}: {ordinal(rank)} of {size}{shown} at the end, no rung was opened after it"


def ran(outcome: Outcome, until: int | None) -> str:
    """Return how far a complete trial ran: `"ran all 27 iterations"`."""
    if until is None:
        return f"ended by itself after {_iterations(outcome.iteration)}"
    if outcome.iteration < until:
        return f"ended by itself after {outcome.iteration} of {_iterations(until)}"
    return f"ran all {_iterations(until)}" if until > 1 else "ran its 1 iteration"


def _iterations(count: int) -> str:
    return "1 iteration" if count == 1 else f"{count} iterations"
