"""Functions for the integrations to access the trial of this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import TrainableError
from hpsearch.trainable import random_state
from hpsearch.trainable.current import current_trial
from hpsearch.trainable.running_trial import RunningTrial, SegmentEnd


def trial_of_one(caller: str, processes: int) -> RunningTrial:
    """Return the trial that this process runs.

    Args:
        caller: Name of the function that the user called, for errors.
        processes: Number of processes that the library trains with.

    Raises:
        TrainableError: There is no trial; several processes train it; or it inherits only the weights of another trial,
            and counts iterations from 0.
    """
    trial = current_trial()
    if max(trial.world_size, processes) > 1:
        raise TrainableError(
            f"{caller} must train in one process, but the sweep gives the trial {trial.world_size} and the library "
            f"{processes}: leave workers_per_trial and max_workers_per_trial at 1, and name one device to the library"
        )
    if trial.parent is not None and trial.start == 0:
        raise TrainableError(
            f"{caller} can't let a trial inherit another one's weights and begin at iteration 0: it resumes from a "
            "whole checkpoint. Leave `inherit` out, or write the loop yourself"
        )
    return trial


def start_path(trial: RunningTrial) -> Path | None:
    """Return the path of the checkpoint to resume from, without restoring the random number generators."""
    here = random_state.capture()
    path = trial.checkpoint  # restores the generators' state at the checkpoint
    random_state.restore(here)
    return None if path is None else Path(path)


def report(trial: RunningTrial, metrics: Mapping[str, Any], checkpoint: Callable[[], object] | Path) -> bool:
    """Report an iteration. Return whether the segment ends with it. Then the library's loop must end."""
    try:
        trial.report(metrics, checkpoint=checkpoint)
    except SegmentEnd:
        return True
    return False


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are scalars, as floats."""
    scalars: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, bool | str) or (shape := getattr(value, "shape", ())) is None:
            continue
        if isinstance(value, int | float) or (math.prod(shape) == 1 and hasattr(value, "item")):
            scalars[name] = float(value)
    return scalars
