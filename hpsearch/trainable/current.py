"""The trial that this process runs."""

from __future__ import annotations

import os
from pathlib import Path

from hpsearch.errors import TrainableError
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trainable.script_trial import open_script_trial

__all__ = ["current_trial", "here", "set_current_trial"]

_current: RunningTrial | None = None


def here() -> RunningTrial | None:
    """Give the trial that was set in this process; None where there is none."""
    return _current


def set_current_trial(trial: RunningTrial | None) -> None:
    """Say which trial this process runs now."""
    global _current
    _current = trial


def current_trial() -> RunningTrial:
    """Give the trial that this process runs: in a script that the sweep started, or in a function or class.

    In a script, the first call seeds the global generators; those of a library that is imported later, with its import.

    Raises:
        TrainableError: This process runs no trial.
    """
    if _current is not None:
        return _current
    assignment = os.environ.get("HPSEARCH_TRIAL")
    if assignment is None:
        raise TrainableError(
            "hpsearch.current_trial() must be called while a sweep runs this script or function, but "
            "HPSEARCH_TRIAL isn't set: name the script as `program` in a sweep file, and start that with "
            "`hpsearch run SWEEP.yaml`"
        )
    trial = open_script_trial(Path(assignment))
    set_current_trial(trial)
    return trial
