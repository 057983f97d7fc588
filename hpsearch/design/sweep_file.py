"""The search space for a task, and the sweep file of a design, which users may read and edit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hpsearch.design.designed_network import flops, parameter_count
from hpsearch.design.folder import DesignFolder, DesignRequest
from hpsearch.design.pace import ENOUGH_EPOCHS
from hpsearch.design.prepared_rows import PredictionTask
from hpsearch.design.scores import SCORES
from hpsearch.errors import DesignError
from hpsearch.sweep.file import locate
from hpsearch.sweep.sweep import Sweep

TRAINABLE = "hpsearch.design.designed_network:DesignedNetwork"

_COUNTED = {"parameters": ("weights", parameter_count), "flops": ("operations", flops)}
"""Quantities that are computed before training, with their names in the sweep and their functions."""

_WIDE = 300
"""Minimum number of features for which embeddings aren't searched: most of these features are one-hot columns."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The search space of a design."""

    parameters: dict[str, Any]
    """Parameters, as in a sweep file."""
    points: list[dict[str, Any]]
    """Configurations to try first."""

    @property
    def smallest(self) -> dict[str, Any]:
        """Parameters of the smallest network: the first values, because values are in order of size or cost."""
        return {
            name: entry["values"][0] if "values" in entry else entry["min"] for name, entry in self.parameters.items()
        }


def search_space(
    task: PredictionTask, rows: int, goal: str, constants: Mapping[str, Any], limits: Mapping[str, float]
) -> SearchSpace:
    """Return the search space of a task.

    Args:
        task: The inputs and targets.
        rows: Number of search rows.
        goal: A name of `SCORES`.
        constants: Parameters of the trainable that aren't searched.
        limits: Upper bounds on `parameters` and `flops`.

    Raises:
        DesignError: No network of the space is within the limits.
    """
    sizes, other, points = _rows(task) if len(task.inputs) == 1 else _images(task)
    sizes = _within(sizes, other, constants, limits)
    batches = [16, 32, 64] if rows <= 2000 else [32, 64, 128] if rows <= 10_000 else [128, 256, 512]
    training: dict[str, Any] = {
        "lr": {"distribution": "log_uniform_values", "min": 0.0003, "max": 0.02},
        "weight_decay": {"distribution": "log_uniform_values", "min": 0.0001, "max": 1.0},
        "batch_size": {"values": batches, "ordered": True},
    }
    if task.kind == "classes" and goal != "log_loss":
        training["label_smoothing"] = {"values": [0.0, 0.05, 0.1], "ordered": True}
    usual = {"lr": 0.002, "weight_decay": 0.01, "batch_size": batches[1], "label_smoothing": 0.05}
    ordered = {name: {"values": values, "ordered": True} for name, values in sizes.items()}
    parameters = {**ordered, **other, **training}
    complete = [{name: value for name, value in {**usual, **point}.items() if name in parameters} for point in points]
    allowed = [
        point
        for point in complete
        if all(point[name] in values for name, values in sizes.items() if name in point)
        and _is_within(_counts({**constants, **point}, limits), limits)
    ]
    return SearchSpace(parameters, allowed)


Sizes = dict[str, list[Any]]


def _rows(task: PredictionTask) -> tuple[Sizes, dict[str, Any], list[dict[str, Any]]]:
    sizes: Sizes = {"depth": [0, 1, 2, 3, 4], "width": [8, 16, 32, 64, 128, 256]}
    other: dict[str, Any] = {
        "norm": {"values": ["none", "batch", "layer"]},
        "activation": {"values": ["relu", "gelu", "tanh"]},
        "residual": {"values": [False, True]},
        "dropout": {"min": 0.0, "max": 0.5},
    }
    if task.inputs[0] < _WIDE:
        other["embedding"] = {"values": ["none", "periodic"]}
        other["deviation"] = {
            "distribution": "log_uniform_values",
            "min": 0.01,
            "max": 1.0,
            "when": "embedding == 'periodic'",
        }
    plain = {"norm": "none", "activation": "relu", "residual": False, "embedding": "none"}
    points = [
        {"depth": 2, "width": 64, "dropout": 0.2, **plain},
        {"depth": 2, "width": 64, "dropout": 0.2, **plain, "embedding": "periodic", "deviation": 0.1},
        {"depth": 3, "width": 128, "dropout": 0.2, **plain, "norm": "batch", "residual": True},
        {"depth": 0, "width": 8, "dropout": 0.0, **plain},
    ]
    return sizes, other, points


