"""Fills modules: by the rule for their type, in sequence, or by copying if both are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
from hpsearch_trainers.inheritance.transfer import ModulePath, Transfer
from hpsearch_trainers.inheritance.units import Flow, Units

__all__ = ["alike", "changes_nothing", "chooses", "copied", "fill", "followed", "known", "left_out", "silenced"]

_Rule = Callable[[Transfer, ModulePath, ModulePath | None, Flow, Units | None], Flow]

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
    **dict.fromkeys(_DROPOUTS, plain_layers.nothing),
}
"""Rules by type. Subclasses may behave in any way, so they have no rule."""

_NOT_FLAT = (nn.Identity, nn.Dropout, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.Hardswish, *_POOLS)
"""Modules that map 0 to 0 with a gradient, so that a layer with zero output before them can learn."""


def known(place: ModulePath) -> bool:
    """Return whether there are rules for all of a module, and its units are on the axis that the rules assume."""
    made = place.module
    if type(made) is nn.Sequential:
        return all(known(place.inside(name)) for name, _ in made.named_children())
    if type(made) in (FactorizedReduction, ResidualReduction):
        return True
    return type(made) in _RULES and place.path in place.side.shapes and _units_first(made, len(place.shapes[0]))


def _units_first(made: nn.Module, sides: int) -> bool:
    """Return whether a module's units are those that `unit_count` counts: users' operations may use another axis."""
    if isinstance(made, nn.Flatten):
        return (made.start_dim, made.end_dim) == (1, -1)
    if isinstance(made, nn.LayerNorm):
        return sides < 3 and len(made.normalized_shape) == 1
    if isinstance(made, nn.Linear):
        return sides < 3
    if isinstance(made, nn.BatchNorm1d):
        return sides == 1
    return sides == 3 or not isinstance(made, (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm, *_POOLS))


def alike(one: ModulePath, other: ModulePath) -> bool:
    """Return whether two modules with rules have the same types, as convolutions of two sizes do."""
    if not (known(one) and known(other)) or type(one.module) is not type(other.module):
        return False
    names, others = ([name for name, _ in each.module.named_children()] for each in (one, other))
    if type(one.module) is not nn.Sequential:
        return True
    return names == others and all(alike(one.inside(name), other.inside(name)) for name in names)


def chooses(module: nn.Module) -> bool:
    """Return whether a module's outputs can repeat any units."""
    if type(module) is nn.Sequential:
        return any(chooses(one) for one in module)
    if type(module) is nn.Conv2d:
        return module.groups == 1
    return type(module) in (nn.Linear, ResidualReduction)


def fill(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None) -> Flow:
    """Fill a module that has rules.

    Args:
        transfer: Receives the weights.
        child: The module.
        parent: Its match, which has rules too; None: it is inserted, and becomes the identity if possible.
        flow: The input.
        wanted: Units of the output, for modules that can choose them; None: any.
    """
    mine = child.module
    if parent is not None and type(parent.module) is not type(mine):
        return fill(transfer, child, None, left_out(transfer, parent, flow), wanted)
    if type(mine) is nn.Sequential:
        if parent is not None and len(parent.module) != len(mine):  # type: ignore[arg-type]
            flow, parent = left_out(transfer, parent, flow), None
        insides = [name for name, _ in mine.named_children()]
        pairs = [(child.inside(name), None if parent is None else parent.inside(name)) for name in insides]
        last = max((at for at, (one, _) in enumerate(pairs) if chooses(one.module)), default=None)
        for at, (one, other) in enumerate(pairs):
            flow = fill(transfer, one, other, flow, wanted if at == last else None)
        return flow
    if type(mine) is FactorizedReduction:
        return _factorized(transfer, child, parent, flow)
    if type(mine) is ResidualReduction:
        return _residual_reduction(transfer, child, parent, flow, wanted)
    return _RULES[type(mine)](transfer, child, parent, flow, wanted)


