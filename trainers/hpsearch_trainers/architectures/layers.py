"""The parts of a network: shapes and costs, as a tree like the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hpsearch_trainers.architectures.calls import Call, evaluate
from hpsearch_trainers.architectures.cell_modules import CellStack, EdgeCell, NodeCell
from hpsearch_trainers.architectures.network import plan_network
from hpsearch_trainers.architectures.plan import named
from hpsearch_trainers.architectures.shapes import Shape

Kind = Literal["network", "chain", "operation", "edges", "nodes", "node", "stack", "step"]


@dataclass(frozen=True)
class Layer:
    """A part of a network.

    Attributes:
        place: Its name within its parent: "stem", "0" of a chain, "0-1" of a cell's edges, "2" of its nodes, "body" of
            an operation's parameters; "cell" or "reduction" of a stack, "input 0" before a cell.
        name: The operation's name; empty for other kinds.
        kind: Kind of the part.
        settings: Parameters of the operation or stack, except those that are themselves parts.
        takes: In a cell, the index of the node that is the operation's input.
        shape: The shape of its output, without the batch; None if it is never called on its own.
        parameters: Number of trainable parameters, counted by element.
        flops: Floating point operations of a forward pass for one row, as in `Costs`.
        parts: Its parts, in the order of the architecture.
    """

    place: str
    name: str
    kind: Kind
    settings: Mapping[str, Any] = field(default_factory=dict)
    takes: int | None = None
    shape: Shape | None = None
    parameters: int = 0
    flops: int = 0
    parts: tuple[Layer, ...] = ()


@dataclass
class _Measured:
    """Measurements of a module."""

    shape: Shape | None = None
    flops: int = 0
    parameters: int = 0


def layers(
    value: Any, inputs: Shape = (1, 8, 8), outputs: int = 10, *, stem: Any = None, head: Any = None, path: str = "body"
) -> Layer:
    """Return the parts of an architecture's network. No weights are allocated.

    Args:
        value: As in `network`.
        inputs: As in `network`.
        outputs: As in `network`.
        stem: As in `network`.
        head: As in `network`.
        path: As in `network`. It is also the name of the architecture in the tree.

    Raises:
        ArchitectureError: No network can be built from it.
    """
    call = plan_network(value, inputs, outputs, stem=stem, head=head, path=path)
    reader = _Reader(_run(call, tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)))
    before, body, behind = call.arguments
    pooled, linear = behind.arguments
    if head is None:
        head = ["global_pool"] * len(pooled.arguments)
    parts = [] if stem is None else [reader.read(stem, before, "stem")]
    parts += [reader.read(value, body, path)]
    last = reader.layer(linear, "outputs", "linear", "operation")
    parts += [reader.read(head, pooled, "head"), last] if pooled.arguments else [last]
    return reader.layer(call, "", "", "network", parts=tuple(parts))


def _run(call: Call, inputs: Shape) -> dict[int, _Measured]:
    """Run a network on the meta device; return the measurements of each call's module, by the call's `id`."""
    results: dict[int, Any] = {}
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = evaluate(call, results).eval()
        measured = {key: _measured(module, counter) for key, module in results.items()}
        network(torch.empty(1, *inputs))
    return measured


def _measured(module: nn.Module, counter: FlopCounterMode) -> _Measured:
    measured = _Measured(
        parameters=sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    )
    began: list[int] = []

    def before(*_: Any) -> None:
        began.append(counter.get_total_flops())

    def after(_module: nn.Module, _inputs: Any, output: Any) -> None:
        measured.flops += int(counter.get_total_flops() - began.pop())
        if isinstance(output, Tensor):
            measured.shape = tuple(output.shape[1:])

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)
    return measured


@dataclass(frozen=True)
class _Reader:
    """Reads an architecture together with the calls that were planned for it."""

    measured: Mapping[int, _Measured]

    def layer(self, call: Call, place: str, name: str, kind: Kind, **more: Any) -> Layer:
        measured = self.measured[id(call)]
        return Layer(
            place, name, kind, shape=measured.shape, parameters=measured.parameters, flops=measured.flops, **more
        )

    def read(self, value: Any, call: Call, place: str, takes: int | None = None) -> Layer:
        if isinstance(value, list | tuple):
            chain = zip(value, call.arguments, strict=True)
            parts = tuple(self.read(item, inner_call, str(number)) for number, (item, inner_call) in enumerate(chain))
            return self.layer(call, place, "", "chain", parts=parts, takes=takes)
        if call.function is EdgeCell:
            return self.layer(call, place, "", "edges", parts=self._edges(value, call), takes=takes)
        if call.function is NodeCell:
            joined = call.keywords.get("join", "mean")
            return self.layer(
                call, place, "", "nodes", parts=self._nodes(value, call), takes=takes, settings={"join": joined}
            )
        name, params = named(value, place)
        if call.function is CellStack:
            settings = {key: setting for key, setting in params.items() if key not in ("cell", "reduction")}
            return self.layer(
                call, place, name, "stack", settings=settings, parts=self._steps(params, call), takes=takes
            )
        inner = {key: inner_call for key, inner_call in call.keywords.items() if isinstance(inner_call, Call)}
        parts = tuple(self.read(params[key], inner_call, key) for key, inner_call in inner.items())
        settings = {key: setting for key, setting in params.items() if key not in inner}
        return self.layer(call, place, name, "operation", settings=settings, parts=parts, takes=takes)

    def _edges(self, cell: Mapping[Any, Any], call: Call) -> tuple[Layer, ...]:
        values = {str(key): value for key, value in cell.items()}
        calls: Mapping[str, Call] = call.arguments[0]
        ordered = sorted(calls, key=lambda edge: [int(node) for node in reversed(edge.split("-"))])
        return tuple(self.read(values[edge], calls[edge], edge, int(edge.split("-")[0])) for edge in ordered)

    def _nodes(self, cell: Mapping[Any, Any], call: Call) -> tuple[Layer, ...]:
        values = {str(key): value for key, value in cell.items()}
        nodes = []
        for number, sides in call.arguments[0].items():
            parts = tuple(
                self.read(side["operation"], inner_call, str(index), start)
                for index, (side, (start, inner_call)) in enumerate(zip(values[number], sides, strict=True))
            )
            parameters, flops = sum(part.parameters for part in parts), sum(part.flops for part in parts)
            nodes.append(Layer(number, "", "node", {}, None, parts[0].shape, parameters, flops, parts))
        return tuple(nodes)

    def _steps(self, params: Mapping[str, Any], call: Call) -> tuple[Layer, ...]:
        repeats = params.get("repeats", 1)
        steps = []
        for number, step in enumerate(call.arguments[0]):
            fits, cell = step.arguments
            # `repeats` cells; each further stage has a reduction before them.
            reduces = number >= repeats and (number - repeats) % (repeats + 1) == 0
            parts = [
                self.layer(fit, f"input {index}", adapter, "operation", takes=index)
                for index, fit in enumerate(fits)
                if (adapter := _adapter_name(fit))
            ]
            parts.append(self.read(_step_value(params, cell, reduces), cell, "cell"))
            steps.append(self.layer(step, "reduction" if reduces else "cell", "", "step", parts=tuple(parts)))
        return tuple(steps)


def _step_value(params: Mapping[str, Any], call: Call, reduces: bool) -> Any:
    """Return the value of a step of a stack; for a reduction that the architecture doesn't name, the default one."""
    if not reduces:
        return params["cell"]
    reduction = params.get("reduction")
    return {call.function.__name__: dict(call.keywords)} if reduction is None else reduction


def _adapter_name(fit: Call) -> str:
    """Return the name of the module that adapts a cell's input, or an empty string."""
    if fit.function is nn.Identity:
        return ""
    if fit.function is nn.Sequential:
        return ", ".join(_adapter_name(argument) for argument in fit.arguments)
    return fit.function.__name__
