"""Fill modules: by the rule for their type, in sequence, or by copying if both modules are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from hpsearch_trainers.architectures.modules import (
    FactorizedReduction,
    GlobalPool,
    Positions,
    ResidualReduction,
    Tokens,
    Zero,
)
from hpsearch_trainers.inheritance import mixing_layers, plain_layers
from hpsearch_trainers.inheritance.transfer import ModulePath
from hpsearch_trainers.inheritance.units import Flow, Units

_Rule = Callable[[ModulePath, ModulePath | None, Flow, Units | None], Flow]

_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Hardswish)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_DROPOUTS = (nn.Identity, nn.Dropout)

_RULES: dict[type[nn.Module], _Rule] = {
    nn.Linear: mixing_layers.linear,
    nn.Conv2d: mixing_layers.convolution,
    nn.BatchNorm1d: plain_layers.batch_norm,
    nn.BatchNorm2d: plain_layers.batch_norm,
    nn.LayerNorm: plain_layers.scaling_norm,
    nn.GroupNorm: plain_layers.scaling_norm,
    nn.Flatten: plain_layers.flattening,
    Tokens: plain_layers.pixels_as_tokens,
    GlobalPool: plain_layers.pixels_as_tokens,
    Positions: plain_layers.positions,
    Zero: plain_layers.zeros,
    **dict.fromkeys(_ACTIVATIONS, plain_layers.activation),
    **dict.fromkeys(_POOLS, plain_layers.pool),
    **dict.fromkeys(_DROPOUTS, plain_layers.identity),
}
"""Rules by type. Subclasses may behave in any way, so they have no rule."""

_NOT_FLAT = (nn.Identity, nn.Dropout, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.Hardswish, *_POOLS)
"""Modules that map 0 to 0 with a gradient, so that a layer with zero output before them can learn."""


def has_rules(module_path: ModulePath) -> bool:
    """Return whether a module and its parts have rules, and its units are on the axis that the rules assume."""
    module = module_path.module
    if type(module) is nn.Sequential:
        return all(has_rules(module_path.inside(name)) for name, _ in module.named_children())
    if type(module) in (FactorizedReduction, ResidualReduction):
        return True
    return (
        type(module) in _RULES
        and module_path.path in module_path.side.shapes
        and _units_first(module, len(module_path.shapes[0]))
    )


def _units_first(module: nn.Module, sides: int) -> bool:
    """Return whether a module's units are on the axis of `unit_count`. Users' operations may use another axis."""
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    if isinstance(module, nn.LayerNorm):
        return sides < 3 and len(module.normalized_shape) == 1
    if isinstance(module, nn.Linear):
        return sides < 3
    if isinstance(module, nn.BatchNorm1d):
        return sides == 1
    return sides == 3 or not isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm, *_POOLS))


def same_types(first: ModulePath, second: ModulePath) -> bool:
    """Return whether two modules with rules have the same types, for example two convolutions of different sizes."""
    if not (has_rules(first) and has_rules(second)) or type(first.module) is not type(second.module):
        return False
    first_names, second_names = ([name for name, _ in each.module.named_children()] for each in (first, second))
    if type(first.module) is not nn.Sequential:
        return True
    return first_names == second_names and all(
        same_types(first.inside(name), second.inside(name)) for name in first_names
    )


def can_choose_units(module: nn.Module) -> bool:
    """Return whether a module's outputs can repeat any units."""
    if type(module) is nn.Sequential:
        return any(can_choose_units(layer) for layer in module)
    if type(module) is nn.Conv2d:
        return module.groups == 1
    return type(module) in (nn.Linear, ResidualReduction)


