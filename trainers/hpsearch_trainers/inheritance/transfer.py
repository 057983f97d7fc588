"""Collect the child's new weights layer by layer, with their fates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.architectures.calls import Call, module
from hpsearch_trainers.architectures.network import plan_network
from hpsearch_trainers.architectures.shapes import Shape
from hpsearch_trainers.inheritance.units import Flow, Units, unit_count


@dataclass(frozen=True)
class Side:
    """A network on the meta device.

    Attributes:
        call: The call that makes it.
        modules: Modules by name.
        shapes: Shapes of the first input and of the output, by module name, without the batch.
        weights: The parent's weights, or the child's initial ones.
    """

    call: Call
    modules: Mapping[str, nn.Module]
    shapes: Mapping[str, tuple[Shape, Shape]]
    weights: Mapping[str, Tensor]


def side_of(architecture: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Side:
    """Build the network that `architecture_of` describes.

    Raises:
        ArchitectureError: The network can't be built.
    """
    call = plan_network(**architecture)
    inputs = architecture["inputs"]
    shape = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    shapes: dict[str, tuple[Shape, Shape]] = {}

    def record_shapes(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if args and isinstance(args[0], torch.Tensor) and isinstance(out, torch.Tensor):
                shapes[name] = (tuple(args[0].shape[1:]), tuple(out.shape[1:]))

        return hook

    with torch.device("meta"), torch.no_grad():
        network = module(call).eval()
        modules = dict(network.named_modules())
        hooks = [inner.register_forward_hook(record_shapes(name)) for name, inner in modules.items()]
        network(torch.empty(2, *shape))
        for inner in hooks:
            inner.remove()
    return Side(call, modules, shapes, weights)


@dataclass
class Transfer:
    """The state of the transfer.

    Attributes:
        generator: Random generator of all random choices.
        by_function: Whether layers are aligned only by their functions.
        new_weights: The child's new weights.
        fates: One of `FATES` for each of them.
        reasons: Why outputs differ.
    """

    generator: torch.Generator
    by_function: bool
    new_weights: dict[str, Tensor] = field(default_factory=dict)
    fates: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ModulePath:
    """The path of a module in one of the two networks."""

    transfer: Transfer
    side: Side
    path: str

    @property
    def module(self) -> nn.Module:
        """The module, without weights."""
        return self.side.modules[self.path]

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """Shapes of its input and output."""
        return self.side.shapes[self.path]

    @property
    def units(self) -> tuple[int, int]:
        """Numbers of units of its input and output."""
        before, behind = self.shapes
        return unit_count(before), unit_count(behind)

    def inside(self, name: str) -> ModulePath:
        """Return the path of a child module."""
        return ModulePath(self.transfer, self.side, self._key(name))

    def weight(self, name: str) -> Tensor:
        """Return a weight of the module: the parent's, or the child's initial one."""
        return self.side.weights[self._key(name)]

    def has(self, name: str) -> bool:
        """Return whether the module has a weight."""
        return self._key(name) in self.side.weights

    def names(self) -> list[str]:
        """Return the names of the module's weights."""
        prefix = self._key("")
        return [key.removeprefix(prefix) for key in self.side.weights if key.startswith(prefix)]

    def put(self, name: str, value: Tensor, fate: str, mask: Tensor | None = None) -> None:
        """Set a weight of the child's module.

        Args:
            name: The weight's name in the module.
            value: The weight, of the child's shape.
            fate: One of `FATES`.
            mask: Mask, broadcast to the value. Where it is False, the child's own weight is kept. None: no mask.
        """
        initial = self.weight(name)
        value = value.to(device=initial.device, dtype=initial.dtype)
        if mask is not None and not bool(mask.all()):
            value, fate = torch.where(mask.to(initial.device), value, initial), "sliced"
        key = self._key(name)
        self.transfer.new_weights[key], self.transfer.fates[key] = value, fate

    def check_exact(self, flow: Flow, problems: Mapping[str, bool]) -> bool:
        """Return whether the output is exact: the input is exact, and there is no problem. Record the first problem."""
        reason = next((reason for reason, applies in problems.items() if applies), None)
        if flow.exact and reason is not None:
            self.transfer.reasons.append(f"{self.path} ({type(self.module).__name__}) {reason}")
        return flow.exact and reason is None

    def checked(self, flow: Flow, problems: Mapping[str, bool]) -> Flow:
        """Return the flow, exact as `check_exact` says."""
        return replace(flow, exact=self.check_exact(flow, problems))

    def _key(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def fitting(flow: Flow, of: int) -> Flow:
    """Return a flow whose units refer to `of` units of the parent, the number of inputs of the parent's layer.

    After a layer without a match, the flow may refer to another number of units.
    """
    if flow.units.of == of:
        return flow
    assert not flow.exact
    return replace(flow, units=Units.overlapping(flow.units.count, of))
