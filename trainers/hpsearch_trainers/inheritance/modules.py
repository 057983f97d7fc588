"""How a module is filled: by the rule for its type, one behind the other, or copied where both are the same."""

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
"""Types, and not their subclasses, which may do anything."""

_NOT_FLAT = (nn.Identity, nn.Dropout, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.Hardswish, *_POOLS)
"""Give 0 for 0, and have a slope there, so that what gives 0 before them can learn."""


def known(place: ModulePath) -> bool:
    """Say whether there are rules for all of a module, and it takes its units from where the rules do."""
    made = place.module
    if type(made) is nn.Sequential:
        return all(known(place.inside(name)) for name, _ in made.named_children())
    if type(made) in (FactorizedReduction, ResidualReduction):
        return True
    return type(made) in _RULES and place.path in place.side.shapes and _units_first(made, len(place.shapes[0]))


def _units_first(made: nn.Module, sides: int) -> bool:
    """Say whether a module treats as units what `unit_count` counts: operations of one's own may take another axis."""
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
    """Say whether two modules that there are rules for are made of the same types, as are convolutions of two sizes."""
    if not (known(one) and known(other)) or type(one.module) is not type(other.module):
        return False
    names, others = ([name for name, _ in each.module.named_children()] for each in (one, other))
    if type(one.module) is not nn.Sequential:
        return True
    return names == others and all(alike(one.inside(name), other.inside(name)) for name in names)


def chooses(module: nn.Module) -> bool:
    """Say whether a module's outputs can repeat whichever units are wanted."""
    if type(module) is nn.Sequential:
        return any(chooses(one) for one in module)
    if type(module) is nn.Conv2d:
        return module.groups == 1
    return type(module) in (nn.Linear, ResidualReduction)


def fill(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow, wanted: Units | None) -> Flow:
    """Fill a module of which all is known.

    Args:
        transfer: Takes the weights.
        child: The module.
        parent: What it answers to, known as well; None: it is inserted, and begins as the identity where it can.
        flow: What comes in.
        wanted: Units that must go out, for what chooses them; None: any.
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
    """Copy what has the same name and shape in a module that there is no rule for.

    Args:
        transfer: Takes the weights.
        child: The module.
        parent: What it answers to, or None.
        flow: What comes in.
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
    """Say whether a module gives what comes, in eval mode and without regard to its weights."""
    made = place.module
    if type(made) is nn.Sequential:
        return all(changes_nothing(place.inside(name), nonnegative) for name, _ in made.named_children())
    if type(made) in _POOLS:
        return plain_layers.keeps_image(place)
    return type(made) in _DROPOUTS or (type(made) is nn.ReLU and nonnegative)


def left_out(transfer: Transfer, parent: ModulePath, flow: Flow) -> Flow:
    """Leave out a module of the parent's, which the child has none for."""
    if changes_nothing(parent, flow.nonnegative):
        return flow
    exact = transfer.checked(flow, parent, {"of the parent's was taken out": True})
    before, behind = parent.units
    units = flow.units if before == behind else Units.overlapping(flow.units.count, behind)
    return Flow(units, exact)


def silenced(transfer: Transfer, child: ModulePath) -> bool:
    """Make a module give zeros, by what comes last in it and has weights, if it can learn from there.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017, begin residual blocks so.
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
    """Give a flow of which only the units are known."""
    return replace(flow, nonnegative=False, moments=None)


def _factorized(transfer: Transfer, child: ModulePath, parent: ModulePath | None, flow: Flow) -> Flow:
    """Each half has channels of its own, which repeat those of the parent's same half."""
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
    """Block and shortcut must repeat the same units, or their sum means nothing."""
    if parent is None:
        return copied(transfer, child, None, flow, same=False)
    block = fill(transfer, child.inside("block"), parent.inside("block"), flow, wanted)
    shortcut = fill(transfer, child.inside("shortcut"), parent.inside("shortcut"), flow, block.units)
    return Flow(block.units, block.exact and shortcut.exact and block.units.equals(shortcut.units))
