"""What crosses the seam between the sweep and its backend: tasks go out, messages come back."""

from __future__ import annotations

from dataclasses import dataclass

from hpsearch.events import Saved
from hpsearch.trial import Failure, Report, Segment, Trial

__all__ = [
    "WHOLE_WORKER",
    "Gone",
    "Message",
    "Notice",
    "Place",
    "Progress",
    "Result",
    "Task",
    "TimedOut",
    "WholeWorker",
    "WorkerGang",
    "WorkerShare",
    "Workers",
]


@dataclass(frozen=True, slots=True)
class WholeWorker:
    """A worker that runs nothing else meanwhile."""


@dataclass(frozen=True, slots=True)
class WorkerGang:
    """Several whole workers at once, which run one task together."""

    width: int


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """A lane of a worker, in others of which tasks of other trials may run; they come and go one by one."""

    lanes: int
    """How many such lanes fill a worker; at least 2."""

    def __post_init__(self) -> None:
        assert self.lanes >= 2, f"a share is a part of a worker, got {self.lanes} of them"


Place = WholeWorker | WorkerGang | WorkerShare
"""What a task asks for."""

WHOLE_WORKER = WholeWorker()

Company = tuple[int, ...]
"""Trials, in their order, that run beside each other and beside no others; empty: beside whoever there is."""


@dataclass(frozen=True, slots=True)
class Task:
    """One segment to run; each has exactly one outcome."""

    trial: Trial
    segment: Segment
    timeout: float | None
    """Seconds that the attempt may run before it is killed; None: as long as it takes."""
    share: WorkerShare | None = None
    """Where a part of a worker is enough; None: as many workers as the segment is wide."""
    company: Company = ()
    """Where it has a part of a worker: whose the other parts may be."""

    def __post_init__(self) -> None:
        assert self.share is None or self.segment.width == 1, "a gang has whole workers"
        assert not self.company or self.share is not None, "nothing runs beside what has whole workers"

    @property
    def key(self) -> tuple[int, int]:
        """(trial, attempt), which name it in messages."""
        return self.segment.trial, self.segment.attempt

    @property
    def place(self) -> Place:
        """What it asks for."""
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
    """Those of them that couldn't be put back, with the reason: the process must not run another trial."""
    module_changes: tuple[str, ...] = ()
    """Values of the trainable's modules that it changed, by name, which another trial would find so in the process."""
    lanes: int = 1
    """Trials of which it was trained as one computation, at most."""
    ignored_checkpoint: bool = False
    """It went on from a checkpoint that it never looked at."""


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
    """An attempt vanished with its worker (a dead process, a lost node): nobody's fault."""

    trial: int
    attempt: int
    reason: str
    counts_against_trial: bool = True
    """False: it hadn't begun, or its worker was taken down on purpose; this trial can't have been what killed it."""
    seconds: float = 0.0
    """Wall time in the worker, as far as it is known."""
    company: Company = ()
    """Others ran beside it, and nobody knows which of them it was: those that its segment may share a worker with when
    it runs again, itself among them. By itself it is to have one for itself."""


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
