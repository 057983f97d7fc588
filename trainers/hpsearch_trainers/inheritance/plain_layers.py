"""Weights for layers that keep units apart: activations, pools, normalizations, flattening."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.inheritance.transfer import ModulePath, Transfer
from hpsearch_trainers.inheritance.units import Flow, Units

__all__ = [
    "activation",
    "batch_norm",
    "flattening",
    "nothing",
    "pixels_as_tokens",
    "pool",
    "positions",
    "same_settings",
    "scaling_norm",
    "zeros",
]


def same_settings(one: nn.Module, other: nn.Module, but: tuple[str, ...] = ()) -> bool:
    """Return whether two modules of a type are equal apart from weights, training mode and the attributes `but`."""
    mine, theirs = (
        {
            name: value
            for name, value in vars(each).items()
            if not name.startswith("_") and name not in ("training", *but)
        }
        for each in (one, other)
    )
    return mine == theirs


def nothing(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None) -> Flow:
    """Keep the flow of a module that is the identity in eval mode."""
    return flow


def activation(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Follow an activation. An inserted ReLU changes nothing after another one."""
    of_child = child.module
    rectifies = isinstance(of_child, nn.ReLU)
    if parent is None:
        if rectifies and flow.nonnegative:
            return flow
        exact = transfer.checked(flow, child, {"is new, and changes values that come to it": True})
        return Flow(flow.units, exact, isinstance(of_child, nn.ReLU | nn.ReLU6 | nn.Sigmoid))
    problems = {"has other settings than the parent's": not same_settings(of_child, parent.module, ("inplace",))}
    moments = None
    if rectifies and flow.moments is not None:
        moments = flow.moments if flow.nonnegative else rectified(*flow.moments)
    nonnegative = isinstance(of_child, nn.ReLU | nn.ReLU6 | nn.Sigmoid)
    return Flow(flow.units, transfer.checked(flow, child, problems), nonnegative, moments)


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of max(x, 0) for a normal x."""
    deviation = variance.clamp(min=1e-12).sqrt()
    ratio = mean / deviation
    density = torch.exp(-(ratio**2) / 2) / (2 * torch.pi) ** 0.5
    share = torch.special.ndtr(ratio)
    first = mean * share + deviation * density
    second = (mean**2 + deviation**2) * share + mean * deviation * density
    return first, (second - first**2).clamp(min=0.0)


def pool(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None) -> Flow:
    """Follow a pool, over windows or the whole image. An inserted one changes nothing if there is a single pixel."""
    if parent is None:
        problems = {"is new, and pools what comes to it": not keeps_image(child)}
    else:
        alike = same_settings(child.module, parent.module) or (keeps_image(child) and keeps_image(parent))
        problems = {"pools otherwise than the parent's": not alike}
    return replace(flow, exact=transfer.checked(flow, child, problems))


def keeps_image(place: ModulePath) -> bool:
    """Return whether a pool is the identity."""
    made: Any = place.module
    before, behind = place.shapes
    if before != behind or len(before) != 3:
        return False
    if isinstance(made, nn.AdaptiveAvgPool2d):
        return True
    counts_padding = isinstance(made, nn.AvgPool2d) and (made.count_include_pad or made.divisor_override is not None)
    return before[1:] == (1, 1) and not counts_padding


def flattening(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Follow `nn.Flatten`."""
    before = child.shapes[0]
    if len(before) == 1:
        return flow
    if parent is None:
        flow = replace(flow, exact=transfer.checked(flow, child, {"is new": True}))
    beside = before if parent is None else parent.shapes[0]
    moments: tuple[Tensor, Tensor] | None
    if len(before) == 3 and len(beside) == 3:
        units = flow.units.spread((before[1], before[2]), (beside[1], beside[2]))
        places = before[1] * before[2]
        mean, variance = flow.moments or (None, None)
        moments = None
        if mean is not None and variance is not None:
            moments = mean.repeat_interleave(places), variance.repeat_interleave(places)
        return replace(flow, units=units, moments=moments)
    if len(before) == 2 and len(beside) == 2:
        return replace(flow, units=flow.units.stacked(before[0], beside[0]), moments=None)
    units = Units.overlapping(child.units[1], child.units[1] if parent is None else parent.units[1])
    return Flow(units, transfer.checked(flow, child, {"makes a row of another shape": True}))


