"""The started segments of a study: their number of workers and the reason for it, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from hpsearch.events import Ended, Event, Failed, Finished, Lost, Opened, Reverted, Started


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A row of the segment tables: one started segment."""

    trial: int
    attempt: int
    start: int
    """Number of iterations before the segment."""
    end: int | None
    """Planned last iteration; None if the segment runs until the trainable returns."""
    width: int
    """Number of workers of the segment."""
    reason: str
    """Why the segment had this width; empty if no other width was possible."""
    ended: Literal["running", "finished", "cut", "failed", "lost", "reverted", "interrupted"] = "running"
    """`cut`: the segment ended early on request, and the rest is queued again; `reverted`: it failed on more workers
    than before, and no longer counts; `interrupted`: the process that ran the sweep ended first."""
    message: str = ""
    """Reason of a failure, loss or reversal."""
    seconds: float | None = None
    """Wall time in the worker, or the segment's share of it if trials share the worker; None if unknown."""
    lanes: int = 1
    """Largest number of trials that were trained as one computation in the segment."""
    then: Literal["", "halved", "alone", "wider"] = ""
    """How a lost segment runs again; see `Lost.then`."""


def segment_rows(events: Iterable[Event], live: bool) -> list[SegmentRow]:
    """Return the started segments, in order of start.

    Args:
        events: Events of a journal, in order.
        live: Whether a process runs the study now. Then segments without an end are running.
    """
    rows: dict[tuple[int, int], SegmentRow] = {}  # by (trial, attempt), in order of start
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
