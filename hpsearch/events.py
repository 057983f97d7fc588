"""What the journal records: everything that decides how a sweep goes on, and nothing else.

Replaying these events in their order through the searcher and the scheduler gives the state of the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpsearch.decision import Followed
from hpsearch.trial import Failure, Params, Report, Segment, Trial

__all__ = [
    "ASK_TELL",
    "NO_MEMORY",
    "Added",
    "Asked",
    "Dropped",
    "Ended",
    "Entry",
    "Event",
    "Exhausted",
    "Extended",
    "Failed",
    "Finished",
    "Lost",
    "Opened",
    "Pruned",
    "Retried",
    "Reverted",
    "Saved",
    "Started",
    "Steered",
]


ASK_TELL = "ask"
"""The backend of a study whose trials run elsewhere, and are asked for and told of by any number of processes."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A process began to run the study (the first time, or on resume); attempts still open are lost.

    With `ASK_TELL` it is written before the first trial is asked for, and again where a finished study is to go on:
    attempts then stay open from one process to the next, and whoever runs them keeps their states.
    """

    backend: str
    workers: int | None
    process: str
    """`user@host:pid`."""
    command: str
    workers_per_trial: int | None = None
    """Workers that a trial needs in this run; None: as many as the study's sweep says."""
    code: str = ""
    """A digest of the files of the trainable's own code in this run; empty where it isn't known."""


@dataclass(frozen=True, slots=True)
class Started:
    """A segment was handed to the backend."""

    segment: Segment
    new: Trial | None
    """The trial, when this is its first segment."""
    reason: str = ""
    """Why the segment has this width, in words; empty where it could have no other."""
    bracket: int = 0
    """Of the scheduler's brackets, from 0."""
    rung: int = 0
    """Of the bracket's rungs, from 0."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A searcher that learns was asked for a suggestion: it knows what stands before this in the journal."""

    number: int
    """Of the suggestion, in the searcher's order and the points to try before it; of a trial that the scheduler forks,
    the trial's."""
    parent: int | None
    """The trial that it is forked from."""
    bracket: int
    """Of the trial that it is for."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A running attempt wrote a checkpoint: its reports up to there count, and a retry starts there."""

    trial: int
    attempt: int
    iteration: int
    checkpoint: str | None
    """Relative to the study's directory; None where whoever runs the trial keeps its state."""
    reports: tuple[Report, ...]
    """Those since the last `Saved` of this attempt."""


@dataclass(frozen=True, slots=True)
class Finished:
    """An attempt ended by itself, at its segment's end or before it."""

    trial: int
    attempt: int
    iteration: int
    """Last iteration that it ran."""
    checkpoint: str | None
    """At `iteration`; None where the trainable saves none."""
    reports: tuple[Report, ...]
    """Those since the last `Saved` of this attempt."""
    cut: bool
    """It ended early because it was told to; the rest of the segment is requeued."""
    seconds: float
    """Wall time in the worker."""
    stopped: str = ""
    """Why its scheduler stopped it while it ran, in words; empty where it didn't."""
    lanes: int = 1
    """Trials of which it was trained as one computation, at most; no decision goes by it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed by the trial's own fault."""

    trial: int
    attempt: int
    failure: Failure
    retry: bool
    """The segment is requeued; False: the trial has failed, and `reports` count."""
    reports: tuple[Report, ...]
    seconds: float = 0.0
    """Wall time in the worker."""


NO_MEMORY = "not enough memory: "
"""How the reason begins of what was lost for want of memory, before what its allocator said."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt vanished with its worker; the segment is requeued and nobody is to blame."""

    trial: int
    attempt: int
    reason: str
    counts_against_trial: bool = True
    """False: its worker went for another reason than this trial, which says nothing about whether it kills workers."""
    seconds: float = 0.0
    """Wall time in the worker, as far as it is known; it doesn't count towards `limits.trial_timeout`."""
    then: Literal["", "halved", "alone", "wider"] = ""
    """How its segment runs again. `halved`: beside half of those that it was lost with, as it may have been it that
    they were lost by; `alone`: with a worker for itself, for the same reason, or as there wasn't memory enough for it
    beside them; `wider`: on twice as many workers, for want of memory."""
    company: tuple[int, ...] = ()
    """Where it is `halved`: that half, by their numbers, itself among them."""


@dataclass(frozen=True, slots=True)
class Reverted:
    """An attempt on more workers than before went wrong: the trial is back where it was before it was widened.

    What it reported since counts no more, and it is never again run on so many workers.
    """

    trial: int
    attempt: int
    iteration: int
    """The last one that counts."""
    reason: str
    seconds: float
    """Wall time in the worker."""
    checkpoint: str | None = None
    """What the attempt saved at its end; nothing needs it."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A trial's newest checkpoint turned out to be missing or damaged: it starts again from where it began."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Retried:
    """A trial that has failed is to run again: from its newest checkpoint where its rung isn't decided.

    Otherwise its params are those of the next trial that is created.
    """

    trial: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """A trial is to go no further: at once where it doesn't run, else as soon as its attempt ends, however that does.

    Its reports count; for the scheduler it is one that has failed.
    """

    trial: int
    reason: str
    """`"pruned by user@host"`."""


@dataclass(frozen=True, slots=True)
class Added:
    """A point was added by hand: a new trial takes it before anything is suggested, of several the first one first."""

    params: Params
    """Flat names to values; what is missing is drawn when the trial is created."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The searcher had no params for the trial that the scheduler asked for."""


@dataclass(frozen=True, slots=True)
class Extended:
    """The sweep was given more to do, from here on."""

    run_cap: int | None
    """How many trials may be created in all; None: as many as before."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those of `early_terminate` that were raised, by their names."""


@dataclass(frozen=True, slots=True)
class Steered:
    """A user's request was answered; what came of it follows this, in the same transaction.

    By itself it changes nothing. Where no process ran the study, attempts still open are lost.
    """

    verb: str
    """`pause`, `resume`, `stop`, `cancel`, `extend`, `retry`, `add` or `prune`."""
    by: str
    """`user@host:pid`."""
    request: int | None
    """Its number among the requests that were left; None: no process ran the study, so none was left."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for, as JSON values."""
    refused: str = ""
    """Why nothing came of it; empty where something did."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The process let go of the study in good order."""

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


@dataclass(frozen=True, slots=True)
class Entry:
    """An event as the journal holds it."""

    time: float
    """When it was written, in seconds since the epoch."""
    event: Event
    followed: Followed
