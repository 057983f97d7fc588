"""What a segment of a study comes to on the machine that runs it."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

from hpsearch.trainable.assignment import Assignment
from hpsearch.trial import Params, Segment, Trial
from hpsearch.worker.attempt import attempt_directory
from hpsearch.worker.job import Job

__all__ = ["assignment_of"]


def assignment_of(job: Job, root: Path, trial: Trial, segment: Segment, rank: int = 0) -> Assignment:
    """Give what a trainable is to run.

    Args:
        job: What all segments share.
        root: Where attempts write and checkpoints are read, absolute.
        trial: The trial.
        segment: Its segment.
        rank: This worker's among those that run it.
    """
    path = None if segment.checkpoint is None else str(root / segment.checkpoint)
    parent = trial.parent
    if parent is not None and (path is None or parent.checkpoint != segment.checkpoint):
        parent = None  # there was nothing to take over, or it has a checkpoint of its own
    return Assignment(
        number=trial.number,
        params=_params(job, trial),
        seed=trial.seed,
        directory=f"{root}/{attempt_directory(segment, rank)}",  # a Path for each attempt would be dear
        start=segment.start,
        end=segment.end,
        checkpoint=path if parent is None or segment.start > 0 else None,
        objective=job.objective,
        save_every=job.save_every,
        rank=rank,
        world_size=segment.width,
        scaling=dict(job.scaling),
        parallel={} if job.strategies is None else job.strategies.of(trial.params),
        parent=None if parent is None else parent.number,
        parent_checkpoint=None if parent is None else path,
        changed={} if parent is None else _changed(trial.params, parent.params),
    )


def _changed(own: Params, parents: Params) -> dict[str, tuple[float, float]]:
    """Return the numbers that differ from the parent's, and the parent's first."""
    pairs = {name: (parents[name], value) for name, value in own.items() if name in parents}
    return {
        name: (float(theirs), float(value))
        for name, (theirs, value) in pairs.items()
        if isinstance(theirs, int | float) and isinstance(value, int | float)
        if not math.isclose(theirs, value, rel_tol=1e-5)  # what float32 can tell apart
    }


def _params(job: Job, trial: Trial) -> dict[str, Any]:
    """Give a trial's params as the trainable sees them, with nothing in them that is anybody else's."""
    return copy.deepcopy(dict(trial.params)) if job.parameters is None else job.parameters.nest(trial.params)
