"""Whether an event of a journal is the one that its sweep gives."""

from __future__ import annotations

from dataclasses import replace

from hpsearch.errors import JournalError
from hpsearch.events import Event, Started

__all__ = ["as_then", "misfit"]


def as_then(expected: Started, event: Started) -> Started:
    """Give an expected start what was decided by who was free then, and by which checkpoints there were."""
    segment = replace(expected.segment, width=event.segment.width)
    new, old = expected.new, event.new
    if new is not None and old is not None and new.parent is not None and old.parent is not None:
        parent = replace(old.parent, number=new.parent.number)
        new = replace(new, parent=parent, start=old.start)
        segment = replace(segment, start=old.start, checkpoint=parent.checkpoint)
    return replace(expected, segment=segment, new=new, reason=event.reason)


def misfit(event: Event, instead: str) -> JournalError:
    """Give the error of an event that isn't; `instead` says what this sweep has in its place."""
    return JournalError(
        f"the journal doesn't replay: it holds {event}, where {instead}. "
        "It was written by a version of hpsearch that decides otherwise; resume with that one."
    )
