"""Compare two runs of one trial that should be equal to the bit, and name what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpsearch.check.states import same_number, state_differences, value_differences
from hpsearch.trainable import checkpoints

__all__ = ["Difference", "Kind", "TrialRun", "differences"]

Kind = Literal[
    "metric",
    "learning rate",
    "weights",
    "optimizer",
    "data order",
    "random numbers",
    "state",
    "checkpoint",
    "length",
    "module state",
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs between two runs."""

    kind: Kind
    name: str
    """Name of the metric, the checkpoint's entry, the optimizer's option, ..."""
    iteration: int | None
    """The first iteration at which it differs; None: at the end."""
    expected: str
    """Value of the first run, as text."""
    got: str
    """Value of the second run."""
    note: str = ""
    """Its meaning."""

    @property
    def key(self) -> tuple[str, str]:
        """Identifies it, whatever the values."""
        return self.kind, self.name


@dataclass(frozen=True, slots=True)
class TrialRun:
    """Results of a run of a trial, in one or several segments."""

    metrics: Mapping[int, Mapping[str, float]]
    """Metrics by iteration."""
    trace: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """State at the start of each iteration's first step."""
    checkpoint: Path | None = None
    """Checkpoint of the last iteration."""


def differences(expected: TrialRun, got: TrialRun) -> list[Difference]:
    """Return what differs, each at the first iteration at which it does, and in the last checkpoint.

    Raises:
        CheckpointError: A checkpoint can't be read.
    """
    traced: list[Difference] = []
    metrics: dict[str, Difference] = {}
    for iteration in sorted(expected.metrics):
        if iteration not in got.metrics:
            last = max(got.metrics, default=0)
            traced.append(Difference("length", "iterations", iteration, str(max(expected.metrics)), str(last)))
            break
        # Later differences follow from the first.
        traced = traced or [*_at_start(expected, got, iteration)] or [*_after(expected, got, iteration)]
        for one in _in_metrics(expected, got, iteration):
            metrics.setdefault(one.name, one)
    return [*traced, *metrics.values(), *_in_checkpoints(expected, got)]


def _at_start(expected: TrialRun, got: TrialRun, iteration: int) -> Iterator[Difference]:
    """Compare what the first step of an iteration begins with."""
    first, second = expected.trace.get(iteration), got.trace.get(iteration)
    if first is None or second is None or not (first["complete"] and second["complete"]):
        return
    earlier = expected.trace.get(iteration - 1, {})
    same_weights = True
    pairs = list(zip(first["optimizers"], second["optimizers"], strict=False))
    for place, (one, other) in enumerate(pairs):
        label = one["type"] if len(pairs) == 1 else f"{one['type']} {place}"
        if one["weights"] != other["weights"]:
            same_weights = False
            before = earlier.get("optimizers", [])
            begins_anew = place < len(before) and before[place]["weights"] == other["weights"]
            note = f"those with which iteration {iteration - 1} began" if begins_anew else ""
            yield Difference(
                "weights", f"parameters of {label}", iteration, *_digests(one["weights"], other["weights"]), note
            )
        for name in sorted(one["state"].keys() | other["state"].keys()):
            digests = one["state"].get(name), other["state"].get(name)
            if digests[0] != digests[1]:
                note = "no state was loaded" if not other["state"] else ""
                yield Difference("optimizer", f"{name} of {label}", iteration, *_digests(*digests), note)
        yield from _in_options(one["options"], other["options"], label, iteration)
    if same_weights and first["data"] != second["data"]:
        note = f"those of iteration {iteration - 1} again" if earlier.get("data") == second["data"] else ""
        yield Difference("data order", "first batch", iteration, *_digests(first["data"], second["data"]), note)


def _after(expected: TrialRun, got: TrialRun, iteration: int) -> Iterator[Difference]:
    """Compare the optimizers' options at the end of an iteration."""
    first, second = expected.trace.get(iteration), got.trace.get(iteration)
    if first is None or second is None or not (first["complete"] and second["complete"]):
        return
    for one, other in zip(first["optimizers"], second["optimizers"], strict=False):
        yield from _in_options(one["after"], other["after"], f"{one['type']} after the last step", iteration)


def _in_options(one: Any, other: Any, label: str, iteration: int) -> Iterator[Difference]:
    for index, (first, second) in enumerate(zip(one, other, strict=False)):
        for name in sorted((first.keys() | second.keys()) - {"initial_lr"}):
            if not same_number(first.get(name), second.get(name)):
                kind: Kind = "learning rate" if name == "lr" else "optimizer"
                values = str(first.get(name, "-")), str(second.get(name, "-"))
                yield Difference(kind, f"{name} of {label}, group {index}", iteration, *values)


def _in_metrics(expected: TrialRun, got: TrialRun, iteration: int) -> Iterator[Difference]:
    first, second = expected.metrics[iteration], got.metrics[iteration]
    earlier = expected.metrics.get(iteration - 1, {})
    for name in [*first, *(name for name in second if name not in first)]:
        if not same_number(first.get(name), second.get(name)):
            note = f"that of iteration {iteration - 1} again" if second.get(name, -1) == earlier.get(name) else ""
            values = str(first.get(name, "-")), str(second.get(name, "-"))
            yield Difference("metric", name, iteration, *values, note)


def _in_checkpoints(expected: TrialRun, got: TrialRun) -> Iterator[Difference]:
    if expected.checkpoint is None or got.checkpoint is None:
        if expected.checkpoint is not got.checkpoint:
            there = ["none" if one.checkpoint is None else "saved" for one in (expected, got)]
            yield Difference("checkpoint", "at the end", None, there[0], there[1])
        return
    for entry in state_differences(expected.checkpoint, got.checkpoint):
        yield Difference(entry.kind, entry.name, None, entry.first, entry.second, entry.note)
    states = [checkpoints.read_random_state(one) or {} for one in (expected.checkpoint, got.checkpoint)]
    generators = {entry.name.partition(".")[0] for entry in value_differences(states[0], states[1])}
    for name in sorted(generators & {"python", "numpy", "torch", "cuda"}):
        note = "its next draws differ"
        yield Difference("random numbers", f"global generator of {name}", None, "", "", note)


def _digests(first: str | None, second: str | None) -> tuple[str, str]:
    """Return which of two is missing; digests themselves mean nothing to a person."""
    if first is None or second is None:
        return ("-" if first is None else "there"), ("-" if second is None else "there")
    return "", ""
