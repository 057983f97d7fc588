"""Compare two saved states, entry by entry, to the bit."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hpsearch.trainable import checkpoints

__all__ = ["StateEntry", "StateKind", "same_number", "state_differences", "value_differences"]

StateKind = Literal["weights", "learning rate", "optimizer", "state"]

_RATES = frozenset({"lr", "initial_lr", "last_lr", "_last_lr", "base_lrs", "learning_rate"})


class StateEntry(NamedTuple):
    """An entry of a state that differs from another one's."""

    kind: StateKind
    name: str
    """Path of the entry: `optimizer.param_groups.0.lr`."""
    first: str
    second: str
    note: str = ""


def state_differences(first: Path, second: Path) -> Iterator[StateEntry]:
    """Compare what the user saved in two checkpoints.

    Raises:
        CheckpointError: One can't be read.
    """
    one, other = checkpoints.read_state(first), checkpoints.read_state(second)
    if isinstance(one, Path) and isinstance(other, Path):
        yield from _in_files(one, other)
    else:
        yield from value_differences(one, other)


def value_differences(first: Any, second: Any, name: str = "", kind: StateKind = "state") -> Iterator[StateEntry]:
    """Compare two values of tensors, plain containers and plain values.

    Args:
        first: A value.
        second: The other one.
        name: What both are called.
        kind: What they are a part of.
    """
    import torch

    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if (note := _in_tensors(first, second)) is not None:
            is_weights = kind == "state" and first.is_floating_point()
            yield StateEntry("weights" if is_weights else kind, name, *_shown_tensors(first, second), note)
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        inner = _kind_of(first, kind)
        for key in [*first, *(key for key in second if key not in first)]:
            path = f"{name}.{key}" if name else str(key)
            of_key: StateKind = "learning rate" if key in _RATES else inner
            if key in first and key in second:
                yield from value_differences(first[key], second[key], path, of_key)
            else:
                shown = ("there", "-") if key in first else ("-", "there")
                yield StateEntry(of_key, path, *shown)
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            yield StateEntry(kind, name, f"{len(first)} items", f"{len(second)} items")
            return
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from value_differences(one, other, f"{name}.{index}" if name else str(index), kind)
    elif type(first) is not type(second) or not same_number(first, second):
        yield StateEntry(kind, name, _shown(first), _shown(second))


def same_number(first: object, second: object) -> bool:
    """Return whether two values are equal; floats to the bit, but all NaN are one."""
    if isinstance(first, float) and isinstance(second, float):
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or struct.pack("<d", first) == struct.pack("<d", second)
    return bool(first == second)


def _kind_of(state: Mapping[Any, Any], kind: StateKind) -> StateKind:
    """Name the owner of a dictionary, if its keys are those of torch's optimizers or schedulers."""
    if {"state", "param_groups"} <= state.keys():
        return "optimizer"
    if {"last_epoch", "_step_count"} <= state.keys():
        return "learning rate"
    return kind


def _in_tensors(first: Any, second: Any) -> str | None:
    """Return how two tensors differ; None where they don't."""
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


def _in_files(first: Path, second: Path) -> Iterator[StateEntry]:
    """Compare files, or all that lies in two directories."""
    if first.is_file() and second.is_file():
        yield from _in_file(first, second, first.name)
        return
    names = [{str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (first, second)]
    for name in sorted(names[0] | names[1]):
        if name in names[0] and name in names[1]:
            yield from _in_file(first / name, second / name, name)
        else:
            yield StateEntry("state", name, *(("there", "-") if name in names[0] else ("-", "there")))


def _in_file(first: Path, second: Path, name: str) -> Iterator[StateEntry]:
    import torch

    if first.read_bytes() == second.read_bytes():
        return
    try:
        states = [torch.load(path, weights_only=True, map_location="cpu") for path in (first, second)]
    except Exception:  # it isn't torch's, or holds objects
        yield StateEntry("state", name, f"{first.stat().st_size:,} bytes", f"{second.stat().st_size:,} bytes")
        return
    yield from value_differences(states[0], states[1], name)
