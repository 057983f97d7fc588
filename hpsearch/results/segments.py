"""The segments of a study: every one that was started, its width and the reason for it, and its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from hpsearch.events import Ended, Event, Failed, Finished, Lost, Opened, Reverted, Started


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One started segment, as tables show it."""

    trial: int
    attempt: int
    start: int
    """Iterations done before it."""
    end: int | None
    """Iteration that it was to run to; None: until the trainable returns."""
    width: int
    """Workers that ran it together."""
    reason: str
    """Why it had this width; empty where it could have no other."""
    ended: Literal["running", "finished", "cut", "failed", "lost", "reverted", "interrupted"] = "running"
    """`cut`: ended early on request, the rest is requeued; `reverted`: it failed on more workers than before and no
    longer counts; `interrupted`: the process that ran the sweep ended first."""
    message: str = ""
    """Reason of a failure, loss or reversal."""
    seconds: float | None = None
    """Wall time in the worker, or its part of a shared worker's; None if unknown."""
    lanes: int = 1
    """Trials of which it was trained as one computation, at most."""
    then: Literal["", "halved", "alone", "wider"] = ""
    """How a lost segment runs again: `Lost.then`."""


def segment_rows(events: Iterable[Event], live: bool) -> list[SegmentRow]:
    """Return the started segments, in the order of starting.

    Args:
        events: Of a journal, in their order.
        live: A process runs the study now, so what hasn't ended is running.
    """
    rows: dict[tuple[int, int], SegmentRow] = {}  # by (trial, attempt), in the order of starting
    for event in events:
        match event:
            case Started(segment=segment, reason=reason):
                trial, attempt = segment.trial, segment.attempt
                rows[trial, attempt] = SegmentRow(trial, attempt, segment.start, segment.end, segment.width, reason)
            case Finished() | Failed() | Lost() | Reverted():
                key = event.trial, event.attempt
                rows[key] = _ended_row(rows[key], event)
            case Opened() | Ended():
                _interrupt(rows)
    if not live:
        _interrupt(rows)
    return list(rows.values())


def _ended_row(row: SegmentRow, event: Finished | Failed | Lost | Reverted) -> SegmentRow:
    match event:
        case Finished(seconds=seconds, lanes=lanes):
            cut = event.cut and (row.end is None or event.iteration < row.end)
            return replace(row, ended="cut" if cut else "finished", seconds=seconds, lanes=lanes)
        case Failed(failure=failure, seconds=seconds):
            return replace(row, ended="failed", message=failure.message, seconds=seconds or None)
        case Lost(reason=reason, seconds=seconds, then=then):
            return replace(row, ended="lost", message=reason, seconds=seconds or None, then=then)
        case Reverted(reason=reason, seconds=seconds):
            return replace(row, ended="reverted", message=reason, seconds=seconds)


def _interrupt(rows: dict[tuple[int, int], SegmentRow]) -> None:
    for key, row in rows.items():
        if row.ended == "running":
            rows[key] = replace(row, ended="interrupted")
