"""What letters and deliveries of workers say to the orchestrator; what travelled with them is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpsearch.backends.base import Progress
from hpsearch.backends.ray.mailbox import Letter, Save
from hpsearch.backends.ray.worker import Delivery
from hpsearch.backends.slots import Flight
from hpsearch.trainable.checkpoints import unpack
from hpsearch.trainable.storage import writing
from hpsearch.trial import Report
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.attempt_log import LOG
from hpsearch.worker.job import SegmentResult

__all__ = ["read_delivery", "read_letter"]


def read_letter(study: Path, flight: Flight, letter: Letter) -> list[Progress]:
    """Tell what happened since the last letter."""
    told = [Progress(*flight.key, letter.reports, None)]
    if not letter.saves:
        return told
    if letter.packed is not None:
        unpack(letter.packed, study / letter.saves[-1].checkpoint)
    flight.counted = letter.saves[-1].iteration
    saves = letter.saves if letter.packed is None else (_merged(letter.saves),)
    return told + [Progress(*flight.key, (), (save.iteration, save.checkpoint, save.reports)) for save in saves]


def read_delivery(study: Path, flight: Flight, delivery: Delivery, sees: bool) -> tuple[list[Progress], SegmentResult]:
    """Tell of checkpoints whose letters haven't come, and give the result with the reports that no checkpoint covers.

    Args:
        study: The study's directory.
        flight: What was delivered.
        delivery: What the worker gave back.
        sees: Whether the worker sees the study's directory; if not, its checkpoints but the newest are gone.
    """
    result = delivery.result
    if delivery.log is not None:
        directory = study / attempt_directory(flight.task.segment, flight.rank)
        with writing(f"the attempt's directory {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / LOG).write_bytes(delivery.log)
    saves = [save for save in delivery.saves if save.iteration > flight.counted]
    newest = result.checkpoint or (saves[-1].checkpoint if saves else None)
    if delivery.packed is not None and newest is not None:
        unpack(delivery.packed, study / newest)
    told: list[Progress] = []
    held: tuple[Report, ...] = ()
    for save in saves:
        held += save.reports
        if sees or save.checkpoint == newest:
            told.append(Progress(*flight.key, (), (save.iteration, save.checkpoint, held)))
            held = ()
    if held:
        result = replace(result, reports=held + result.reports)
    return told, result


def _merged(saves: Sequence[Save]) -> Save:
    """Give the newest of several checkpoints, with the reports of all: only that one travelled."""
    return replace(saves[-1], reports=tuple(report for save in saves for report in save.reports))
