"""Messages between `hpsearch check` and its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch.check.module_state import ModuleState
from hpsearch.task import Result
from hpsearch.trial import Report, Segment, Trial
from hpsearch.worker.gang import RankInfo
from hpsearch.worker.job import Job
from hpsearch.worker.shapes import Shapes

__all__ = ["FindShapes", "Open", "Refused", "Request", "Response", "RunSegment", "SegmentRun", "WorkerOpened"]


@dataclass(frozen=True, slots=True)
class Open:
    """Make a worker."""

    job: Job
    root: Path
    """Directory of attempts."""


@dataclass(frozen=True, slots=True)
class RunSegment:
    """Run a segment."""

    trial: Trial
    segment: Segment
    cut_at: int | None = None
    """The iteration after which it is cut, where the sweep names no last one."""
    rank_info: RankInfo | None = None


@dataclass(frozen=True, slots=True)
class FindShapes:
    """Request to find out whether trials can be lanes."""

    job: Job
    root: Path
    """Scratch folder."""
    trials: Sequence[Trial]


@dataclass(frozen=True, slots=True)
class WorkerOpened:
    """The worker is there."""

    address: str
    """Its address for the next gang."""


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """A segment that ended."""

    result: Result
    reports: tuple[Report, ...]
    trace: Mapping[int, Mapping[str, Any]]
    """By iteration."""
    before: ModuleState
    """The state of the user's modules when it began."""
    after: ModuleState
    memory: int
    """Most bytes that the process, or its script, has had in memory."""
    gpu_memory: int
    """Most bytes that torch has allocated on a GPU."""
    address: str
    """The worker's address for the next gang."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker can't be made, or reached."""

    message: str
    key: str
    """As `TrainableError` has it."""


Request = Open | RunSegment | FindShapes
Response = WorkerOpened | SegmentRun | Shapes | Refused
