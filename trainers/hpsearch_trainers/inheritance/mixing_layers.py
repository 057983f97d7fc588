"""Weights for layers that mix their units: convolutions and linear layers.

A layer with a match in the parent gets its weights, for the units that its own units repeat (Net2WiderNet: Chen et al.,
"Net2Net: Accelerating Learning via Knowledge Transfer", ICLR 2016), and zeros around a smaller kernel. A layer without
a match becomes the identity (Net2DeeperNet), widened in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.inheritance.transfer import ModulePath, fitting
from hpsearch_trainers.inheritance.units import Flow, Units


def linear(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a linear layer, of rows or tokens."""
    return _mixed(child, parent, flow, out_units, {})


def convolution(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a convolution."""
    child_conv: Any = child.module
    parent_conv: Any = None if parent is None else parent.module
    if child_conv.groups > 1 or (parent_conv is not None and parent_conv.groups > 1):
        return _grouped(child, parent, flow)
    return _mixed(child, parent, flow, out_units, _pixels(child_conv, parent_conv))


def _mixed(
    child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None, problems: dict[str, bool]
) -> Flow:
    """Fill a layer whose weight is (output units, input units, *kernel)."""
    initial, generator = child.weight("weight"), child.transfer.generator
    kernel = (1,) * (initial.dim() - 2)
    if parent is None:
        weight = torch.eye(flow.units.of).reshape(flow.units.of, -1, *kernel)
        if out_units is None and child.units[0] == child.units[1]:
            out_units = flow.units
    else:
        weight = parent.weight("weight")
    flow = fitting(flow, weight.shape[1])
    into, out = flow.units, out_units
    if out is None or (out.count, out.of) != (len(initial), len(weight)):
        out = Units.repeated(len(initial), len(weight), generator)
    shares = into.shares(len(initial), generator).reshape(len(initial), -1, *kernel).to(weight.device)
    value = fitted(into.gather(out.gather(weight), 1) * shares, tuple(initial.shape[2:]))
    mask = ((out.source >= 0)[:, None] & (into.source >= 0)[None, :]).reshape(len(initial), -1, *kernel)
    child.put("weight", value, "identity" if parent is None else _fate(initial, weight, into, out), mask)
    lost = _fill_bias(child, parent, out)
    exact = child.check_exact(
        flow,
        {
            "lacks units that the parent's takes": not into.covering,
            "has a smaller kernel than the parent's": _is_smaller(initial, weight),
            **problems,
            "has no bias, as the parent's has": lost,
        },
    )
    if parent is None:
        return Flow(out, exact and out.complete, flow.nonnegative and exact, flow.moments if out.equals(into) else None)
    return Flow(out, exact and out.complete)


def fitted(kernel: Tensor, sides: tuple[int, ...]) -> Tensor:
    """Return a kernel padded with zeros, or cropped, to these sizes of its last dimensions."""
    padding: list[int] = []
    for size, target in reversed(list(zip(kernel.shape[-len(sides) :], sides, strict=True))) if sides else []:
        before = (target - size) // 2
        padding += [before, target - size - before]
    return nn.functional.pad(kernel, padding) if any(padding) else kernel


def _grouped(child: ModulePath, parent: ModulePath | None, flow: Flow) -> Flow:
    """Fill a grouped convolution: depthwise with any units, others only if nothing was widened."""
    child_conv: Any = child.module
    before, behind = child.units
    is_depthwise = child_conv.groups == before == behind
    if parent is None:
        return _inserted_groups(child, flow)
    parent_conv: Any = parent.module
    weight = parent.weight("weight")
    is_depthwise = is_depthwise and parent_conv.groups == parent.units[0] == parent.units[1]
    flow = fitting(flow, parent.units[0])
    same_groups = (child_conv.groups, behind) == (parent_conv.groups, parent.units[1]) and flow.units.identical
    if not is_depthwise and not same_groups:
        child.check_exact(flow, {"has groups of other units than the parent's": True})
        return Flow(Units.overlapping(behind, parent.units[1]), False)
    units = flow.units if is_depthwise else Units.identity(behind)
    initial = child.weight("weight")
    value = fitted(units.gather(weight), tuple(initial.shape[2:]))
    mask = (units.source >= 0)[:, None, None, None]
    child.put("weight", value, _fate(initial, weight, Units.identity(1), units), mask)
    problems = _pixels(child_conv, parent_conv) | {
        "has a smaller kernel than the parent's": _is_smaller(initial, weight),
        "has no bias, as the parent's has": _fill_bias(child, parent, units),
    }
    return Flow(units, child.check_exact(flow, problems))


def _inserted_groups(child: ModulePath, flow: Flow) -> Flow:
    conv: Any = child.module
    before, behind = child.units
    if before != behind:
        child.check_exact(flow, {"is new, and has other units than those that come": True})
        return Flow(Units.overlapping(behind, flow.units.of), False)
    child.put("weight", nn.init.dirac_(torch.empty(conv.weight.shape), conv.groups), "identity")
    if child.has("bias"):
        child.put("bias", torch.zeros(behind), "identity")
    exact = child.check_exact(flow, _pixels(conv, None))
    return replace(flow, exact=exact, nonnegative=exact and flow.nonnegative)


def _keeps_pixels(conv: Any) -> bool:
    """Return whether the identity in the middle of the kernel keeps the image."""
    return all(
        stride == 1 and kernel % 2 == 1 and 2 * padding == dilation * (kernel - 1)
        for stride, kernel, padding, dilation in _axes(conv)
    )


def _pixels(child_conv: Any, parent_conv: Any) -> dict[str, bool]:
    """Return as a problem whether a kernel covers other pixels than the parent's or the input, apart from its size."""
    if parent_conv is None:
        return {"takes other pixels than those that come": not _keeps_pixels(child_conv)}
    differing = child_conv.padding_mode != parent_conv.padding_mode
    for axis, parent_axis in zip(_axes(child_conv), _axes(parent_conv), strict=True):
        stride, kernel, padding, dilation = axis
        their_stride, their_kernel, their_padding, their_dilation = parent_axis
        size_difference = dilation * (kernel - their_kernel)
        differing |= stride != their_stride or size_difference % 2 == 1
        differing |= their_kernel > 1 and dilation != their_dilation
        differing |= 2 * (padding - their_padding) != size_difference
    return {"takes other pixels than the parent's": differing}


def _axes(conv: Any) -> list[tuple[int, int, int, int]]:
    # torch's padding in numbers, also of "same" and "valid": both sides of each axis, from the last axis to the first.
    paddings = conv._reversed_padding_repeated_twice[-2::-2]
    return list(zip(conv.stride, conv.kernel_size, paddings, conv.dilation, strict=True))


def _fill_bias(child: ModulePath, parent: ModulePath | None, units: Units) -> bool:
    """Fill a layer's bias from the parent's, if it has one; return whether the parent's is lost."""
    bias = parent.weight("bias") if parent is not None and parent.has("bias") else None
    if not child.has("bias"):
        return bias is not None and bool(bias.any())
    values = torch.zeros(units.of) if bias is None else bias
    child.put("bias", units.gather(values), "identity" if parent is None else units.fate, units.source >= 0)
    return False


def _is_smaller(initial: Tensor, weight: Tensor) -> bool:
    """Return whether a kernel is smaller than the parent's in some dimension."""
    return any(size < parent_size for size, parent_size in zip(initial.shape[2:], weight.shape[2:], strict=True))


def _fate(initial: Tensor, weight: Tensor, into: Units, out: Units) -> str:
    fates = {into.fate, out.fate}
    if "sliced" in fates or _is_smaller(initial, weight):
        return "sliced"
    if "widened" in fates:
        return "widened"
    return "padded" if initial.shape[2:] != weight.shape[2:] else "same"
