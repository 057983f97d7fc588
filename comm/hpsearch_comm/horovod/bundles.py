"""Bundles of parameters whose gradients are reduced in one operation: one parameter, or a group of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hpsearch_comm.data_parallel.optimizer import check_named
from hpsearch_comm.errors import UsageError
from hpsearch_comm.horovod.objects import broadcast_object
from hpsearch_comm.horovod.process_sets import ProcessSet


class Bundle:
    """Parameters whose gradients are reduced in one operation.

    Args:
        parameters: One parameter, or the parameters of a group.
        name: The name by which the ranks match the operation.
        grouped: Whether the bundle is a group.

    Attributes:
        passes_left: Backward passes that each parameter's gradient still needs.
        handle: Handle of the pending operation; None before it starts.
        contexts: For each result, the context that `decompress` needs.
        gradients: For each parameter, its gradient and the gradient's version at the start of the reduction.
    """

    __slots__ = ("contexts", "gradients", "grouped", "handle", "name", "parameters", "passes_left")

    def __init__(self, parameters: Sequence[torch.Tensor], name: str, grouped: bool) -> None:
        self.parameters = tuple(parameters)
        self.name = name
        self.grouped = grouped
        self.passes_left: dict[torch.Tensor, int] = {}
        self.handle: Any = None
        self.contexts: list[Any] = []
        self.gradients: dict[torch.Tensor, tuple[torch.Tensor, int]] = {}

    @property
    def active_parameters(self) -> list[torch.Tensor]:
        """The parameters whose gradients are reduced: those that require a gradient or still have one."""
        return [parameter for parameter in self.parameters if parameter.requires_grad or parameter.grad is not None]

    def reset(self, passes: int) -> None:
        """Reset the bundle for the next `passes` backward passes."""
        self.passes_left = dict.fromkeys(self.parameters, passes)
        self.handle, self.contexts, self.gradients = None, [], {}

    def remember_gradients(self) -> None:
        """Record the current gradients and their versions."""
        self.gradients = {
            parameter: (parameter.grad, parameter.grad._version)
            for parameter in self.parameters
            if parameter.grad is not None
        }

    def changed(self) -> torch.Tensor | None:
        """Return a parameter whose gradient changed since `remember_gradients`; None if none changed."""
        for parameter, (gradient, version) in self.gradients.items():
            if parameter.grad is not gradient or gradient._version != version:
                return parameter
        return None

    def has_started(self, passes: int) -> bool:
        """Return whether a gradient has been computed since `reset(passes)`, or the reduction has started."""
        return self.handle is not None or any(left < passes for left in self.passes_left.values())


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return the name of each parameter of an optimizer.

    Args:
        optimizer: The optimizer.
        named_parameters: Pairs of name and parameter; None names the parameters by their index.

    Raises:
        UsageError: named_parameters aren't pairs, two of them have the same name, or a parameter has no name.
    """
    stepped = [
        (f"group {number}, parameter {index}", parameter)
        for number, settings in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(settings["params"])
    ]
    named = stepped if named_parameters is None else named_parameters
    named = list(named) if isinstance(named, Iterable) else [named]
    for pair in named:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise UsageError(
                f"named_parameters must be pairs of a name and a parameter, got {type(pair).__name__}: pass "
                "model.named_parameters()"
            )
    twice = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if twice:
        raise UsageError(
            f"each name in named_parameters must stand for one parameter, {', '.join(twice)} stand for several: put "
            "another prefix before the names of each model"
        )
    names = {parameter: name for name, parameter in sorted(named, key=lambda pair: pair[0])}
    check_named(optimizer, set(map(id, names)))
    return {parameter: names[parameter] for _, parameter in stepped}


def form_groups(
    names: dict[torch.Tensor, str], groups: int | Sequence[Sequence[torch.Tensor]] | None, process_set: ProcessSet
) -> list[Bundle]:
    """Divide the parameters into bundles; a collective if a number of groups is given.

    Args:
        names: The parameters whose gradients are reduced, with their names.
        groups: None, the number of groups, or the parameters of each group. A parameter in no group is reduced alone.
        process_set: The ranks that reduce them.

    Raises:
        UsageError: groups is something else.
    """
    if groups is None:
        return [Bundle([parameter], name, False) for parameter, name in names.items()]
    if isinstance(groups, list | tuple):
        _check_groups(groups)
        grouped = {parameter for group in groups for parameter in group}
        formed = [[parameter for parameter in group if parameter in names] for group in groups]
        formed += [[parameter] for parameter in names if parameter not in grouped]
    elif type(groups) is int and groups > 0:
        # All ranks must form the same groups, even if the order of their parameters differs.
        order = broadcast_object(list(names.values()), process_set.ranks[0], process_set=process_set)
        indices = {name: index for index, name in enumerate(order)}
        parameters = sorted(names, key=lambda parameter: indices[names[parameter]])
        quotient, remainder = divmod(len(parameters), groups)
        bounds = [number * quotient + min(number, remainder) for number in range(groups + 1)]
        formed = [parameters[begin:end] for begin, end in itertools.pairwise(bounds)]
    else:
        raise UsageError(f"groups must be a number of groups above 0, or a list of lists of parameters, got {groups!r}")
    return [Bundle(group, names[group[0]], True) for group in formed if group]


def _check_groups(groups: Sequence[Sequence[torch.Tensor]]) -> None:
    assigned: set[torch.Tensor] = set()
    for number, group in enumerate(groups):
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise UsageError(f"groups must be lists of parameters, got {type(parameter).__name__} in list {number}")
            if parameter in assigned:
                raise UsageError(
                    f"a parameter can be in one group, but one of shape {list(parameter.shape)} in list {number} is "
                    "in another one too"
                )
            assigned.add(parameter)
