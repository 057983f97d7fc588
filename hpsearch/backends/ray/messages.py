"""Messages between the driver and a worker's actor, and functions with which the driver reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpsearch.backends.ray.mailbox import Heartbeat
from hpsearch.backends.slots import Flight
from hpsearch.errors import UnreadableCheckpointError
from hpsearch.events import Saved
from hpsearch.task import Progress, Result
from hpsearch.trainable.addresses import PACKS
from hpsearch.trainable.checkpoints import pack, unpack
from hpsearch.trainable.storage import writing
from hpsearch.trial import Segment, Trial
from hpsearch.worker.attempt import LOG, attempt_directory
from hpsearch.worker.gang import RankInfo


@dataclass(frozen=True, slots=True)
class Location:
    """Where a worker runs."""

    node: str
    """Workers of the same node can share memory."""
    interface: str
    """The address at which other nodes reach this node."""


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
    """Why it can't run this study's trainable; None if it can."""
    closes: bool = False
    """Objects of the trainable have a `close()`."""
    lanes: int = 1
    """Segments that it runs in parallel."""
    why_whole: str | None = None
    """Why it runs one segment at a time, if the study requests lanes."""
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
    memory: int
    """Resident bytes of the worker."""
    address: str
    """Address for the other ranks of its next gang."""
    saves: tuple[Saved, ...] = ()
    """All checkpoints inside the segment; the driver may have received some of them."""
    packed: bytes | None = None
    """The newest checkpoint, from a worker that doesn't see the study's directory."""
    log: bytes | None = None
    """Its output, from such a worker."""
    log_of_lanes: bytes | None = None
    """Output of trials that trained together since the last response, from such a worker."""


@dataclass(frozen=True, slots=True)
class RoundsEnd:
    """A worker's result of rounds of its lanes."""

    ends: tuple[RunResponse, ...]
    """Lanes that have ended."""
    trained: int
    """Rounds that were trained."""


def pack_checkpoint(study: Path, segment: Segment) -> bytes | None:
    """Return the checkpoint that a segment starts from as bytes; None if there is none, which the worker reports."""
    if segment.checkpoint is None:
        return None
    with contextlib.suppress(UnreadableCheckpointError):
        return pack(study / segment.checkpoint)
    return None


def read_heartbeat(study: Path, flight: Flight, heartbeat: Heartbeat) -> list[Progress | Saved]:
    """Return what happened since the last heartbeat."""
    progress = Progress(*flight.task.key, heartbeat.reports, heartbeat.notes)
    if not heartbeat.saves:
        return [progress]
    if heartbeat.packed is not None:
        assert heartbeat.saves[-1].checkpoint is not None, "it was packed"
        unpack(heartbeat.packed, study / heartbeat.saves[-1].checkpoint)
    flight.counted = heartbeat.saves[-1].iteration
    saves = heartbeat.saves if heartbeat.packed is None else (_merged(heartbeat.saves),)
    return [progress, *saves]


def read_response(study: Path, flight: Flight, response: RunResponse, sees: bool) -> tuple[list[Saved], Result]:
    """Return the checkpoints whose heartbeats haven't come, and the result with the reports that none of them covers.

    Args:
        study: The study's directory.
        flight: The task.
        response: The worker's result.
        sees: Whether the worker sees the study's directory; if not, only its newest checkpoint is left.
    """
    result = response.result
    if response.log is not None:
        directory = study / attempt_directory(flight.task.segment, flight.rank)
        with writing(f"the attempt's directory {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / LOG).write_bytes(response.log)
    if response.log_of_lanes is not None:
        log = study / PACKS / LOG
        with writing(f"the output {log}"):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as file:
                file.write(response.log_of_lanes)
    saves = [save for save in response.saves if save.iteration > flight.counted]
    newest = result.checkpoint or (saves[-1].checkpoint if saves else None)
    if response.packed is not None and newest is not None:
        unpack(response.packed, study / newest)
    if saves and not sees:
        merged = _merged(saves)
        saves = [merged] if merged.checkpoint == newest else []
        if not saves:
            result = replace(result, reports=merged.reports + result.reports)
    return saves, result


def _merged(saves: Sequence[Saved]) -> Saved:
    """Return the newest of several checkpoints, with the reports of all: only the newest one was sent."""
    return replace(saves[-1], reports=tuple(report for save in saves for report in save.reports))
