"""History of a study: who ran and steered it, when, for how long, and with what result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hpsearch.events import ASK_TELL, Ended, Entry, Opened, Steered
from hpsearch.journal.journal import LABELS, Request


@dataclass(frozen=True)
class HistoryEntry:
    """One line of a study's history."""

    time: float
    """Seconds since the epoch."""
    verb: str
    """The kind of request; or `run`: a process began to run the study; `ask`: it was opened for ask/tell; `end`."""
    by: str
    """`user@host:pid`; empty if unknown."""
    details: Mapping[str, Any]
    """The request's arguments, as JSON values; for `run` and `ask` the command."""
    outcome: str
    """`done`, `refused: ...`, or `not answered`; for `end`, how the run ended."""


def steps(entries: Iterable[Entry], requests: Sequence[Request]) -> list[HistoryEntry]:
    """Return the history of a journal by time; events keep their order, even if a clock was set back.

    Args:
        entries: The journal's entries.
        requests: All requests. A request without an answer is pending, or its process ended before it answered.
    """
    answered: set[int | None] = set()
    journaled = list(_journaled(entries, answered))
    times = list(accumulate((step.time for step in journaled), max))
    unanswered = [
        HistoryEntry(request.time, request.verb, request.by, request.details, _outcome(request))
        for request in requests
        if request.number not in answered
    ]
    times += [step.time for step in unanswered]
    in_order = sorted(zip(times, [*journaled, *unanswered], strict=True), key=lambda pair: pair[0])
    return [step for _, step in in_order]


def _outcome(request: Request) -> str:
    """Return the outcome of a request that no event answers."""
    return "done" if request.verb in LABELS else "not answered"


def _journaled(entries: Iterable[Entry], answered: set[int | None]) -> Iterator[HistoryEntry]:
    process = ""
    for entry in entries:
        match event := entry.event:
            case Opened():
                process = event.process
                verb = "ask" if event.backend == ASK_TELL else "run"
                yield HistoryEntry(entry.time, verb, process, {"command": event.command}, "done")
            case Ended():
                yield HistoryEntry(
                    entry.time, "end", process, {}, ": ".join(filter(None, (event.state, event.message)))
                )
            case Steered():
                answered.add(event.request)
                outcome = f"refused: {event.refused}" if event.refused else "done"
                yield HistoryEntry(entry.time, event.verb, event.by, event.details, outcome)


class RunningTime:
    """Running time of a sweep, from a journal's entries. A clock that is set back doesn't reduce it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds in which a process ran the sweep without a pause, as far as known."""
        self._since = 0.0
        self._counts = False

    def take(self, entry: Entry) -> None:
        """Apply the next entry."""
        match entry.event:
            case Opened():
                self._counts = True
            case Steered(request=None):  # a command wrote it while no process ran the study
                self._counts = False
            case _ if self._counts:
                self.seconds += max(0.0, entry.time - self._since)
        self._since = entry.time
        match entry.event:
            case Ended() | Steered(verb="pause", refused=""):
                self._counts = False
            case Steered(verb="resume", refused=""):
                self._counts = True


def seconds_spent(history: Iterable[Entry]) -> float:
    """Return the total running time of earlier runs in seconds."""
    time = RunningTime()
    for entry in history:
        time.take(entry)
    return time.seconds
