"""The events that the journal records: everything that determines how a sweep continues, and nothing else.

Replaying these events in their order through the searcher and the scheduler gives the state of the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hpsearch.decision import Followed
from hpsearch.trial import Failure, Params, Report, Segment, Trial

ASK_TELL = "ask"
"""The backend of an ask/tell study: any number of processes request trials, run them and report their results."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A process started or resumed the study. Attempts that were still open are lost.

    With `ASK_TELL` the event is written before the first trial is requested, and again when a finished study
    continues. Attempts then stay open across processes, and the processes that run them keep their states.
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
    """Index of the scheduler's bracket, from 0."""
    rung: int = 0
    """Index of the rung in the bracket, from 0."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A suggestion was requested from a searcher that learns. The searcher has observed the events before this one."""

    number: int
    """Number of the suggestion, counted after the points to try. If the scheduler forks a trial: the number of the new
    trial."""
    parent: int | None
    """The trial that the new trial is forked from."""
    bracket: int
    """Bracket of the trial that the suggestion is for."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A running attempt wrote a checkpoint. Its reports up to the checkpoint count, and a retry resumes there."""

    trial: int
    attempt: int
    iteration: int
    checkpoint: str | None
    """Path relative to the study's directory; None in an ask/tell study, which doesn't store states."""
    reports: tuple[Report, ...]
    """Reports since the last `Saved` of this attempt."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A trial's code noted texts by name. No decision depends on them; a later text of a name replaces the earlier."""

    trial: int
    attempt: int
    notes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finished:
    """An attempt returned, at the end of its segment or before."""

    trial: int
    attempt: int
    iteration: int
    """Last iteration that the attempt ran."""
    checkpoint: str | None
    """Checkpoint at `iteration`; None if the trainable saves none."""
    reports: tuple[Report, ...]
    """Reports since the last `Saved` of this attempt."""
    cut: bool
    """The attempt ended early on request; the rest of the segment is requeued."""
    seconds: float
    """Wall time in the worker."""
    stopped: str = ""
    """Why the scheduler stopped the trial while it ran; empty if the scheduler didn't."""
    lanes: int = 1
    """Maximum number of trials that were trained together, this one included; no decision depends on it."""


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
    """False: the worker ended for a reason other than this trial."""
    seconds: float = 0.0
    """Wall time in the worker, as far as known; this time doesn't count toward `limits.trial_timeout`."""
    then: Literal["", "halved", "alone", "wider"] = ""
    """How the segment runs again. `halved`: with half of the trials that shared the lost worker, because any of them
    may have killed it; `alone`: on a whole worker, for the same reason or because memory ran out; `wider`: on twice as
    many workers, because memory ran out."""
    company: tuple[int, ...] = ()
    """For `halved`: the numbers of the trials in that half, this one included. A backend may set it without `then`: the
    trials that may share a worker with the next attempt, or this trial alone if it gets a worker for itself."""


@dataclass(frozen=True, slots=True)
class Reverted:
    """An attempt on more workers than before failed: the trial is rolled back to its state before it was widened.

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
    """Checkpoint at the end of the attempt; it isn't needed any more."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A trial's newest checkpoint is missing or damaged: the trial starts over."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Retried:
    """A failed trial is retried: if its rung isn't decided, the trial resumes from its newest checkpoint.

    Otherwise the next trial that is created gets the failed trial's params.
    """

    trial: int


@dataclass(frozen=True, slots=True)
class Continued:
    """A user had an ended trial train on. Neither the scheduler nor the searcher observes what it does from now on."""

    trial: int
    until: int
    """Last iteration to run."""
    iteration: int
    """Iteration of `checkpoint`."""
    checkpoint: str
    """The trial's last checkpoint, relative to the study's directory."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A user pruned a trial: it ends at once if it isn't running, otherwise when its attempt ends.

    Its reports count; the scheduler treats the trial as failed.
    """

    trial: int
    reason: str
    """`"pruned by user@host"`."""


@dataclass(frozen=True, slots=True)
class Added:
    """A user added a configuration. New trials use added configurations first, in order, before any suggestion."""

    params: Params
    """Flat names to values; missing ones are sampled when the trial is created."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The searcher had no params for the trial that the scheduler requested."""


@dataclass(frozen=True, slots=True)
class Extended:
    """The sweep was extended."""

    run_cap: int | None
    """Maximum number of trials of the study; None: unchanged."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `early_terminate` that were raised, by name."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The search space was changed. Trials before it get the `default` of each parameter that they lack."""

    parameters: Sequence[Mapping[str, Any]]
    """The whole new space, as `Space.to_json` writes it."""
    from_trial: int
    """Number of the first trial whose suggestion is from the new space; no trial with this number has begun."""


@dataclass(frozen=True, slots=True)
class Steered:
    """A user's request was answered. The events that follow from the request come next, in the same transaction.

    The event itself changes nothing. If no process ran the study, attempts that were still open are lost.
    """

    verb: str
    """`pause`, `resume`, `stop`, `cancel`, `extend`, `retry`, `add`, `prune` or `change`."""
    by: str
    """`user@host:pid`."""
    request: int | None
    """Number in the table of requests; None: no process ran the study, so the request was applied directly."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The request's arguments, as JSON values. Where trials train on: `trials` are those that do, and `notes` say which
    don't, and what to know of those that do."""
    refused: str = ""
    """Why the request was refused; empty if it was accepted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The process closed the study normally."""

    state: str
    """`finished`, `target`, `patience`, `stopped`, `max_time`, `interrupted`, `cancelled` or `error`."""
    message: str = ""
    """The error's text; for `target` and `patience`, why the study ended; for `cancelled`, who cancelled it."""


Event = (
    Opened
    | Asked
    | Started
    | Saved
    | Noted
    | Finished
    | Failed
    | Lost
    | Reverted
    | Dropped
    | Retried
    | Continued
    | Pruned
    | Added
    | Exhausted
    | Extended
    | Changed
    | Steered
    | Ended
)


def trial_of(event: Event) -> int | None:
    """Return the number of the trial that an event is about; None if it is about the sweep."""
    if isinstance(event, Started):
        return event.segment.trial
    number: int | None = getattr(event, "trial", None)
    return number


@dataclass(frozen=True, slots=True)
class Entry:
    """An event as the journal stores it."""

    time: float
    """When the event was written, in seconds since the epoch."""
    event: Event
    followed: Followed