def fill(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a module that has rules.

    Args:
        child: The module.
        parent: Its match, which has rules too. None: the module is inserted, and becomes the identity if possible.
        flow: The input.
        out_units: Units of the output, for modules that can choose them; None: any.
    """
    module = child.module
    if parent is not None and type(parent.module) is not type(module):
        return fill(child, None, skip(parent, flow), out_units)
    if type(module) is nn.Sequential:
        if parent is not None and len(parent.module) != len(module):  # type: ignore[arg-type]
            flow, parent = skip(parent, flow), None
        names = [name for name, _ in module.named_children()]
        pairs = [(child.inside(name), None if parent is None else parent.inside(name)) for name in names]
        last = max(
            (index for index, (child_part, _) in enumerate(pairs) if can_choose_units(child_part.module)), default=None
        )
        for index, (child_part, parent_part) in enumerate(pairs):
            flow = fill(child_part, parent_part, flow, out_units if index == last else None)
        return flow
    if type(module) is FactorizedReduction:
        return _factorized(child, parent, flow)
    if type(module) is ResidualReduction:
        return _residual_reduction(child, parent, flow, out_units)
    return _RULES[type(module)](child, parent, flow, out_units)


def copy_weights(child: ModulePath, parent: ModulePath | None, flow: Flow, is_same_call: bool) -> Flow:
    """Copy weights of equal name and shape in a module without a rule.

    Args:
        child: The module.
        parent: Its match, or None.
        flow: The input.
        is_same_call: Whether both were made by the same call.
    """
    before, behind = child.units
    of = flow.units.of if parent is None else parent.units[1]
    complete = True
    if parent is not None:
        for name in child.names():
            if parent.has(name) and parent.weight(name).shape == child.weight(name).shape:
                child.put(name, parent.weight(name), "same")
            else:
                complete = False
    problems = {
        "is new": parent is None,
        "was made otherwise than the parent's": not is_same_call,
        "takes other units than the parent's": not flow.units.identical,
        "has other weights than the parent's": not complete,
    }
    exact = child.check_exact(flow, problems)
    if before == behind and of == flow.units.of:
        return Flow(flow.units, exact)
    return Flow(Units.identity(behind) if exact else Units.overlapping(behind, of), exact)


def is_identity(module_path: ModulePath, nonnegative: bool) -> bool:
    """Return whether a module is the identity in eval mode for any weights."""
    module = module_path.module
    if type(module) is nn.Sequential:
        return all(is_identity(module_path.inside(name), nonnegative) for name, _ in module.named_children())
    if type(module) in _POOLS:
        return plain_layers.keeps_image(module_path)
    return type(module) in _DROPOUTS or (type(module) is nn.ReLU and nonnegative)


def skip(parent: ModulePath, flow: Flow) -> Flow:
    """Skip a module of the parent that has no match in the child."""
    if is_identity(parent, flow.nonnegative):
        return flow
    exact = parent.check_exact(flow, {"of the parent's was taken out": True})
    before, behind = parent.units
    units = flow.units if before == behind else Units.overlapping(flow.units.count, behind)
    return Flow(units, exact)


def silence(child: ModulePath) -> bool:
    """Make a module's output zero, by its last layer with weights, if it can learn from there.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017, initialize residual blocks this way.

    Returns:
        Whether it was possible.
    """
    module = child.module
    if type(module) is nn.Sequential:
        for name, inner in reversed(list(module.named_children())):
            if silence(child.inside(name)):
                return True
            if type(inner) not in _NOT_FLAT:
                return False
        return False
    if type(module) not in (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d) or not child.has("weight"):
        return False
    for name in ("weight", "bias"):
        if child.has(name):
            child.put(name, torch.zeros_like(child.weight(name)), "identity")
    return True


def _factorized(child: ModulePath, parent: ModulePath | None, flow: Flow) -> Flow:
    """Fill a factorized reduction. The channels of each half repeat those of the parent's corresponding half."""
    names = {"straight", "shifted"}
    if parent is None or any(names - dict(each.module.named_children()).keys() for each in (child, parent)):
        return copy_weights(child, parent, flow, is_same_call=False)
    flow = replace(flow, nonnegative=False, moments=None)
    halves = [fill(child.inside(name), parent.inside(name), flow, None) for name in ("straight", "shifted")]
    exact = all(half.exact for half in halves)
    joined = Flow(Units.joined([half.units for half in halves]), exact)
    return fill(child.inside("norm"), parent.inside("norm"), joined, None)


def _residual_reduction(child: ModulePath, parent: ModulePath | None, flow: Flow, out_units: Units | None) -> Flow:
    """Fill a residual reduction: block and shortcut must repeat the same units, since they are summed."""
    if parent is None:
        return copy_weights(child, None, flow, is_same_call=False)
    block = fill(child.inside("block"), parent.inside("block"), flow, out_units)
    shortcut = fill(child.inside("shortcut"), parent.inside("shortcut"), flow, block.units)
    return Flow(block.units, block.exact and shortcut.exact and block.units.equals(shortcut.units))