def pixels_as_tokens(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Follow pixels turned into tokens, or the mean over pixels or tokens."""
    return replace(flow, exact=transfer.checked(flow, child, {"is new": parent is None}))


def zeros(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None) -> Flow:
    """Follow zeros, which can repeat any units."""
    if parent is None:
        return Flow(flow.units, transfer.checked(flow, child, {"is new": True}), True)
    units = flow.units if wanted is None else wanted
    return Flow(units, flow.exact and units.complete, True)


def batch_norm(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Fill a batch normalization. In eval mode an inserted one cancels its own statistics."""
    own: Any = child.module
    if parent is None:
        return _inserted_norm(transfer, child, flow)
    flow = transfer.fitting(flow, child, parent.units[0])
    units = flow.units
    fate = "same" if units.identical else "widened" if units.covering else "sliced"
    given: dict[str, Tensor] = {}
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        value = transfer.of_parent(parent, name)
        if value is None or transfer.of_child(child, name) is None:
            continue
        given[name] = value if value.dim() == 0 else units.taken(value)
        transfer.put(child, name, given[name], fate, None if value.dim() == 0 else units.source >= 0)
    problems = {"normalizes otherwise than the parent's": not same_settings(own, parent.module, ("num_features",))}
    moments = (given["bias"].cpu(), given["weight"].cpu() ** 2) if {"weight", "bias"} <= given.keys() else None
    return Flow(units, transfer.checked(flow, child, problems), False, moments)


def _inserted_norm(transfer: Transfer, child: ModulePath, flow: Flow) -> Flow:
    """Fill it so that it is the identity in eval mode, and nearly so in training if moments are known."""
    own: Any = child.module
    if not own.affine or not own.track_running_stats:
        return replace(flow, exact=transfer.checked(flow, child, {"is new, and can't be the identity": True}))
    count = flow.units.count
    mean, variance = flow.moments or (torch.zeros(count), torch.ones(count))
    for name, value in {
        "weight": (variance.double() + own.eps).sqrt(),
        "bias": mean,
        "running_mean": mean,
        "running_var": variance,
        "num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }.items():
        transfer.put(child, name, value, "identity")
    return flow


def scaling_norm(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Fill a layer or group normalization. Its statistics cover several units: it is exact if none is repeated."""
    if parent is None:
        return replace(flow, exact=transfer.checked(flow, child, {"is new, and normalizes what comes": True}))
    flow = transfer.fitting(flow, child, parent.units[0])
    for name in ("weight", "bias"):
        value = transfer.of_parent(parent, name)
        if value is not None and value.dim() == 1 and transfer.of_child(child, name) is not None:
            fate = "same" if flow.units.identical else "widened" if flow.units.covering else "sliced"
            transfer.put(child, name, flow.units.taken(value), fate, flow.units.source >= 0)
    problems = {
        "normalizes over units of which some are repeated": not flow.units.identical,
        "normalizes otherwise than the parent's": not same_settings(child.module, parent.module),
    }
    return Flow(flow.units, transfer.checked(flow, child, problems))


def positions(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Fill a learned vector added to each token; inserted ones are 0."""
    own = transfer.of_child(child, "table.weight")
    assert own is not None
    if parent is None:
        transfer.put(child, "table.weight", torch.zeros(own.shape), "identity")
        return flow
    flow = transfer.fitting(flow, child, parent.units[0])
    value = transfer.of_parent(parent, "table.weight")
    assert value is not None
    rows = min(len(own), len(value))
    filled = own.clone()
    filled[:rows] = flow.units.taken(value[:rows], 1).to(own)
    fate = "same" if flow.units.identical else "widened" if flow.units.covering else "sliced"
    alike = len(own) == len(value)
    transfer.put(child, "table.weight", filled, fate if alike else "sliced", flow.units.source >= 0)
    return Flow(flow.units, transfer.checked(flow, child, {"has another number of tokens": not alike}))
