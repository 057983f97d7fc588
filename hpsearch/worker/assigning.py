"""Turn a segment into the assignment of the machine that runs it."""

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
    """Return the assignment of a trainable.

    Args:
        job: What all segments share.
        root: Absolute path of the directory that attempts write to and read checkpoints from.
        trial: The trial.
        segment: Its segment.
        rank: This worker's rank in the segment's gang.
    """
    path = None if segment.checkpoint is None else str(root / segment.checkpoint)
    parent = trial.parent
    if parent is not None and (path is None or parent.checkpoint != segment.checkpoint):
        parent = None  # there is no parent's state, or the trial has its own checkpoint
    return Assignment(
        number=trial.number,
        params=_params(job, trial),
        seed=trial.seed,
        directory=f"{root}/{attempt_directory(segment, rank)}",  # a Path for each attempt would be slow
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
    """Return (parent's value, own value) of the numbers that differ from the parent's."""
    pairs = {name: (parents[name], value) for name, value in own.items() if name in parents}
    return {
        name: (float(theirs), float(value))
        for name, (theirs, value) in pairs.items()
        if isinstance(theirs, int | float) and isinstance(value, int | float)
        if not math.isclose(theirs, value, rel_tol=1e-5)  # float32's resolution
    }


def _params(job: Job, trial: Trial) -> dict[str, Any]:
    """Return a trial's params as the trainable sees them: a deep copy."""
    return copy.deepcopy(dict(trial.params)) if job.parameters is None else job.parameters.nest(trial.params)
