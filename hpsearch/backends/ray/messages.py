"""Messages between the driver and a worker's actor."""

from __future__ import annotations

from dataclasses import dataclass

from hpsearch.events import Saved
from hpsearch.task import Result
from hpsearch.trial import Segment, Trial
from hpsearch.worker.gang import RankInfo

__all__ = ["Hello", "LaneEnd", "Location", "RoundsEnd", "RunRequest", "RunResponse"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a worker runs."""

    node: str
    """Workers of the same node can share memory."""
    interface: str
    """The address by which other nodes reach this one."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's answer to `open`."""

    host: str
    sees: bool
    """It sees the study's directory."""
    log: str
    """Path of its output until that is moved to an attempt, relative to the study's directory."""
    address: str
    """Address for the other ranks of its next gang; empty if no segment is wide."""
    mistake: str | None
    """Why it can't run this study's trainable."""
    closes: bool = False
    """Objects of the trainable have a `close()`."""
    lanes: int = 1
    """Segments that it runs in parallel."""
    why_whole: str | None = None
    """Why it runs one at a time, if the study requests more."""
    edited: str | None = None
    """A module that it imported for another study and that was edited since: the worker can't run this study."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A segment for a worker to run."""

    trial: Trial
    segment: Segment
    packed: bytes | None
    """The segment's checkpoint, for a worker that doesn't see the study's directory."""
    rank_info: RankInfo | None
    """Its rank in the gang; None if it runs the segment alone."""
    timeout: float | None = None
    """Limit of its seconds as a lane."""


@dataclass(frozen=True, slots=True)
class RunResponse:
    """A worker's result of a segment."""

    result: Result
    saves: tuple[Saved, ...]
    """All checkpoints inside the segment; the driver may have received some of them."""
    packed: bytes | None
    """The newest checkpoint, from a worker that doesn't see the study's directory."""
    log: bytes | None
    """Its output, from such a worker."""
    log_of_lanes: bytes | None
    """Output of trials that trained together since the last response, from such a worker."""
    memory: int
    """Resident bytes of the worker."""
    address: str
    """Address for the other ranks of its next gang."""


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """A worker's result of a segment that ran as a lane."""

    trial: int
    attempt: int
    response: RunResponse
    late: bool = False
    """It was cut because it exceeded its timeout."""


@dataclass(frozen=True, slots=True)
class RoundsEnd:
    """A worker's result of rounds of its lanes."""

    ends: tuple[LaneEnd, ...]
    """Lanes that have ended."""
    trained: int
    """Rounds that were trained."""
