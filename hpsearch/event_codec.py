"""Events to and from JSON, for the journal. Nothing but plain JSON is ever written, and nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpsearch.events import (
    Dropped,
    Ended,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finished,
    Lost,
    Opened,
    Retried,
    Reverted,
    Saved,
    Started,
)
from hpsearch.trial import Failure, Report, Segment, Trial

__all__ = ["decode", "encode"]

_Body = Mapping[str, Any]

# In ASCII: the name of a file may put half a surrogate pair into an error's message, and SQLite takes no such text.
_dump = json.JSONEncoder(separators=(",", ":")).encode


def encode(event: Event) -> tuple[str, int | None, str]:
    """Give an event's (kind, trial, JSON body)."""
    kind = type(event)
    trial = event.segment.trial if isinstance(event, Started) else getattr(event, "trial", None)
    return kind.__name__.lower(), trial, _dump(_TO_BODY[kind](event))


def decode(kind: str, trial: int | None, body: str) -> Event:
    """Read an event back.

    Raises:
        KeyError, TypeError, ValueError: These are not the columns of an event.
    """
    return _FROM_BODY[kind](trial, json.loads(body))


def _reports(reports: Sequence[Report]) -> list[list[Any]]:
    return [[report.iteration, report.seconds, report.metrics] for report in reports]


def _read_reports(trial: int, rows: Sequence[Sequence[Any]]) -> tuple[Report, ...]:
    return tuple(Report(trial, iteration, metrics, seconds) for iteration, seconds, metrics in rows)


def _started(event: Started) -> _Body:
    segment = event.segment
    body: dict[str, Any] = {"attempt": segment.attempt, "start": segment.start, "end": segment.end}
    if segment.checkpoint is not None:
        body["checkpoint"] = segment.checkpoint
    if segment.width != 1:
        body["width"] = segment.width
    if event.reason:
        body["reason"] = event.reason
    if event.bracket is not None:
        body["bracket"], body["rung"] = event.bracket, event.rung
    if event.seen is not None:
        body["seen"] = event.seen
    if event.new is not None:
        body["new"] = {"params": event.new.params, "seed": event.new.seed, "origin": event.new.origin}
    return body


def _read_started(trial: int, body: _Body) -> Started:
    segment = Segment(trial, body["start"], body["end"], body.get("checkpoint"), body["attempt"], body.get("width", 1))
    new = body.get("new")
    created = None if new is None else Trial(trial, new["params"], new["seed"], new["origin"])
    return Started(segment, created, body.get("reason", ""), body.get("bracket"), body.get("rung"), body.get("seen"))


def _read_extended(trial: int | None, body: _Body) -> Extended:
    former = body.get("brackets")  # all that could be raised in the first journals
    return Extended(body["run_cap"], body.get("settings", {}) if former is None else {"brackets": former})


def _failed(event: Failed) -> _Body:
    failure = event.failure
    return {
        "attempt": event.attempt,
        "failure": [failure.kind, failure.message, failure.traceback],
        "retry": event.retry,
        "reports": _reports(event.reports),
        "seconds": event.seconds,
    }


_TO_BODY: Mapping[type, Callable[[Any], _Body]] = {
    Opened: lambda e: {
        "backend": e.backend,
        "workers": e.workers,
        "process": e.process,
        "command": e.command,
        "workers_per_trial": e.workers_per_trial,
    },
    Started: _started,
    Saved: lambda e: {
        "attempt": e.attempt,
        "iteration": e.iteration,
        "checkpoint": e.checkpoint,
        "reports": _reports(e.reports),
    },
    Finished: lambda e: {
        "attempt": e.attempt,
        "iteration": e.iteration,
        "checkpoint": e.checkpoint,
        "reports": _reports(e.reports),
        "cut": e.cut,
        "seconds": e.seconds,
    },
    Failed: _failed,
    Lost: lambda e: {"attempt": e.attempt, "reason": e.reason, "innocent": e.innocent, "seconds": e.seconds},
    Reverted: lambda e: {
        "attempt": e.attempt,
        "iteration": e.iteration,
        "reason": e.reason,
        "seconds": e.seconds,
        "checkpoint": e.checkpoint,
    },
    Dropped: lambda e: {"reason": e.reason},
    Retried: lambda e: {},
    Exhausted: lambda e: {},
    Extended: lambda e: {"run_cap": e.run_cap, "settings": e.settings},
    Ended: lambda e: {"state": e.state, "message": e.message},
}

_FROM_BODY: Mapping[str, Callable[[Any, _Body], Event]] = {
    "opened": lambda t, b: Opened(b["backend"], b["workers"], b["process"], b["command"], b.get("workers_per_trial")),
    "started": _read_started,
    "saved": lambda t, b: Saved(t, b["attempt"], b["iteration"], b["checkpoint"], _read_reports(t, b["reports"])),
    "finished": lambda t, b: Finished(
        t,
        b["attempt"],
        b["iteration"],
        b["checkpoint"],
        _read_reports(t, b["reports"]),
        b["cut"],
        b["seconds"],
    ),
    "failed": lambda t, b: Failed(
        t,
        b["attempt"],
        Failure(*b["failure"]),
        b["retry"],
        _read_reports(t, b["reports"]),
        b.get("seconds", 0.0),
    ),
    "lost": lambda t, b: Lost(t, b["attempt"], b["reason"], b["innocent"], b.get("seconds", 0.0)),
    "reverted": lambda t, b: Reverted(t, b["attempt"], b["iteration"], b["reason"], b["seconds"], b["checkpoint"]),
    "dropped": lambda t, b: Dropped(t, b["reason"]),
    "retried": lambda t, b: Retried(t),
    "exhausted": lambda t, b: Exhausted(),
    "extended": _read_extended,
    "ended": lambda t, b: Ended(b["state"], b["message"]),
}
