"""One of the two networks, child or parent: its call, its modules without weights, and the shapes in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpsearch_trainers.architectures.calls import Call, module
from hpsearch_trainers.architectures.network import plan_network
from hpsearch_trainers.architectures.shapes import Shape

__all__ = ["Side", "side_of"]


@dataclass(frozen=True)
class Side:
    """A network on the meta device.

    Attributes:
        call: The call that makes it.
        modules: Modules by name.
        shapes: Shapes of the first input and of the output, by module name, without the batch.
    """

    call: Call
    modules: Mapping[str, nn.Module]
    shapes: Mapping[str, tuple[Shape, Shape]]


def side_of(architecture: Mapping[str, Any]) -> Side:
    """Build the network that `architecture_of` describes.

    Raises:
        ArchitectureError: It can't be built.
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
    return Side(call, modules, shapes)
