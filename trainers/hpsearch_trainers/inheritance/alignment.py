"""Matches a child's layers with its parent's, by a shortest edit script."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from hpsearch_trainers.architectures.calls import Call

__all__ = ["align", "distance", "same_call"]

_Item = TypeVar("_Item")

_FAR = 10.0
"""More than a deletion and an insertion."""


def same_call(first: Any, second: Any) -> bool:
    """Return whether two calls are of the same functions with the same parameters, whatever their input's shape."""
    if isinstance(first, Call) and isinstance(second, Call):
        return first.function is second.function and same_call(_arguments(first), _arguments(second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same_call(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(same_call(*pair) for pair in zip(first, second, strict=True))
    return bool(first == second)


def _arguments(call: Call) -> dict[str, Any]:
    """Return a call's arguments with defaults, without an operation's input shape."""
    if inspect.isclass(call.function):
        return {"": list(call.arguments), **call.keywords}
    _, *parameters = inspect.signature(call.function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters} | dict(call.keywords)


def distance(first: Call, second: Call) -> float:
    """Return the distance of two calls: 0 if they are the same, 2 or more if they can't be matched."""
    if first.function is not second.function:
        return _FAR
    if same_call(first, second):
        return 0.0
    if first.function is nn.Sequential:
        edits = _table(first.arguments, second.arguments, distance)[0][0]
        return min(1.5, edits / max(len(first.arguments), len(second.arguments)))
    first_arguments, second_arguments = _arguments(first), _arguments(second)
    return min(
        1.5, 0.25 * sum(not same_call(value, second_arguments.get(key)) for key, value in first_arguments.items())
    )


def align(
    child: Sequence[_Item], parent: Sequence[_Item], cost: Callable[[_Item, _Item], float]
) -> list[tuple[int | None, int | None]]:
    """Match two sequences by a shortest edit script.

    Of several shortest scripts, the one whose pairs come first: a layer that is inserted next to a similar one comes
    after it, where more is known of its input.

    Args:
        child: The child's layers.
        parent: The parent's layers.
        cost: The distance of two layers. An insertion or a deletion costs 1.

    Returns:
        Pairs of indices in the child and in the parent; None for a layer without a match.
    """
    costs = _table(child, parent, cost)
    pairs: list[tuple[int | None, int | None]] = []
    index, parent_index = 0, 0
    while index < len(child) or parent_index < len(parent):
        remaining_cost = costs[index][parent_index]
        both_remain = index < len(child) and parent_index < len(parent)
        if (
            both_remain
            and remaining_cost == cost(child[index], parent[parent_index]) + costs[index + 1][parent_index + 1]
        ):
            pairs.append((index, parent_index))
            index, parent_index = index + 1, parent_index + 1
        elif parent_index < len(parent) and remaining_cost == 1 + costs[index][parent_index + 1]:
            pairs.append((None, parent_index))
            parent_index += 1
        else:
            pairs.append((index, None))
            index += 1
    return pairs


def _table(child: Sequence[_Item], parent: Sequence[_Item], cost: Callable[[_Item, _Item], float]) -> list[list[float]]:
    """Return the edit distance (Wagner and Fischer, 1974) of the suffixes that start at each pair of indices."""
    rows, columns = len(child), len(parent)
    costs = [
        [float(rows - index + columns - parent_index) for parent_index in range(columns + 1)]
        for index in range(rows + 1)
    ]
    for index in reversed(range(rows)):
        for parent_index in reversed(range(columns)):
            costs[index][parent_index] = min(
                cost(child[index], parent[parent_index]) + costs[index + 1][parent_index + 1],
                1 + costs[index][parent_index + 1],
                1 + costs[index + 1][parent_index],
            )
    return costs
