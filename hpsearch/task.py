"""The interface between the sweep and its backend: the sweep sends tasks, the backend sends messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpsearch.events import Lost, Saved
from hpsearch.trial import Failure, Report, Segment, Trial

Company = tuple[int, ...]
"""Trials, in order, that share a worker only with each other; empty: with any trial."""


@dataclass(frozen=True, slots=True)
class Task:
    """One segment to run; each has exactly one outcome."""

    trial: Trial
    segment: Segment
    timeout: float | None
    """Seconds that the attempt may run before it is killed; None: no limit."""
    lanes: int = 1
    """Number of lanes of the worker, of which the task needs one. Tasks of other trials may run in the other lanes, and
    start and end independently. 1: the task needs whole workers, as many as the segment's width."""
    company: Company = ()
    """For a lane: the trials that may run in the worker's other lanes."""

    def __post_init__(self) -> None:
        assert self.lanes == 1 or self.segment.width == 1, "a gang has whole workers"
        assert not self.company or self.lanes > 1, "nothing runs beside what has whole workers"

    @property
    def key(self) -> tuple[int, int]:
        """(trial, attempt), which identify the task in messages."""
        return self.segment.trial, self.segment.attempt

    def timed_out(self, message: str, seconds: float) -> Result:
        """Return the result of an attempt that was killed because it exceeded its timeout; none of its reports counts.

        Args:
            message: Details, appended to the failure's message.
            seconds: Wall time of the attempt in the worker.
        """
        failure = Failure("timeout", f"killed: it ran over its trial_timeout{message}", "")
        return Result(*self.key, self.segment.start, None, (), False, seconds, failure)


@dataclass(frozen=True, slots=True)
class Progress:
    """Live reports of a running attempt, provisional until a `Saved` or the `Result` contains them; and its notes."""

    trial: int
    attempt: int
    reports: tuple[Report, ...]
    """Reports since the last `Progress` of this attempt."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes since then, by name."""


@dataclass(frozen=True, slots=True)
class Result:
    """An attempt ended on its own, or because it exceeded its timeout."""

    trial: int
    attempt: int
    iteration: int
    """Last iteration that the attempt reported; the segment's start if it reported none."""
    checkpoint: str | None
    """Checkpoint at `iteration`, relative to the study's directory; None if the trainable saves none or the attempt
    failed."""
    reports: tuple[Report, ...]
    """Reports since the last `Saved` of this attempt."""
    cut: bool
    """The attempt ended early because the channel requested it."""
    seconds: float
    """Wall time of the attempt."""
    failure: Failure | None
    changed: tuple[str, ...] = ()
    """Names of process settings that the attempt changed; they were restored afterwards."""
    stuck: tuple[str, ...] = ()
    """Settings in `changed` that couldn't be restored, with the reason: the process must not run another trial."""
    module_changes: tuple[str, ...] = ()
    """Names of values in the trainable's modules that the attempt changed; the next trial in the process would see
    the changed values."""
    lanes: int = 1
    """Maximum number of trials that were trained together, this one included."""
    ignored_checkpoint: bool = False
    """The attempt resumed from a checkpoint but never read it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """All notes of the attempt, by name."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the user, e.g. that the sweep waits for workers of another sweep."""

    text: str


Message = Progress | Saved | Result | Lost | Notice


@dataclass(frozen=True, slots=True)
class Workers:
    """The current number of workers."""

    ready: int
    busy: int
    wanted: int
