"""Copies a parent's weights into a child's network.

If the parent's architecture is unknown, weights of equal name and shape are copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.architectures import ArchitectureError, architecture_of
from hpsearch_trainers.inheritance.transfer import Side, Transfer, side_of
from hpsearch_trainers.inheritance.units import Flow, Units, unit_count
from hpsearch_trainers.inheritance.walk import Part, walk

FATES = {
    "same": "as they were",
    "padded": "with zeros around the kernel",
    "widened": "with units repeated",
    "identity": "put in so that they change nothing",
    "sliced": "of which a part fits",
    "new": "anew",
}
"""Fates of layers, from the smallest change to the largest, and their wording."""

_ORDER = list(FATES)


@dataclass(frozen=True)
class Inherited:
    """The origin of each weight and buffer of the child, and whether the child computes the same as its parent."""

    fates: Mapping[str, str]
    """Names in the child's `state_dict()` to one of `FATES`."""
    reasons: tuple[str, ...]
    """Why the child's outputs differ from its parent's. If empty, they are equal in eval mode, up to rounding."""
    by_architecture: bool = True
    """Whether both architectures are known. If not, only names and shapes were compared."""

    @property
    def preserving(self) -> bool:
        """Whether outputs equal the parent's in eval mode, as derived from the architectures."""
        return self.by_architecture and not self.reasons

    @property
    def taken(self) -> tuple[str, ...]:
        """Names of weights that were copied from the parent, at least in part."""
        return tuple(name for name, fate in self.fates.items() if fate not in ("new", "identity"))

    @property
    def left(self) -> tuple[str, ...]:
        """Names of weights that the child keeps as initialized."""
        return tuple(name for name, fate in self.fates.items() if fate == "new")

    @property
    def layers(self) -> dict[str, str]:
        """The fate of each module with weights or buffers. If these have several fates, the largest change counts."""
        fates: dict[str, str] = {}
        for name, fate in self.fates.items():
            layer = name.rpartition(".")[0]
            fates[layer] = max(fates.get(layer, fate), fate, key=_ORDER.index)
        return fates

    def __str__(self) -> str:
        if not self.by_architecture:
            summary = f"inherited {len(self.taken)} of {len(self.fates)} weights and buffers, by name and shape"
            return f"{summary} ({self.reasons[0]})" if self.reasons else summary
        counts = Counter(self.layers.values())
        fates = ", ".join(f"{counts[fate]} {wording}" for fate, wording in FATES.items() if counts[fate]) or "none"
        if self.preserving:
            return f"inherited {len(self.layers)} layers: {fates}; outputs are the parent's"
        more = f", and {len(self.reasons) - 1} more" if len(self.reasons) > 1 else ""
        return (
            f"inherited {len(self.layers)} layers: {fates}; outputs differ from the parent's: {self.reasons[0]}{more}"
        )


