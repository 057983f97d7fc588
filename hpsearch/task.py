"""What crosses the seam between the sweep and its backend: tasks go out, messages come back."""

from __future__ import annotations

from dataclasses import dataclass

from hpsearch.events import Lost, Saved
from hpsearch.trial import Failure, Report, Segment, Trial

Company = tuple[int, ...]
"""Trials, in order, that share a worker with each other and with no others; empty: with any."""


@dataclass(frozen=True, slots=True)
class Task:
    """One segment to run; each has exactly one outcome."""

    trial: Trial
    segment: Segment
    timeout: float | None
    """Seconds that the attempt may run before it is killed; None: as long as it takes."""
    lanes: int = 1
    """How many lanes fill a worker, where one of them is enough: tasks of other trials may run in the others, and come
    and go independently. 1: as many whole workers as the segment's width."""
    company: Company = ()
    """For a lane: the trials that may have the worker's other lanes."""

    def __post_init__(self) -> None:
        assert self.lanes == 1 or self.segment.width == 1, "a gang has whole workers"
        assert not self.company or self.lanes > 1, "nothing runs beside what has whole workers"

    @property
    def key(self) -> tuple[int, int]:
        """(trial, attempt), which name it in messages."""
        return self.segment.trial, self.segment.attempt

    def timed_out(self, message: str, seconds: float) -> Result:
        """Return the result of an attempt that was killed because it exceeded its timeout: none of its reports counts.

        Args:
            message: How it was.
            seconds: Its time in the worker.
        """
        failure = Failure("timeout", f"killed: it ran over its trial_timeout{message}", "")
        return Result(*self.key, self.segment.start, None, (), False, seconds, failure)


@dataclass(frozen=True, slots=True)
class Progress:
    """Live reports of a running attempt: they are provisional until a `Saved` or its `Result` brings them again."""

    trial: int
    attempt: int
    reports: tuple[Report, ...]
    """New since the last `Progress` of this attempt."""


@dataclass(frozen=True, slots=True)
class Result:
    """An attempt ended by itself, or because it exceeded its timeout."""

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
class Notice:
    """Something that the user should read, e.g. whose workers the sweep waits for."""

    text: str


Message = Progress | Saved | Result | Lost | Notice


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers there are."""

    ready: int
    busy: int
    wanted: int
