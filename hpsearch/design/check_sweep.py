"""What may be changed in a design's sweep file: all but what makes the result another thing than was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpsearch.design.folder import DesignFolder
from hpsearch.design.sweep_text import TRAINABLE
from hpsearch.errors import DesignError
from hpsearch.space import Constant
from hpsearch.sweep.file import locate
from hpsearch.sweep.sweep import Sweep
from hpsearch_trainers.scores import SCORES

__all__ = ["check_sweep"]


def check_sweep(sweep: Sweep, folder: DesignFolder, constants: Mapping[str, Any]) -> None:
    """See that a sweep, which somebody may have changed, still is one of this design.

    Args:
        sweep: As the file has it now.
        folder: The design's.
        constants: Parameters that aren't searched, as the file was written with them.

    Raises:
        DesignError: It isn't.
    """
    goal = constants["goal"]
    if sweep.trainable != TRAINABLE:
        raise _refused(folder, "trainable", TRAINABLE, sweep.trainable)
    if sweep.objective.several:
        raise _refused(folder, "metric", f"{goal} alone", ", ".join(one.name for one in sweep.objective.goals))
    metric = sweep.objective.goals[0]
    if (metric.name, metric.goal) != (goal, SCORES[goal].goal):
        raise _refused(folder, "metric", f"{goal}, to {SCORES[goal].goal}", f"{metric.name}, to {metric.goal}")
    if metric.scope != "last":
        raise _refused(
            folder, "metric.scope", "last, as the last fit ends where a trial's score was reported", metric.scope
        )
    wanted = {**constants, "epochs": sweep.iterations}
    if any(bound.metric == "latency_ms" for bound in sweep.objective.constraints):
        wanted["latency"] = True  # else nobody measures it
    for name, value in wanted.items():
        parameter = sweep.parameters.find(name)
        given = None if parameter is None else parameter.distribution
        if not isinstance(given, Constant) or given.value != value:
            told = repr(given.value) if isinstance(given, Constant) else "none" if given is None else "several values"
            raise _refused(folder, f"parameters.{name}", repr(value), told)


def _refused(folder: DesignFolder, key: str, wanted: str, got: object) -> DesignError:
    return DesignError(
        f"{locate(folder.sweep, key)}: {key}: must be {wanted} in the sweep of this design, got {got}; put that right, "
        "or design anew in a folder of its own"
    )