def copied(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, same: bool) -> Flow:
    """Copy weights of equal name and shape in a module without a rule.

    Args:
        transfer: Receives the weights.
        child: The module.
        parent: Its match, or None.
        flow: The input.
        same: Whether both were made by the same call.
    """
    before, behind = child.units
    of = flow.units.of if parent is None else parent.units[1]
    complete = parent is not None
    for key, own in transfer.own.items():
        if parent is None or not key.startswith(f"{child.path}."):
            continue
        name = key.removeprefix(f"{child.path}.")
        value = transfer.of_parent(parent, name)
        if value is None or value.shape != own.shape:
            complete = False
            continue
        transfer.put(child, name, value, "same")
    problems = {
        "is new": parent is None,
        "was made otherwise than the parent's": not same,
        "takes other units than the parent's": not flow.units.identical,
        "has other weights than the parent's": not complete,
    }
    exact = transfer.checked(flow, child, problems)
    if exact or (before == behind and of == flow.units.of):
        return Flow(flow.units if before == behind and of == flow.units.of else Units.same(behind), exact)
    return Flow(Units.overlapping(behind, of), False)


def changes_nothing(place: ModulePath, nonnegative: bool) -> bool:
    """Return whether a module is the identity in eval mode, whatever its weights."""
    made = place.module
    if type(made) is nn.Sequential:
        return all(changes_nothing(place.inside(name), nonnegative) for name, _ in made.named_children())
    if type(made) in _POOLS:
        return plain_layers.keeps_image(place)
    return type(made) in _DROPOUTS or (type(made) is nn.ReLU and nonnegative)


def left_out(transfer: Transfer, parent: ModulePath, flow: Flow) -> Flow:
    """Skip a module of the parent's that has no match in the child."""
    if changes_nothing(parent, flow.nonnegative):
        return flow
    exact = transfer.checked(flow, parent, {"of the parent's was taken out": True})
    before, behind = parent.units
    units = flow.units if before == behind else Units.overlapping(flow.units.count, behind)
    return Flow(units, exact)


def silenced(transfer: Transfer, child: ModulePath) -> bool:
    """Make a module's output zero, by its last layer with weights, if it can learn from there.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017, initialize residual blocks this way.

    Returns:
        Whether it was possible.
    """
    made = child.module
    if type(made) is nn.Sequential:
        for name, one in reversed(list(made.named_children())):
            if silenced(transfer, child.inside(name)):
                return True
            if type(one) not in _NOT_FLAT:
                return False
        return False
    names = [name for name in ("weight", "bias") if transfer.of_child(child, name) is not None]
    if type(made) not in (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d) or "weight" not in names:
        return False
    for name in names:
        own = transfer.of_child(child, name)
        assert own is not None
        transfer.put(child, name, own.new_zeros(own.shape), "identity")
    return True


def followed(flow: Flow) -> Flow:
    """Return the flow without what is known of its values."""
    return replace(flow, nonnegative=False, moments=None)


def _factorized(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow) -> Flow:
    """Fill a factorized reduction: each half has its own channels, which repeat those of the parent's same half."""
    if parent is None:
        return copied(transfer, child, None, flow, same=False)
    halves = []
    for name in ("straight", "shifted"):
        if not (name in dict(child.module.named_children()) and name in dict(parent.module.named_children())):
            return copied(transfer, child, parent, flow, same=False)
        halves.append(fill(transfer, child.inside(name), parent.inside(name), followed(flow), None))
    exact = all(half.exact for half in halves)
    joined = Flow(Units.joined([half.units for half in halves]), exact)
    return fill(transfer, child.inside("norm"), parent.inside("norm"), joined, None)


def _residual_reduction(
    transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None
) -> Flow:
    """Fill a residual reduction: block and shortcut must repeat the same units, since they are summed."""
    if parent is None:
        return copied(transfer, child, None, flow, same=False)
    block = fill(transfer, child.inside("block"), parent.inside("block"), flow, wanted)
    shortcut = fill(transfer, child.inside("shortcut"), parent.inside("shortcut"), flow, block.units)
    return Flow(block.units, block.exact and shortcut.exact and block.units.equals(shortcut.units))
