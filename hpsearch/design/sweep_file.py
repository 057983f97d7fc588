"""The sweep file of a design: for a person to read, and to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hpsearch.design.folder import DesignFolder
from hpsearch.design.pace import ENOUGH_EPOCHS
from hpsearch.design.scores import SCORES
from hpsearch.design.search_space import SearchSpace
from hpsearch.errors import DesignError
from hpsearch.space import Constant
from hpsearch.sweep.file import locate
from hpsearch.sweep.sweep import Sweep

__all__ = ["TRAINABLE", "Plan", "check_sweep", "sweep_text"]

TRAINABLE = "hpsearch.design.designed_network:DesignedNetwork"

_COUNTED = {"parameters": ("weights", "parameter_count"), "flops": ("operations", "flops")}
"""Quantities that are computed before training: the sweep's names, and the functions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The file's content besides the space."""

    found: tuple[str, ...]
    """Description of the data, in lines."""
    constants: Mapping[str, Any]
    """Parameters that aren't searched."""
    limits: Mapping[str, float]
    fit_seconds: float
    """Most that the last fit may take."""
    max_time: float
    """Seconds of the search."""
    workers: int | None
    seed: int


def sweep_text(plan: Plan, space: SearchSpace) -> str:
    """Write the file."""
    goal, epochs = plan.constants["goal"], plan.constants["epochs"]
    bounds = [f"fit_seconds <= {plan.fit_seconds:g}"]
    bounds += [f"latency_ms <= {plan.limits['latency_ms']:g}"] if "latency_ms" in plan.limits else []
    lines = [
        "# Written by `hpsearch design`, and yours to change: `hpsearch design --resume DIR` runs it as it is then.",
        *(f"# {line}" for line in plan.found),
        "name: design",
        f"trainable: {TRAINABLE}",
        f"metric: {{name: {goal}, goal: {SCORES[goal].goal}}} # each validated row is predicted by a network that "
        "didn't see it",
        "outcome_constraints:",
        f"  - {bounds[0]} # of the last fit, on all rows, so that it ends in time",
        *(f"  - {bound} # of one row" for bound in bounds[1:]),
        "method: tpe",
        "early_terminate:",
        "  type: asha",
        f"  max_iter: {epochs} # epochs; `epochs` below is the same, over which the learning rate falls to 0",
        f"  min_iter: {-(-epochs // (9 if epochs > ENOUGH_EPOCHS else 3))}",
        "limits:",
        f"  max_time: {plan.max_time:.0f} # seconds; what is left of --time is for the last fit and the test score",
        *([f"resources: {{workers: {plan.workers}}}"] if plan.workers is not None else []),
        f"seed: {plan.seed}",
        "parameters:",
        "  # What isn't searched.",
        *_entries({name: {"value": value} for name, value in plan.constants.items()}),
        "  # The network, and how it is trained.",
        *_entries(space.parameters),
    ]
    constraints = []
    for what, (name, function) in _COUNTED.items():
        derived = {"derived": f"hpsearch.design.designed_network:{function}"}
        if what == "parameters" or what in plan.limits:
            lines += _entries({name: derived})
        if what in plan.limits:
            constraints.append(f"{name} <= {plan.limits[what]:.0f}")
    if constraints:
        lines += ["constraints: # of the delivered network, counted before anything trains"]
        lines += [f"  - {constraint}" for constraint in constraints]
    if space.points:
        lines += [
            "points_to_try: # what usually works; take out what is no longer allowed above",
            *(f"  - {_flow(point)}" for point in space.points),
        ]
    return "\n".join(lines) + "\n"


def _entries(parameters: Mapping[str, Any]) -> list[str]:
    return [f"  {name}: {_flow(value)}" for name, value in parameters.items()]


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.strip()


def check_sweep(sweep: Sweep, folder: DesignFolder, constants: Mapping[str, Any]) -> None:
    """Check that an edited sweep still belongs to this design.

    Args:
        sweep: The file's current sweep.
        folder: The design's folder.
        constants: Parameters that aren't searched, as originally written.

    Raises:
        DesignError: It doesn't.
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
        wanted["latency"] = True  # else it isn't measured
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
