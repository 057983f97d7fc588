"""Weights for layers that keep units apart: activations, pools, normalizations, flattening."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.inheritance.transfer import ModulePath, fitting
from hpsearch_trainers.inheritance.units import Flow, Units


def same_settings(first: nn.Module, second: nn.Module, but: tuple[str, ...] = ()) -> bool:
    """Return whether two modules of a type are equal apart from weights, training mode and the attributes `but`."""
    first_settings, second_settings = (
        {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and name not in ("training", *but)
        }
        for module in (first, second)
    )
    return first_settings == second_settings


def identity(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Keep the flow of a module that is the identity in eval mode."""
    return flow


def activation(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Follow an activation. An inserted ReLU changes nothing after another one."""
    module = child.module
    rectifies = isinstance(module, nn.ReLU)
    if parent is None:
        if rectifies and flow.nonnegative:
            return flow
        exact = child.check_exact(flow, {"is new, and changes values that come to it": True})
        return Flow(flow.units, exact, isinstance(module, nn.ReLU | nn.ReLU6 | nn.Sigmoid))
    problems = {"has other settings than the parent's": not same_settings(module, parent.module, ("inplace",))}
    moments = None
    if rectifies and flow.moments is not None:
        moments = flow.moments if flow.nonnegative else rectified(*flow.moments)
    nonnegative = isinstance(module, nn.ReLU | nn.ReLU6 | nn.Sigmoid)
    return Flow(flow.units, child.check_exact(flow, problems), nonnegative, moments)


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of max(x, 0) for a normal x."""
    deviation = variance.clamp(min=1e-12).sqrt()
    ratio = mean / deviation
    density = torch.exp(-(ratio**2) / 2) / (2 * torch.pi) ** 0.5
    probability = torch.special.ndtr(ratio)
    first = mean * probability + deviation * density
    second = (mean**2 + deviation**2) * probability + mean * deviation * density
    return first, (second - first**2).clamp(min=0.0)


def pool(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Follow a pool, over windows or the whole image. An inserted one changes nothing if there is a single pixel."""
    if parent is None:
        problems = {"is new, and pools what comes to it": not keeps_image(child)}
    else:
        same_pool = same_settings(child.module, parent.module) or (keeps_image(child) and keeps_image(parent))
        problems = {"pools otherwise than the parent's": not same_pool}
    return child.checked(flow, problems)


def keeps_image(module_path: ModulePath) -> bool:
    """Return whether a pool is the identity."""
    module: Any = module_path.module
    before, behind = module_path.shapes
    if before != behind or len(before) != 3:
        return False
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return True
    counts_padding = isinstance(module, nn.AvgPool2d) and (
        module.count_include_pad or module.divisor_override is not None
    )
    return before[1:] == (1, 1) and not counts_padding


def flattening(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Follow `nn.Flatten`."""
    before = child.shapes[0]
    if len(before) == 1:
        return flow
    if parent is None:
        flow = child.checked(flow, {"is new": True})
    parent_shape = before if parent is None else parent.shapes[0]
    moments: tuple[Tensor, Tensor] | None
    if len(before) == 3 and len(parent_shape) == 3:
        units = flow.units.spread((before[1], before[2]), (parent_shape[1], parent_shape[2]))
        pixels = before[1] * before[2]
        mean, variance = flow.moments or (None, None)
        moments = None
        if mean is not None and variance is not None:
            moments = mean.repeat_interleave(pixels), variance.repeat_interleave(pixels)
        return replace(flow, units=units, moments=moments)
    if len(before) == 2 and len(parent_shape) == 2:
        return replace(flow, units=flow.units.stacked(before[0], parent_shape[0]), moments=None)
    units = Units.overlapping(child.units[1], child.units[1] if parent is None else parent.units[1])
    return Flow(units, child.check_exact(flow, {"makes a row of another shape": True}))


def pixels_as_tokens(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Follow pixels turned into tokens, or the mean over pixels or tokens."""
    return child.checked(flow, {"is new": parent is None})


def zeros(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Follow zeros, which can repeat any units."""
    if parent is None:
        return Flow(flow.units, child.check_exact(flow, {"is new": True}), True)
    units = flow.units if out_units is None else out_units
    return Flow(units, flow.exact and units.complete, True)


def batch_norm(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a batch normalization. In eval mode an inserted one cancels its own statistics."""
    module: Any = child.module
    if parent is None:
        return _inserted_norm(child, flow)
    flow = fitting(flow, parent.units[0])
    units = flow.units
    values: dict[str, Tensor] = {}
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        if not (parent.has(name) and child.has(name)):
            continue
        value = parent.weight(name)
        values[name] = value if value.dim() == 0 else units.gather(value)
        child.put(name, values[name], units.fate, None if value.dim() == 0 else units.source >= 0)
    problems = {"normalizes otherwise than the parent's": not same_settings(module, parent.module, ("num_features",))}
    moments = (values["bias"].cpu(), values["weight"].cpu() ** 2) if {"weight", "bias"} <= values.keys() else None
    return Flow(units, child.check_exact(flow, problems), False, moments)


def _inserted_norm(child: ModulePath, flow: Flow) -> Flow:
    """Fill it so that it is the identity in eval mode, and nearly so in training if moments are known."""
    module: Any = child.module
    if not module.affine or not module.track_running_stats:
        return child.checked(flow, {"is new, and can't be the identity": True})
    count = flow.units.count
    mean, variance = flow.moments or (torch.zeros(count), torch.ones(count))
    for name, value in {
        "weight": (variance.double() + module.eps).sqrt(),
        "bias": mean,
        "running_mean": mean,
        "running_var": variance,
        "num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }.items():
        child.put(name, value, "identity")
    return flow


def scaling_norm(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a layer or group normalization. Its statistics cover several units: it is exact if none is repeated."""
    if parent is None:
        return child.checked(flow, {"is new, and normalizes what comes": True})
    flow = fitting(flow, parent.units[0])
    for name in ("weight", "bias"):
        if parent.has(name) and child.has(name) and parent.weight(name).dim() == 1:
            child.put(name, flow.units.gather(parent.weight(name)), flow.units.fate, flow.units.source >= 0)
    problems = {
        "normalizes over units of which some are repeated": not flow.units.identical,
        "normalizes otherwise than the parent's": not same_settings(child.module, parent.module),
    }
    return Flow(flow.units, child.check_exact(flow, problems))


def positions(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a learned vector added to each token; inserted ones are 0."""
    initial = child.weight("table.weight")
    if parent is None:
        child.put("table.weight", torch.zeros(initial.shape), "identity")
        return flow
    flow = fitting(flow, parent.units[0])
    value = parent.weight("table.weight")
    rows = min(len(initial), len(value))
    filled = initial.clone()
    filled[:rows] = flow.units.gather(value[:rows], 1).to(initial)
    same_length = len(initial) == len(value)
    fate = flow.units.fate if same_length else "sliced"
    child.put("table.weight", filled, fate, flow.units.source >= 0)
    return Flow(flow.units, child.check_exact(flow, {"has another number of tokens": not same_length}))
