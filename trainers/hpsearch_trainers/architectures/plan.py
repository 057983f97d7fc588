"""Turns an architecture into the calls that make its network, and the shapes in between. No weights are allocated."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.architectures.calls import Call, Planned, module
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.registry import OPERATIONS, Build
from hpsearch_trainers.architectures.shapes import Shape, described
from hpsearch_trainers.nearest import nearest

__all__ = ["chain", "check_parameters", "named", "operation_named", "plan_operation"]

_MODULE = (nn.Module, "nn.Module", "torch.nn.Module", "Module")
"""How the parameters of an operation that are architectures are annotated."""

KNOWN = "an operation's name, one name to its parameters, a list of these, or a cell"


def named(value: object, path: str) -> tuple[str, dict[str, Any]]:
    """Return the name of an operation, and its parameters.

    Raises:
        ArchitectureError: It isn't one.
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
        known = [*OPERATIONS, "cells"]
        hint = nearest(name, known) or f"; there are {', '.join(sorted(known))}, and those that you register"
        raise ArchitectureError(path, f"must be a known operation, got {name!r}{hint}")
    return function


def check_parameters(function: Build, params: Mapping[str, Any], path: str) -> None:
    """Check the names of parameters against those that a function has after the shape.

    Raises:
        ArchitectureError: One is unknown or missing.
    """
    _, *there = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in there]
    for name in params:
        if name not in known:
            takes = f"; it has {', '.join(known)}" if known else "; it has none"
            raise ArchitectureError(path, f"has no parameter {name!r}{nearest(name, known) or takes}")
    for parameter in there:
        if parameter.default is inspect.Parameter.empty and parameter.name not in params:
            raise ArchitectureError(path, f"must have the parameter {parameter.name!r}, which is missing")


def plan_operation(name: str, params: Mapping[str, Any], shape: Shape, path: str, plan: Any) -> Planned:
    """Plan one operation; `plan` plans the architectures among its parameters."""
    function = operation_named(name, path)
    path = f"{path}.{name}"
    check_parameters(function, params, path)
    annotations = {one.name: one.annotation for one in inspect.signature(function).parameters.values()}
    given = {
        key: plan(value, shape, f"{path}.{key}").call if annotations[key] in _MODULE else value
        for key, value in params.items()
    }
    call = Call(function, (shape,), given)
    return Planned(call, _shape_after(call, shape, path))


def chain(values: Sequence[Any], shape: Shape, path: str, plan: Any) -> Planned:
    """Plan values in sequence."""
    calls = []
    for place, value in enumerate(values):
        planned = plan(value, shape, f"{path}[{place}]")
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
