"""Read workers' heartbeats and results, and write the checkpoints and logs that came with them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpsearch.backends.ray.mailbox import Heartbeat
from hpsearch.backends.ray.messages import RunResponse
from hpsearch.backends.slots import Flight
from hpsearch.errors import UnreadableCheckpointError
from hpsearch.events import Saved
from hpsearch.task import Progress, Result
from hpsearch.trainable.addresses import PACKS
from hpsearch.trainable.checkpoints import pack, unpack
from hpsearch.trainable.storage import writing
from hpsearch.trial import Segment
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.attempt_log import LOG

__all__ = ["pack_checkpoint", "read_heartbeat", "read_response"]


def pack_checkpoint(study: Path, segment: Segment) -> bytes | None:
    """Return the checkpoint that a segment starts from as bytes; None if there is none, which the worker reports."""
    if segment.checkpoint is None:
        return None
    with contextlib.suppress(UnreadableCheckpointError):
        return pack(study / segment.checkpoint)
    return None


def read_heartbeat(study: Path, flight: Flight, heartbeat: Heartbeat) -> list[Progress | Saved]:
    """Return what happened since the last heartbeat."""
    progress = Progress(*flight.task.key, heartbeat.reports)
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
        whole = _merged(saves)
        saves = [whole] if whole.checkpoint == newest else []
        if not saves:
            result = replace(result, reports=whole.reports + result.reports)
    return saves, result


def _merged(saves: Sequence[Saved]) -> Saved:
    """Return the newest of several checkpoints, with the reports of all: only that one travelled."""
    return replace(saves[-1], reports=tuple(report for save in saves for report in save.reports))
