"""Which rungs a screen shows: all of them while they are few, sums where they are many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hpsearch.schedulers.base import RungView

__all__ = ["RungRow", "rung_rows"]


@dataclass(frozen=True, slots=True)
class RungRow:
    """One line: a rung, or the sum of several."""

    bracket: str
    rung: str
    until: str
    started: int
    finished: int
    size: int | None
    """Trials that will run there; None where no bound is known."""


def rung_rows(rungs: Sequence[RungView], most: int) -> list[RungRow]:
    """Return at most `most` lines for all rungs.

    Finished brackets become one line. If the others are still too many, they are summed by the last iteration of their
    rungs, and finally the rest into one line.
    """
    if len(rungs) <= most:
        return [_row([rung]) for rung in rungs]
    brackets = _grouped(rungs, lambda rung: rung.bracket)
    done = [rung for bracket in brackets if _is_done(bracket) for rung in bracket]
    open_ = [rung for bracket in brackets if not _is_done(bracket) for rung in bracket]
    room = most - (1 if done else 0)
    groups = [[rung] for rung in open_]
    if len(groups) > room:
        groups = _grouped(open_, lambda rung: math.inf if rung.until is None else rung.until)
    if len(groups) > room:
        groups = [*groups[: room - 1], [rung for group in groups[room - 1 :] for rung in group]]
    return [_row(group) for group in ([done, *groups] if done else groups)]


def _grouped(rungs: Iterable[RungView], key: Callable[[RungView], float]) -> list[list[RungView]]:
    """Return the rungs of equal keys together, in the order of the keys."""
    return [list(group) for _, group in groupby(sorted(rungs, key=key), key)]


def _is_done(bracket: Iterable[RungView]) -> bool:
    return all(rung.size is not None and rung.finished >= rung.size for rung in bracket)


def _row(rungs: Sequence[RungView]) -> RungRow:
    sizes = [rung.size for rung in rungs]
    return RungRow(
        bracket=_span([rung.bracket for rung in rungs]),
        rung=_span([rung.rung for rung in rungs]),
        until=_span([rung.until for rung in rungs]),
        started=sum(rung.started for rung in rungs),
        finished=sum(rung.finished for rung in rungs),
        size=None if None in sizes else sum(size for size in sizes if size is not None),
    )


def _span(numbers: Iterable[int | None]) -> str:
    """Format numbers: `3`, or `0 to 7`, or `end` for None."""
    known = [number for number in numbers if number is not None]
    if not known:
        return "end"
    low, high = min(known), max(known)
    return str(low) if low == high else f"{low} to {high}"
