"""What the journal records: everything that decides how a sweep goes on, and nothing else.

Replaying these events in their order through the searcher and the scheduler gives the state of the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpsearch.decision import Followed
from hpsearch.trial import Failure, Params, Report, Segment, Trial

ASK_TELL = "ask"
"""The backend of an ask/tell study: any number of processes request trials, run them and report their results."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A process began to run the study (the first time, or on resume); attempts still open are lost.

    With `ASK_TELL` it is written before the first trial is requested, and again where a finished study continues:
    attempts then stay open from one process to the next, and the processes that run them keep their states.
    """

    backend: str
    workers: int | None
    process: str
    """`user@host:pid`."""
    command: str
    workers_per_trial: int | None = None
    """Workers that a trial needs in this run; None: as in the study's sweep."""
    code: str = ""
    """A digest of the trainable's own source files in this run; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Started:
    """A segment was handed to the backend."""

    segment: Segment
    new: Trial | None
    """The trial, when this is its first segment."""
    reason: str = ""
    """Why the segment has this width; empty if no other was possible."""
    bracket: int = 0
    """Of the scheduler's brackets, from 0."""
    rung: int = 0
    """Of the bracket's rungs, from 0."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A suggestion was requested from a searcher that learns. It has seen the events before this one."""

    number: int
    """Of the suggestion, counted in the searcher's order after the points to try; for a trial that the scheduler forks,
    the trial's number."""
    parent: int | None
    """The trial that the new one is forked from."""
    bracket: int
    """Bracket of the trial that it is for."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A running attempt wrote a checkpoint. Its reports up to there count, and a retry resumes there."""

    trial: int
    attempt: int
    iteration: int
    checkpoint: str | None
    """Relative to the study's directory; None in an ask/tell study, whose states are kept elsewhere."""
    reports: tuple[Report, ...]
    """Those since the last `Saved` of this attempt."""


@dataclass(frozen=True, slots=True)
class Finished:
    """An attempt returned, at its segment's end or before."""

    trial: int
    attempt: int
    iteration: int
    """Last iteration that it ran."""
    checkpoint: str | None
    """At `iteration`; None where the trainable saves none."""
    reports: tuple[Report, ...]
    """Those since the last `Saved` of this attempt."""
    cut: bool
    """It ended early on request; the rest of the segment is requeued."""
    seconds: float
    """Wall time in the worker."""
    stopped: str = ""
    """Why the scheduler stopped it while it ran; empty if it didn't."""
    lanes: int = 1
    """Most trials that were trained together with it, itself included; no decision depends on it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed because of the trial itself."""

    trial: int
    attempt: int
    failure: Failure
    retry: bool
    """The segment is requeued; False: the trial has failed, and `reports` count."""
    reports: tuple[Report, ...]
    seconds: float = 0.0
    """Wall time in the worker."""


NO_MEMORY = "not enough memory: "
"""Prefix of the reason of an attempt that ran out of memory; the allocator's message follows."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt was lost with its worker; the segment is requeued."""

    trial: int
    attempt: int
    reason: str
    counts_against_trial: bool = True
    """False: its worker ended for a reason other than this trial."""
    seconds: float = 0.0
    """Wall time in the worker, as far as known; it doesn't count toward `limits.trial_timeout`."""
    then: Literal["", "halved", "alone", "wider"] = ""
    """How its segment runs again. `halved`: with half of the trials that it was lost with, as any of them may have
    killed the worker; `alone`: on a whole worker, for the same reason or because memory ran out; `wider`: on twice as
    many workers, because memory ran out."""
    company: tuple[int, ...] = ()
    """For `halved`: the numbers of that half, its own included. A backend sets it alone, without `then`: the trials
    that may share a worker with its next attempt, or only itself for a worker of its own."""


@dataclass(frozen=True, slots=True)
class Reverted:
    """An attempt on more workers than before failed: the trial is back where it was before it was widened.

    Later reports no longer count, and the trial never again runs on so many workers.
    """

    trial: int
    attempt: int
    iteration: int
    """Last iteration that counts."""
    reason: str
    seconds: float
    """Wall time in the worker."""
    checkpoint: str | None = None
    """Checkpoint at the attempt's end; it isn't needed any more."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A trial's newest checkpoint is missing or damaged: the trial starts again from where it began."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Retried:
    """A failed trial runs again: from its newest checkpoint if its rung isn't decided.

    Otherwise the next trial that is created gets its params.
    """

    trial: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """A trial was pruned by a user: at once if it isn't running, else when its attempt ends.

    Its reports count; the scheduler treats it as failed.
    """

    trial: int
    reason: str
    """`"pruned by user@host"`."""


@dataclass(frozen=True, slots=True)
class Added:
    """A user added a configuration. The next new trial takes it, before any suggestion; several are taken in order."""

    params: Params
    """Flat names to values; missing ones are sampled when the trial is created."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The searcher had no params for the trial that the scheduler requested."""


@dataclass(frozen=True, slots=True)
class Extended:
    """The sweep was extended."""

    run_cap: int | None
    """Most trials that may be created in all; None: as before."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `early_terminate` that were raised, by name."""


@dataclass(frozen=True, slots=True)
class Steered:
    """A user's request was answered. The events that follow from it come next, in the same transaction.

    On its own it changes nothing. If no process ran the study, attempts still open are lost.
    """

    verb: str
    """`pause`, `resume`, `stop`, `cancel`, `extend`, `retry`, `add` or `prune`."""
    by: str
    """`user@host:pid`."""
    request: int | None
    """Its number in the table of requests; None: no process ran the study, so it was applied directly."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The request's arguments, as JSON values."""
    refused: str = ""
    """Why it was refused; empty if it was not."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The process closed the study normally."""

    state: str
    """`finished`, `target`, `patience`, `stopped`, `max_time`, `interrupted`, `cancelled` or `error`."""
    message: str = ""
    """The error's text; of `target` and `patience`, why it ended; of `cancelled`, by whom."""


Event = (
    Opened
    | Asked
    | Started
    | Saved
    | Finished
    | Failed
    | Lost
    | Reverted
    | Dropped
    | Retried
    | Pruned
    | Added
    | Exhausted
    | Extended
    | Steered
    | Ended
)


def trial_of(event: Event) -> int | None:
    """Return the number of the trial that an event is about; None where it is about the sweep."""
    match event:
        case Started():
            return event.segment.trial
        case Saved() | Finished() | Failed() | Lost() | Reverted() | Dropped() | Retried() | Pruned():
            return event.trial
        case Opened() | Asked() | Added() | Exhausted() | Extended() | Steered() | Ended():
            return None


@dataclass(frozen=True, slots=True)
class Entry:
    """An event as the journal stores it."""

    time: float
    """When it was written, in seconds since the epoch."""
    event: Event
    followed: Followed
