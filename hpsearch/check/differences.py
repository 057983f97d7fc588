"""Compare two runs of one trial that should be equal to the bit, and name what differs."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpsearch.trainable import checkpoints

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
    """Meaning of the difference."""

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the difference, regardless of the values."""
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
    """Return each difference, at the first iteration where it occurs, and those of the last checkpoint.

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
        for difference in _in_metrics(expected, got, iteration):
            metrics.setdefault(difference.name, difference)
    return [*traced, *metrics.values(), *_in_checkpoints(expected, got)]


def _at_start(expected: TrialRun, got: TrialRun, iteration: int) -> Iterator[Difference]:
    """Compare the states before the first step of an iteration."""
    first, second = expected.trace.get(iteration), got.trace.get(iteration)
    if first is None or second is None or not (first["complete"] and second["complete"]):
        return
    earlier = expected.trace.get(iteration - 1, {})
    same_weights = True
    pairs = list(zip(first["optimizers"], second["optimizers"], strict=False))
    for index, (one, other) in enumerate(pairs):
        label = one["type"] if len(pairs) == 1 else f"{one['type']} {index}"
        if one["weights"] != other["weights"]:
            same_weights = False
            before = earlier.get("optimizers", [])
            begins_anew = index < len(before) and before[index]["weights"] == other["weights"]
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
            there = ["none" if run.checkpoint is None else "saved" for run in (expected, got)]
            yield Difference("checkpoint", "at the end", None, there[0], there[1])
        return
    one, other = (checkpoints.read_state(path) for path in (expected.checkpoint, got.checkpoint))
    if isinstance(one, Path) and isinstance(other, Path):
        yield from _in_files(one, other)
    else:
        yield from value_differences(one, other)
    states = [checkpoints.read_random_state(path) or {} for path in (expected.checkpoint, got.checkpoint)]
    generators = {entry.name.partition(".")[0] for entry in value_differences(states[0], states[1])}
    for name in sorted(generators & {"python", "numpy", "torch", "cuda"}):
        note = "its next draws differ"
        yield Difference("random numbers", f"global generator of {name}", None, "", "", note)


def _digests(first: str | None, second: str | None) -> tuple[str, str]:
    """Return texts for two digests: the digests themselves mean nothing to the user."""
    if first is None or second is None:
        return ("-" if first is None else "there"), ("-" if second is None else "there")
    return "", ""


_RATES = frozenset({"lr", "initial_lr", "last_lr", "_last_lr", "base_lrs", "learning_rate"})


def value_differences(first: Any, second: Any, name: str = "", kind: Kind = "state") -> Iterator[Difference]:
    """Compare two values of tensors, plain containers and plain values.

    Args:
        first: A value.
        second: The other one.
        name: Name of both values.
        kind: Kind of the object that contains them.
    """
    import torch

    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if (note := _in_tensors(first, second)) is not None:
            is_weights = kind == "state" and first.is_floating_point()
            yield Difference("weights" if is_weights else kind, name, None, *_shown_tensors(first, second), note)
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        inner = _kind_of(first, kind)
        for key in [*first, *(key for key in second if key not in first)]:
            path = f"{name}.{key}" if name else str(key)
            of_key: Kind = "learning rate" if key in _RATES else inner
            if key in first and key in second:
                yield from value_differences(first[key], second[key], path, of_key)
            else:
                shown = ("there", "-") if key in first else ("-", "there")
                yield Difference(of_key, path, None, *shown)
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            yield Difference(kind, name, None, f"{len(first)} items", f"{len(second)} items")
            return
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from value_differences(one, other, f"{name}.{index}" if name else str(index), kind)
    elif type(first) is not type(second) or not same_number(first, second):
        yield Difference(kind, name, None, _shown(first), _shown(second))


def same_number(first: object, second: object) -> bool:
    """Return whether two values are equal; floats to the bit, but all NaN are equal."""
    if isinstance(first, float) and isinstance(second, float):
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or struct.pack("<d", first) == struct.pack("<d", second)
    return bool(first == second)


def _kind_of(state: Mapping[Any, Any], kind: Kind) -> Kind:
    """Name the owner of a dictionary, if its keys are those of torch's optimizers or schedulers."""
    if {"state", "param_groups"} <= state.keys():
        return "optimizer"
    if {"last_epoch", "_step_count"} <= state.keys():
        return "learning rate"
    return kind


def _in_tensors(first: Any, second: Any) -> str | None:
    """Return how two tensors differ; None if they don't."""
    import torch

    if first.dtype != second.dtype or first.shape != second.shape:
        return "another dtype or shape"
    if first.layout != torch.strided or second.layout != torch.strided:
        first, second = first.to_dense(), second.to_dense()
    one, other = (tensor.detach().contiguous().reshape(-1) for tensor in (first, second))
    if torch.equal(one.view(torch.uint8), other.view(torch.uint8)):
        return None
    if one.is_complex() or one.dtype == torch.bool:
        return f"{int((one != other).sum())} of {one.numel():,} values differ"
    distance = (one.double() - other.double()).abs().nan_to_num(math.inf)
    return f"{int((distance > 0).sum()):,} of {one.numel():,} values differ, by up to {float(distance.max()):.3g}"


def _shown_tensors(first: Any, second: Any) -> tuple[str, str]:
    if first.numel() == second.numel() == 1:
        return str(first.item()), str(second.item())
    if first.shape != second.shape or first.dtype != second.dtype:
        return (f"{first.dtype} {tuple(first.shape)}", f"{second.dtype} {tuple(second.shape)}")
    return "", ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _in_files(first: Path, second: Path) -> Iterator[Difference]:
    """Compare two files, or all files in two directories."""
    if first.is_file() and second.is_file():
        yield from _in_file(first, second, first.name)
        return
    names = [{str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (first, second)]
    for name in sorted(names[0] | names[1]):
        if name in names[0] and name in names[1]:
            yield from _in_file(first / name, second / name, name)
        else:
            yield Difference("state", name, None, *(("there", "-") if name in names[0] else ("-", "there")))


def _in_file(first: Path, second: Path, name: str) -> Iterator[Difference]:
    import torch

    if first.read_bytes() == second.read_bytes():
        return
    try:
        states = [torch.load(path, weights_only=True, map_location="cpu") for path in (first, second)]
    except Exception:  # it isn't a torch file, or contains other objects
        yield Difference("state", name, None, f"{first.stat().st_size:,} bytes", f"{second.stat().st_size:,} bytes")
        return
    yield from value_differences(states[0], states[1], name)
