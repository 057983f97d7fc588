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

from hpsearch_trainers.inheritance.transfer import ModulePath, Transfer
from hpsearch_trainers.inheritance.units import Flow, Units

__all__ = ["convolution", "linear"]


def linear(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None) -> Flow:
    """Fill a linear layer, of rows or tokens."""
    if parent is None:
        return _mixed(transfer, child, torch.eye(flow.units.of), None, flow, _inserted(child, flow, wanted), {}, True)
    weight = transfer.of_parent(parent, "weight")
    assert weight is not None
    bias = transfer.of_parent(parent, "bias")
    return _mixed(transfer, child, weight, bias, flow, wanted, {}, False)


def convolution(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Fill a convolution."""
    own: Any = child.module
    theirs: Any = None if parent is None else parent.module
    if own.groups > 1 or (theirs is not None and theirs.groups > 1):
        return _grouped(transfer, child, parent, flow)
    if parent is None:
        problems = {"takes other pixels than those that come": not _keeps_pixels(own)}
        weight = torch.eye(flow.units.of)[:, :, None, None]
        return _mixed(transfer, child, weight, None, flow, _inserted(child, flow, wanted), problems, True)
    kept = transfer.of_parent(parent, "weight")
    assert kept is not None
    return _mixed(transfer, child, kept, transfer.of_parent(parent, "bias"), flow, wanted, _pixels(own, theirs), False)


def _inserted(child: ModulePath, flow: Flow, wanted: Units | None) -> Units | None:
    """Return the output units of an inserted layer: by default those of its input, if it has as many."""
    return flow.units if wanted is None and child.units[0] == child.units[1] else wanted


def _mixed(
    transfer: Transfer,
    child: ModulePath,
    weight: Tensor,
    bias: Tensor | None,
    flow: Flow,
    wanted: Units | None,
    problems: dict[str, bool],
    inserted: bool,
) -> Flow:
    """Fill a layer whose weight is (output units, input units, *kernel)."""
    own = transfer.of_child(child, "weight")
    assert own is not None
    flow = transfer.fitting(flow, child, weight.shape[1])
    into, out = flow.units, transfer.outward(len(own), len(weight), wanted)
    kernel = (1,) * (weight.dim() - 2)
    shares = into.shares(len(own), transfer.generator).reshape(len(own), -1, *kernel).to(weight.device)
    value = fitted(into.taken(out.taken(weight), 1) * shares, tuple(own.shape[2:]))
    known = ((out.source >= 0)[:, None] & (into.source >= 0)[None, :]).reshape(len(own), -1, *kernel)
    fate = "identity" if inserted else _fate(own, weight, into, out)
    transfer.put(child, "weight", value, fate, known)
    has_bias = transfer.of_child(child, "bias") is not None
    if has_bias:
        given = torch.zeros(len(weight)) if bias is None else bias
        transfer.put(child, "bias", out.taken(given), "identity" if inserted else _fate_of_units(out), out.source >= 0)
    lost = bias is not None and not has_bias and bool(bias.any())
    smaller = any(mine < theirs for mine, theirs in zip(own.shape[2:], weight.shape[2:], strict=True))
    exact = transfer.checked(
        flow,
        child,
        {
            "lacks units that the parent's takes": not into.covering,
            "has a smaller kernel than the parent's": smaller,
            **problems,
            "has no bias, as the parent's has": lost,
        },
    )
    moments = None
    if inserted and flow.moments is not None and out.equals(into):
        moments = flow.moments
    return Flow(out, exact and out.complete, inserted and flow.nonnegative and exact, moments)


def fitted(kernel: Tensor, sides: tuple[int, ...]) -> Tensor:
    """Return a kernel padded with zeros, or cropped, to these sizes of its last dimensions."""
    padding: list[int] = []
    for side, wanted in reversed(list(zip(kernel.shape[-len(sides) :], sides, strict=True))) if sides else []:
        before = (wanted - side) // 2
        padding += [before, wanted - side - before]
    return nn.functional.pad(kernel, padding) if any(padding) else kernel


def _grouped(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow) -> Flow:
    """Fill a grouped convolution: depthwise with any units, others only if nothing was widened."""
    own: Any = child.module
    before, behind = child.units
    each = own.groups == before == behind
    if parent is None:
        return _inserted_groups(transfer, child, flow)
    theirs: Any = parent.module
    weight = transfer.of_parent(parent, "weight")
    assert weight is not None
    each = each and theirs.groups == parent.units[0] == parent.units[1]
    flow = transfer.fitting(flow, child, parent.units[0])
    alike = (own.groups, behind) == (theirs.groups, parent.units[1]) and flow.units.identical
    if not each and not alike:
        transfer.checked(flow, child, {"has groups of other units than the parent's": True})
        return Flow(Units.overlapping(behind, parent.units[1]), False)
    units = flow.units if each else Units.same(behind)
    kept = transfer.of_child(child, "weight")
    assert kept is not None
    value = fitted(units.taken(weight), tuple(kept.shape[2:]))
    known = (units.source >= 0)[:, None, None, None]
    transfer.put(child, "weight", value, _fate(kept, weight, Units.same(1), units), known)
    bias = transfer.of_parent(parent, "bias")
    has_bias = transfer.of_child(child, "bias") is not None
    if has_bias:
        given = torch.zeros(len(weight)) if bias is None else bias
        transfer.put(child, "bias", units.taken(given), _fate_of_units(units), units.source >= 0)
    problems = _pixels(own, theirs) | {
        "has a smaller kernel than the parent's": any(
            mine < other for mine, other in zip(kept.shape[2:], weight.shape[2:], strict=True)
        ),
        "has no bias, as the parent's has": bias is not None and not has_bias and bool(bias.any()),
    }
    return Flow(units, transfer.checked(flow, child, problems))


def _inserted_groups(transfer: Transfer, child: ModulePath, flow: Flow) -> Flow:
    own: Any = child.module
    before, behind = child.units
    if before != behind:
        transfer.checked(flow, child, {"is new, and has other units than those that come": True})
        return Flow(Units.overlapping(behind, flow.units.of), False)
    weight = transfer.of_child(child, "weight")
    assert weight is not None
    transfer.put(child, "weight", nn.init.dirac_(torch.empty(weight.shape), own.groups), "identity")
    bias = transfer.of_child(child, "bias")
    if bias is not None:
        transfer.put(child, "bias", torch.zeros(bias.shape), "identity")
    exact = transfer.checked(flow, child, {"takes other pixels than those that come": not _keeps_pixels(own)})
    return replace(flow, exact=exact, nonnegative=exact and flow.nonnegative)


def _keeps_pixels(own: Any) -> bool:
    """Return whether the identity in the middle of the kernel keeps the image."""
    return all(
        stride == 1 and kernel % 2 == 1 and 2 * padding == dilation * (kernel - 1)
        for stride, kernel, padding, dilation in _axes(own)
    )


def _pixels(own: Any, theirs: Any) -> dict[str, bool]:
    """Return whether a kernel sees other pixels than the parent's, apart from being smaller, as a problem."""
    differing = own.padding_mode != theirs.padding_mode
    for mine, other in zip(_axes(own), _axes(theirs), strict=True):
        stride, kernel, padding, dilation = mine
        their_stride, their_kernel, their_padding, their_dilation = other
        beside = dilation * (kernel - their_kernel)
        differing |= stride != their_stride or beside % 2 == 1
        differing |= their_kernel > 1 and dilation != their_dilation
        differing |= 2 * (padding - their_padding) != beside
    return {"takes other pixels than the parent's": differing}


def _axes(own: Any) -> list[tuple[int, int, int, int]]:
    if isinstance(own.padding, str):  # "same" or "valid", which torch computes
        same = own.padding == "same"
        paddings = [
            dilation * (kernel - 1) // 2 if same else 0
            for kernel, dilation in zip(own.kernel_size, own.dilation, strict=True)
        ]
    else:
        paddings = list(own.padding)
    return list(zip(own.stride, own.kernel_size, paddings, own.dilation, strict=True))


def _fate_of_units(units: Units) -> str:
    if units.identical:
        return "same"
    return "widened" if units.covering else "sliced"


def _fate(own: Tensor, weight: Tensor, into: Units, out: Units) -> str:
    fates = {_fate_of_units(into), _fate_of_units(out)}
    if "sliced" in fates or any(mine < other for mine, other in zip(own.shape[2:], weight.shape[2:], strict=True)):
        return "sliced"
    if "widened" in fates:
        return "widened"
    return "padded" if own.shape[2:] != weight.shape[2:] else "same"
