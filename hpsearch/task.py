"""What crosses the seam between the sweep and its backend: tasks go out, messages come back."""

from __future__ import annotations

from dataclasses import dataclass

from hpsearch.events import Saved
from hpsearch.trial import Failure, Report, Segment, Trial


@dataclass(frozen=True, slots=True)
class WholeWorker:
    """A worker that runs nothing else at the same time."""


@dataclass(frozen=True, slots=True)
class WorkerGang:
    """Several whole workers that run one task together."""

    width: int


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One lane of a worker. Tasks of other trials may run in its other lanes, and come and go independently."""

    lanes: int
    """How many such lanes fill a worker; at least 2."""

    def __post_init__(self) -> None:
        assert self.lanes >= 2, f"a share is a part of a worker, got {self.lanes} of them"


Allocation = WholeWorker | WorkerGang | WorkerShare
"""What a task requests."""

WHOLE_WORKER = WholeWorker()

Company = tuple[int, ...]
"""Trials, in order, that share a worker with each other and with no others; empty: with any."""


@dataclass(frozen=True, slots=True)
class Task:
    """One segment to run; each has exactly one outcome."""

    trial: Trial
    segment: Segment
    timeout: float | None
    """Seconds that the attempt may run before it is killed; None: as long as it takes."""
    share: WorkerShare | None = None
    """A lane, where a part of a worker is enough; None: as many whole workers as the segment's width."""
    company: Company = ()
    """For a lane: the trials that may have the worker's other lanes."""

    def __post_init__(self) -> None:
        assert self.share is None or self.segment.width == 1, "a gang has whole workers"
        assert not self.company or self.share is not None, "nothing runs beside what has whole workers"

    @property
    def key(self) -> tuple[int, int]:
        """(trial, attempt), which name it in messages."""
        return self.segment.trial, self.segment.attempt

    @property
    def allocation(self) -> Allocation:
        """The workers, or the part of one, that it requests."""
        if self.share is not None:
            return self.share
        return WHOLE_WORKER if self.segment.width == 1 else WorkerGang(self.segment.width)


@dataclass(frozen=True, slots=True)
class Progress:
    """Live reports of a running attempt: they are provisional until a `Saved` or its `Result` brings them again."""

    trial: int
    attempt: int
    reports: tuple[Report, ...]
    """New since the last `Progress` of this attempt."""


@dataclass(frozen=True, slots=True)
class Result:
    """An attempt ended by itself."""

    trial: int
    attempt: int
    iteration: int
    """Last iteration that it reported; the segment's start when there was none."""
    checkpoint: str | None
    """At `iteration`, relative to the study's directory; None where the trainable saves none or it failed."""
    reports: tuple[Report, ...]
    """Those since the last `Saved` of this attempt."""
    cut: bool
    """It ended early because the channel requested it."""
    seconds: float
    """Wall time of the attempt."""
    failure: Failure | None
    changed: tuple[str, ...] = ()
    """Settings of the process that it changed, by name; put back after it."""
    stuck: tuple[str, ...] = ()
    """Those of `changed` that couldn't be put back, with the reason: the process must not run another trial."""
    module_changes: tuple[str, ...] = ()
    """Values of the trainable's modules that it changed, by name; the process's next trial would see them."""
    lanes: int = 1
    """Most trials that were trained together with it, itself included."""
    ignored_checkpoint: bool = False
    """It resumed from a checkpoint that it never read."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """An attempt ran over its timeout; its processes are gone."""

    trial: int
    attempt: int
    failure: Failure
    seconds: float = 0.0
    """Wall time in the worker."""


@dataclass(frozen=True, slots=True)
class Gone:
    """An attempt was lost with its worker (a dead process, a lost node)."""

    trial: int
    attempt: int
    reason: str
    counts_against_trial: bool = True
    """False: it hadn't begun, or its worker was ended on purpose, so this trial can't have killed the worker."""
    seconds: float = 0.0
    """Wall time in the worker, as far as it is known."""
    company: Company = ()
    """Other trials shared the worker, and any of them may have killed it: the trials that may share a worker with its
    next attempt, itself included. If it holds this trial alone, the attempt gets a whole worker."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user should read, e.g. whose workers the sweep waits for."""

    text: str


Message = Progress | Saved | Result | TimedOut | Gone | Notice


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers there are."""

    ready: int
    busy: int
    wanted: int