def of_same_name_and_shape(child_weights: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parent's weights of equal name and shape.

    Args:
        child_weights: The child's `state_dict()`.
        weights: The parent's.
    """
    return {
        name: weights[name]
        for name, value in child_weights.items()
        if name in weights and weights[name].shape == value.shape
    }


class _Unknown(Exception):
    """Why the two networks can't be compared."""


def inherit(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    architecture: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Inherited:
    """Copy the weights of another model, as far as they match.

    If both were built by `hpsearch_trainers.architectures.network`, their layers are aligned, and the model computes
    the same function as the other one if the architectures allow it (Chen et al., "Net2Net: Accelerating Learning via
    Knowledge Transfer", ICLR 2016). Otherwise weights of equal name and shape are copied. If any weight is NaN,
    nothing is copied.

    Args:
        model: Changed in place.
        weights: The other model's `state_dict()`.
        architecture: The result of `architecture_of` for the other model, or None.
        seed: Seed of all random choices. Equal seeds give equal results on every worker.
    """
    child_weights = model.state_dict()
    broken = [name for name, value in weights.items() if value.is_floating_point() and bool(value.isnan().any())]
    if broken:
        reason = f"the parent's {broken[0]} isn't a number: nothing of it is taken over"
        return Inherited(dict.fromkeys(child_weights, "new"), (reason,), by_architecture=False)
    try:
        return _by_architecture(model, child_weights, weights, architecture, seed)
    except _Unknown as error:
        matching = of_same_name_and_shape(child_weights, weights)
        _write(child_weights, matching)
        fates = {name: "same" if name in matching else "new" for name in child_weights}
        return Inherited(fates, error.args, by_architecture=False)


def _by_architecture(
    model: nn.Module,
    child_weights: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    architecture: Mapping[str, Any] | None,
    seed: int,
) -> Inherited:
    child_architecture = architecture_of(model)
    if child_architecture is None:
        raise _Unknown
    if architecture is None:
        raise _Unknown("the parent's architecture isn't known")
    try:
        child, parent = side_of(child_architecture, child_weights), side_of(architecture, weights)
    except (ArchitectureError, TypeError) as error:
        raise _Unknown(f"an architecture can't be built again: {error}") from error
    for side, owner in ((child, "model"), (parent, "parent")):
        mismatch = _mismatch(side)
        if mismatch is not None:
            raise _Unknown(f"the {owner}'s weights aren't those of its architecture: {mismatch}")
    changed = _changed(model, child)
    if changed is not None:
        raise _Unknown(f"the model's {changed} was changed after it was made")
    transfer = _transfer(child, parent, seed, by_function=False)
    if transfer.reasons:  # another alignment may be exact: [wide, narrow] is also [narrow] with a layer after it
        alternative = _transfer(child, parent, seed, by_function=True)
        transfer = transfer if alternative.reasons else alternative
    _write(child_weights, transfer.new_weights)
    return Inherited({name: transfer.fates.get(name, "new") for name in child_weights}, tuple(transfer.reasons))


def _transfer(child: Side, parent: Side, seed: int, by_function: bool) -> Transfer:
    """Fill stem, body and head from the parent's. The output units must be the parent's, in the same order."""
    transfer = Transfer(torch.Generator().manual_seed(seed), by_function)
    inputs, parent_inputs = (side.shapes[""][0] for side in (child, parent))
    flow = Flow(Units.overlapping(unit_count(inputs), unit_count(parent_inputs)), inputs == parent_inputs)
    if inputs != parent_inputs:
        transfer.reasons.append(f"inputs have the shape {inputs}, and the parent's {parent_inputs}")
    *pairs, last = zip(_parts(transfer, child), _parts(transfer, parent), strict=True)
    for part, parent_part in pairs:
        flow = walk(part, parent_part, flow)
    outputs = child.shapes[""][1][0]
    flow = walk(*last, flow, Units.identity(outputs))
    if flow.exact and not flow.units.identical:
        transfer.reasons.append(f"there are {outputs} outputs, and the parent's {flow.units.of}")
    return transfer


def _parts(transfer: Transfer, side: Side) -> list[Part]:
    """Return stem, body, and the two parts of the head, of which the last makes the outputs."""
    stem, body, head = side.call.arguments
    paths = {"stem": stem, "body": body, "head.0": head.arguments[0], "head.1": head.arguments[1]}
    return [Part(transfer, side, path, call) for path, call in paths.items()]


def _mismatch(side: Side) -> str | None:
    """Return a description of the first weight whose name or shape contradicts the architecture, or None."""
    state = side.weights
    expected = {name: value.shape for name, value in side.modules[""].state_dict().items()}
    for name, shape in expected.items():
        if name not in state:
            return f"{name} is missing"
        if state[name].shape != shape:
            return f"{name} has the shape {tuple(state[name].shape)} in place of {tuple(shape)}"
    return next((f"{name} is not of it" for name in state if name not in expected), None)


def _changed(model: nn.Module, side: Side) -> str | None:
    """Return the name of the first module whose type contradicts the architecture, or None.

    A batch normalization may be synchronized.
    """
    types = {name: type(module) for name, module in model.named_modules()}
    for name, module in side.modules.items():
        synchronized = isinstance(module, nn.modules.batchnorm._BatchNorm) and issubclass(
            types.get(name, nn.Module), nn.modules.batchnorm._BatchNorm
        )
        if types.get(name) is not type(module) and not synchronized:
            return name or "class"
    return None


def _write(child_weights: Mapping[str, Tensor], new_weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in new_weights.items():
            child_weights[name].copy_(value)
