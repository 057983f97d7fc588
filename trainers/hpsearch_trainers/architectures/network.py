"""The network of an architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from hpsearch_trainers.architectures import cells, convolutions, operations
from hpsearch_trainers.architectures.calls import Call, Planned, module
from hpsearch_trainers.architectures.cell_modules import Network
from hpsearch_trainers.architectures.cells import is_cell, plan_cell, plan_stack
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.plan import chain, named, plan_operation
from hpsearch_trainers.architectures.shapes import Shape, described, positive_int

_REGISTERED = (cells, convolutions, operations)
"""Modules that register operations on import."""


def network(
    value: Any,
    inputs: Shape = (1, 8, 8),
    outputs: int = 10,
    *,
    stem: Any = None,
    head: Any = None,
    path: str = "architecture",
) -> nn.Module:
    """Return the network of an architecture, with torch's own initialization.

    Args:
        value: A value of a sweep's structures: an operation's name; one name to its parameters; a list of these, in
            sequence; an edge cell, `{"0-1": ...}`, or a node cell, `{"2": [{"from": 0, "operation": ...}, ...]}`. They
            can be nested.
        inputs: The shape of the input, without the batch: (channels, height, width), (tokens, features) or (features,).
        outputs: Number of outputs for each row of the batch.
        stem: An architecture before it.
        head: An architecture after it, which must return rows; None takes the mean over pixels or tokens. A linear
            layer comes last in any case.
        path: Name of the architecture in errors, such as that of the sweep's parameter.

    Raises:
        ArchitectureError: No network can be built from it.
    """
    model = module(plan_network(value, inputs, outputs, stem=stem, head=head, path=path))
    record(model, value=value, inputs=inputs, outputs=outputs, stem=stem, head=head)
    return model


def plan_network(
    value: Any, inputs: Shape, outputs: int, *, stem: Any = None, head: Any = None, path: str = "architecture"
) -> Call:
    """Return the call that makes the network; arguments as in `network`. No weights are allocated."""
    inputs, outputs = _checked(inputs, outputs)
    before = _plan([] if stem is None else stem, inputs, "stem")
    body = _plan(value, before.shape, path)
    if head is None:
        head = [] if len(body.shape) == 1 else ["global_pool"]
    behind = _plan(head, body.shape, "head")
    if len(behind.shape) != 1:
        raise ArchitectureError(
            "head", f"must return a row, got {described(behind.shape)}: end it with 'flatten' or 'global_pool'"
        )
    linear = Call(nn.Linear, (behind.shape[0], outputs))
    return Call(Network, (before.call, body.call, Call(nn.Sequential, (behind.call, linear))))


def shape_after(value: Any, inputs: Shape, path: str = "architecture") -> Shape:
    """Return the shape of an architecture's output, without stem and head and without the batch.

    Raises:
        ArchitectureError: No network can be built from it.
    """
    return _plan(value, _checked(inputs, 1)[0], path).shape


def _checked(inputs: Any, outputs: Any) -> tuple[Shape, int]:
    shape = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    if not 1 <= len(shape) <= 3:
        raise ArchitectureError(
            "inputs", f"must be (channels, height, width), (tokens, features) or (features,), got {inputs!r}"
        )
    try:
        for side in shape:
            positive_int("each number", side)
    except ValueError as error:
        raise ArchitectureError("inputs", str(error)) from error
    try:
        return shape, positive_int("outputs", outputs)
    except ValueError as error:
        raise ArchitectureError("outputs", str(error).removeprefix("outputs ")) from error


def _plan(value: Any, shape: Shape, path: str) -> Planned:
    """Plan any value."""
    if isinstance(value, list | tuple):
        return chain(value, shape, path, _plan)
    if is_cell(value):
        return plan_cell(value, shape, path, _plan)
    name, params = named(value, path)
    if name == "cells":
        return plan_stack(params, shape, f"{path}.cells", _plan)
    return plan_operation(name, params, shape, path, _plan)


def record(network: nn.Module, **arguments: Any) -> None:
    """Store the arguments of `network` with the module, if JSON can represent them."""
    try:
        network.architecture = json.loads(json.dumps(arguments))
    except (TypeError, ValueError):
        return


def architecture_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of `network`, `costs` and `standalone` for this model, as plain containers.

    Args:
        model: A result of `network`. For any other module the result is None, also if it contains such a network.

    Returns:
        A mapping with "value", "inputs", "outputs", "stem" and "head"; or None.
    """
    architecture: Any = vars(model).get("architecture")
    return architecture if isinstance(model, Network) and isinstance(architecture, dict) else None


def weights_in(state: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the weights of a checkpoint that were validated, as a network's `state_dict`.

    Args:
        state: A Trainer's `state_dict()`, or any mapping with "model". "average", if present, is the `state_dict` of
            torch's `AveragedModel`, and what was validated.

    Returns:
        "average" or "model", and the weights; or None if there are none.
    """
    average, model = state.get("average"), state.get("model")
    if isinstance(average, Mapping):
        return "average", {
            name.removeprefix("module."): value for name, value in average.items() if name != "n_averaged"
        }
    return ("model", dict(model)) if isinstance(model, Mapping) else None
