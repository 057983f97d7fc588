"""Who ran and steered a study, when, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hpsearch.events import ASK_TELL, Ended, Opened, Steered
from hpsearch.study.journaled_state import Entry
from hpsearch.study.requests import LABELS, Request

__all__ = ["Step", "steps"]


@dataclass(frozen=True)
class Step:
    """One line of a study's history."""

    time: float
    """Seconds since the epoch."""
    verb: str
    """What was asked; `run` where a process began to run the study, `ask` where it was opened for asking, `end`."""
    by: str
    """`user@host:pid`; empty where it isn't known."""
    details: Mapping[str, Any]
    """What was asked for, as JSON values; of `run` and `ask` the command."""
    outcome: str
    """`done`, `refused: ...`, or `not answered`; of `end` how."""


def steps(entries: Iterable[Entry], requests: Sequence[Request]) -> list[Step]:
    """Give the history of a journal, in order of time; what is journaled keeps its order, also if a clock was set back.

    Args:
        entries: The journal's.
        requests: All that were left. One that isn't answered was left for a process that ended before it looked, or
            looks yet.
    """
    answered: set[int | None] = set()
    journaled = list(_journaled(entries, answered))
    places = list(accumulate((step.time for step in journaled), max))
    others = [
        Step(left.time, left.verb, left.by, left.details, "done" if left.verb in LABELS else "not answered")
        for left in requests
        if left.number not in answered
    ]
    places += [step.time for step in others]
    placed = sorted(zip(places, [*journaled, *others], strict=True), key=lambda one: one[0])
    return [step for _, step in placed]


def _journaled(entries: Iterable[Entry], answered: set[int | None]) -> Iterator[Step]:
    process = ""
    for entry in entries:
        match event := entry.event:
            case Opened():
                process = event.process
                verb = "ask" if event.backend == ASK_TELL else "run"
                yield Step(entry.time, verb, process, {"command": event.command}, "done")
            case Ended():
                yield Step(entry.time, "end", process, {}, ": ".join(filter(None, (event.state, event.message))))
            case Steered():
                answered.add(event.request)
                outcome = f"refused: {event.refused}" if event.refused else "done"
                yield Step(entry.time, event.verb, event.by, event.details, outcome)
