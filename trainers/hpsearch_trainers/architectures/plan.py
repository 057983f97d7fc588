"""Turns an architecture into the calls that make its network, and the shapes in between. No weights are allocated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.architectures.calls import Call, Planned, module
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.registry import OPERATIONS, Build
from hpsearch_trainers.architectures.shapes import Shape, described
from hpsearch_trainers.nearest import nearest

_MODULE = (nn.Module, "nn.Module", "torch.nn.Module", "Module")
"""How the parameters of an operation that are architectures are annotated."""

KNOWN = "an operation's name, one name to its parameters, a list of these, or a cell"


def named(value: object, path: str) -> tuple[str, dict[str, Any]]:
    """Return the name of an operation, and its parameters.

    Raises:
        ArchitectureError: The value isn't an operation.
    """
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping):
        raise ArchitectureError(path, f"must be {KNOWN}, got {value!r}")
    if len(value) != 1:
        keys = ", ".join(map(str, value)) or "none"
        raise ArchitectureError(path, f"must be {KNOWN}, got a mapping with {len(value)} keys: {keys}")
    ((name, params),) = value.items()
    if not isinstance(name, str):
        raise ArchitectureError(path, f"must be {KNOWN}, got {value!r}")
    if params is not None and not isinstance(params, Mapping):
        raise ArchitectureError(f"{path}.{name}", f"must have a mapping of parameters, got {params!r}")
    return name, dict(params or {})


def operation_named(name: str, path: str) -> Build:
    """Return the builder of an operation, or raise ArchitectureError."""
    function = OPERATIONS.get(name)
    if function is None:
        names = [*OPERATIONS, "cells"]
        hint = nearest(name, names) or f"; there are {', '.join(sorted(names))}, and those that you register"
        raise ArchitectureError(path, f"must be a known operation, got {name!r}{hint}")
    return function


def check_parameters(function: Callable[..., Any], params: Mapping[str, Any], path: str) -> None:
    """Check the names of parameters against a function's parameters, except its first one, the shape.

    Raises:
        ArchitectureError: A parameter is unknown or missing.
    """
    _, *parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters]
    for name in params:
        if name not in names:
            hint = f"; it has {', '.join(names)}" if names else "; it has none"
            raise ArchitectureError(path, f"has no parameter {name!r}{nearest(name, names) or hint}")
    for parameter in parameters:
        if parameter.default is inspect.Parameter.empty and parameter.name not in params:
            raise ArchitectureError(path, f"must have the parameter {parameter.name!r}, which is missing")


def plan_operation(name: str, params: Mapping[str, Any], shape: Shape, path: str, plan: Any) -> Planned:
    """Plan one operation; `plan` plans the architectures among its parameters."""
    function = operation_named(name, path)
    path = f"{path}.{name}"
    check_parameters(function, params, path)
    annotations = {
        parameter.name: parameter.annotation for parameter in inspect.signature(function).parameters.values()
    }
    arguments = {
        key: plan(value, shape, f"{path}.{key}").call if annotations[key] in _MODULE else value
        for key, value in params.items()
    }
    call = Call(function, (shape,), arguments)
    return Planned(call, _shape_after(call, shape, path))


def chain(values: Sequence[Any], shape: Shape, path: str, plan: Any) -> Planned:
    """Plan values in sequence."""
    calls = []
    for index, value in enumerate(values):
        planned = plan(value, shape, f"{path}[{index}]")
        calls.append(planned.call)
        shape = planned.shape
    return Planned(Call(nn.Sequential, tuple(calls)), shape)


def _shape_after(call: Call, shape: Shape, path: str) -> Shape:
    """Return the output's shape of an operation, by running it on the meta device, where tensors have no data."""
    rows = 2
    try:
        with torch.device("meta"), torch.no_grad():
            out = module(call).eval()(torch.empty(rows, *shape))
    except ArchitectureError:
        raise
    except ValueError as error:
        raise ArchitectureError(path, str(error)) from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise ArchitectureError(path, f"fails for {described(shape)} as input: {problem}") from error
    if not isinstance(out, Tensor) or out.dim() < 2 or out.shape[0] != rows or 0 in out.shape:
        got = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ArchitectureError(
            path, f"must return a tensor with numbers for each of {rows} rows of {described(shape)}, got {got}"
        )
    return tuple(out.shape[1:])