def _images(task: PredictionTask) -> tuple[Sizes, dict[str, Any], list[dict[str, Any]]]:
    side = min(task.inputs[1:])
    stages = max(1, min(4, side.bit_length() - 2))
    first = [1] if stages == 1 else list(range(min(2, stages), stages + 1))
    sizes: Sizes = {
        "stages": first,
        "blocks": [1, 2],
        "channels": [8, 16, 32, 64] if side <= 16 else [8, 16, 32],
        "kernel": [3, 5],
        "side": [1, 2],
    }
    shifts = [0, 1, 2] if side <= 16 else [0, 2, 4]
    other: dict[str, Any] = {
        "block": {"values": ["conv", "residual", "separable"]},
        "dropout": {"min": 0.0, "max": 0.5},
        "shift": {"values": shifts, "ordered": True},
        "mirror": {"values": [False, True]},
    }
    usual = {"block": "conv", "kernel": 3, "side": 2, "dropout": 0.2, "mirror": False}
    points = [
        {**usual, "stages": first[-1], "blocks": 1, "channels": 16, "shift": 0},
        {**usual, "stages": first[0], "blocks": 2, "channels": 16, "shift": shifts[1]},
        {**usual, "stages": first[-1], "blocks": 2, "channels": 32, "shift": shifts[1], "block": "residual"},
    ]
    return sizes, other, points


def _counts(params: Mapping[str, Any], limits: Mapping[str, float]) -> dict[str, int]:
    """Return the quantities of a network that have a limit, by name."""
    return {name: count(params) for name, (_, count) in _COUNTED.items() if name in limits}


def _is_within(counts: Mapping[str, int], limits: Mapping[str, float]) -> bool:
    return all(count <= limits[name] for name, count in counts.items())


def _within(sizes: Sizes, other: Mapping[str, Any], constants: Mapping[str, Any], limits: Mapping[str, float]) -> Sizes:
    """Remove values that satisfy the limits in no combination, so that most samples satisfy them."""
    if not set(limits) & set(_COUNTED):
        return sizes
    names = list(sizes)
    kinds = {name: other[name]["values"][0] for name in ("block", "embedding", "norm") if name in other}
    choices = list(itertools.product(*sizes.values(), *([["conv", "separable"]] if "block" in kinds else [])))
    counts = [
        _counts({**constants, **kinds, **dict(zip([*names, "block"], chosen, strict=False))}, limits)
        for chosen in choices
    ]
    allowed = [chosen for chosen, amounts in zip(choices, counts, strict=True) if _is_within(amounts, limits)]
    if not allowed:
        nearest = min(counts, key=lambda amounts: max(count / limits[name] for name, count in amounts.items()))
        bounds = " and ".join(f"{name}={limits[name]:g}" for name in nearest)
        least = " and ".join(f"{count:,} {name}" for name, count in nearest.items())
        raise DesignError(
            f"--limit {bounds}: must leave a network, but the smallest that is searched has {least}; allow as many"
        )
    return {name: sorted({chosen[index] for chosen in allowed}) for index, name in enumerate(names)}


def sweep_text(record: Mapping[str, Any], request: DesignRequest, space: SearchSpace) -> str:
    """Return the text of the sweep file.

    Args:
        record: Findings about the data: `found`, `constants`, `fit_seconds` and `max_time`.
        request: The request.
        space: The search space.
    """
    constants, limits = record["constants"], request.limits
    goal, epochs = constants["goal"], constants["epochs"]
    bounds = [f"fit_seconds <= {record['fit_seconds']:g}"]
    bounds += [f"latency_ms <= {limits['latency_ms']:g}"] if "latency_ms" in limits else []
    lines = [
        "# Written by `hpsearch design`, and yours to change: `hpsearch design --resume DIR` runs it as it is then.",
        *(f"# {line}" for line in record["found"]),
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
        f"  max_time: {record['max_time']:.0f} # seconds; the rest of --time is for the last fit and the test score",
        *([f"resources: {{workers: {request.workers}}}"] if request.workers is not None else []),
        f"seed: {request.seed}",
        "parameters:",
        "  # What isn't searched.",
        *_entries({name: {"value": value} for name, value in constants.items()}),
        "  # The network, and how it is trained.",
        *_entries(space.parameters),
    ]
    constraints = []
    for quantity, (name, function) in _COUNTED.items():
        derived = {"derived": f"hpsearch.design.designed_network:{function.__name__}"}
        if quantity == "parameters" or quantity in limits:
            lines += _entries({name: derived})
        if quantity in limits:
            constraints.append(f"{name} <= {limits[quantity]:.0f}")
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
        DesignError: The sweep doesn't belong to this design.
    """
    goal, goals = constants["goal"], sweep.objective.goals
    values: dict[str, tuple[object, object]] = {
        "trainable": (TRAINABLE, sweep.trainable),
        "metric": (
            f"{goal}, to {SCORES[goal].goal}",
            " and ".join(f"{metric.name}, to {metric.goal}" for metric in goals),
        ),
        # The last fit ends where a trial's score was reported.
        "metric.scope": ("last", goals[0].scope if goals else "none"),
    }
    fixed = {**constants, "epochs": sweep.iterations}
    if any(bound.metric == "latency_ms" for bound in sweep.objective.constraints):
        fixed["latency"] = True  # otherwise it isn't measured
    for name, value in fixed.items():
        distribution = getattr(sweep.parameters.find(name), "distribution", None)
        values[f"parameters.{name}"] = value, getattr(distribution, "value", "none, or several values")
    for key, (expected, got) in values.items():
        if got != expected:
            raise DesignError(
                f"{locate(folder.sweep, key)}: {key}: must be {expected} in the sweep of this design, got {got}; put "
                "that right, or design anew in a folder of its own"
            )
