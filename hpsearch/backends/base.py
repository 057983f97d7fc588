"""The backend's seam: where segments run.

A backend takes tasks, runs each in a worker, and answers with messages. It decides nothing about the search.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpsearch.trial import Failure, Report, Segment, Trial
from hpsearch.worker.job import Job, SegmentResult

__all__ = ["Backend", "Gone", "Message", "Notice", "Progress", "Result", "Task", "TimedOut", "Workers"]


@dataclass(frozen=True, slots=True)
class Task:
    """One segment to run."""

    trial: Trial
    segment: Segment
    timeout: float | None
    """Seconds that the attempt may run before it is killed; None: as long as it takes."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A running attempt went on: provisional reports, and perhaps a checkpoint that makes them count."""

    trial: int
    attempt: int
    reports: tuple[Report, ...]
    """New since the last `Progress` of this attempt."""
    saved: tuple[int, str, tuple[Report, ...]] | None
    """A checkpoint written since: its iteration, its path relative to the study's directory, and the reports
    since the checkpoint before it, which count from now on."""


@dataclass(frozen=True, slots=True)
class Result:
    """An attempt ended by itself."""

    trial: int
    attempt: int
    result: SegmentResult


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


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user should read, e.g. whose workers the sweep waits for."""

    text: str


Message = Progress | Result | TimedOut | Gone | Notice


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers there are."""

    ready: int
    busy: int
    wanted: int


class Backend(ABC):
    """Runs segments in workers. Its clock is the sweep's: limits, looks and the times of events go by it."""

    name: str
    tick = 0.25
    """Seconds between two looks at requests and at where the sweep stands."""

    @abstractmethod
    def open(self, job: Job, deliver: Callable[[Message], None]) -> None:
        """Get ready to run the segments of this study.

        Args:
            job: What all segments share.
            deliver: Takes messages at once, from inside `wait`, where a backend runs the trainable in the
                caller's own thread; other backends leave it alone.

        Raises:
            BackendError: The place can't be reached, or no worker of this size could ever be had.
        """

    @abstractmethod
    def capacity(self) -> int:
        """Say how many workers would take up a task at once, without a wait that another order would spare."""

    @abstractmethod
    def start(self, task: Task) -> None:
        """Run a task on as many workers as its segment is wide; `capacity` was at least that.

        Its outcome comes as exactly one `Result`, `TimedOut` or `Gone`.
        """

    @abstractmethod
    def cut(self, trial: int, attempt: int) -> None:
        """End a running attempt at its next report, with a checkpoint; one that has ended is left alone."""

    @abstractmethod
    def wait(self, timeout: float | None) -> Sequence[Message]:
        """Give the messages that came; wait for one up to `timeout` seconds (None: until one comes)."""

    def now(self) -> float:
        """Seconds since some fixed moment; they never go back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, which events bear."""
        return time.time()

    @abstractmethod
    def workers(self) -> Workers:
        """Count the workers."""

    @abstractmethod
    def close(self, kill: bool = False) -> None:
        """Let go of the study; `kill` ends what still runs, children included."""
