"""What the driver and a worker's actor send each other: where it runs, what it is to run, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from hpsearch.events import Saved
from hpsearch.task import Result
from hpsearch.trial import Segment, Trial
from hpsearch.worker.gang import RankInfo

__all__ = ["Hello", "LaneEnd", "Place", "RoundsEnd", "RunRequest", "RunResponse"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker runs."""

    node: str
    """Of workers with the same one, all see each other's memory."""
    interface: str
    """The address by which other nodes reach this one."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's answer to a study."""

    host: str
    sees: bool
    """It sees the study's directory."""
    log: str
    """Where its output lies until it is filed under an attempt, relative to the study's directory."""
    address: str
    """Where the others of its next gang reach it; empty where no segment is wide."""
    mistake: str | None
    """Why it can't run this study's trainable."""
    closes: bool = False
    """Objects of the trainable have a `close()`."""
    lanes: int = 1
    """Segments that it runs beside each other."""
    why_whole: str | None = None
    """Why it runs one at a time, where the study would have more."""
    edited: str | None = None
    """A module that it has imported for another study, and that was edited since: it can't run this one."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A segment for a worker to run."""

    trial: Trial
    segment: Segment
    packed: bytes | None
    """The segment's checkpoint, for a worker that doesn't see the study's directory."""
    rank_info: RankInfo | None
    """Its place in the gang; None where it runs the segment alone."""
    timeout: float | None = None
    """Seconds that it may be charged for as a lane."""


@dataclass(frozen=True, slots=True)
class RunResponse:
    """What a worker gives back for a segment."""

    result: Result
    saves: tuple[Saved, ...]
    """All checkpoints inside the segment; the driver may have heard of them."""
    packed: bytes | None
    """The newest checkpoint, from a worker that doesn't see the study's directory."""
    log: bytes | None
    """The output, likewise."""
    log_of_lanes: bytes | None
    """What trials printed while they trained together since the last response, likewise."""
    memory: int
    """Resident bytes of the worker."""
    address: str
    """Where the others of its next gang reach it."""


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """What a worker gives back for a segment that ran as one of its lanes."""

    trial: int
    attempt: int
    response: RunResponse
    late: bool = False
    """It was cut because it ran over its timeout."""


@dataclass(frozen=True, slots=True)
class RoundsEnd:
    """What a worker gives back for rounds of its lanes."""

    ends: tuple[LaneEnd, ...]
    """Those that have ended."""
    trained: int
    """Rounds that were trained."""
