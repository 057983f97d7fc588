"""Matches a child's layers with its parent's, by a shortest edit script."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from hpsearch_trainers.architectures.calls import Call

__all__ = ["aligned", "distance", "same_call"]

_One = TypeVar("_One")

_FAR = 10.0
"""More than a deletion and an insertion."""


def same_call(one: Any, other: Any) -> bool:
    """Return whether two calls are of the same functions with the same parameters, whatever their input's shape."""
    if isinstance(one, Call) and isinstance(other, Call):
        return one.function is other.function and same_call(_given(one), _given(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_call(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same_call(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def _given(call: Call) -> dict[str, Any]:
    """Return a call's arguments with defaults, without an operation's input shape."""
    if inspect.isclass(call.function):
        return {"": list(call.arguments), **call.keywords}
    _, *there = inspect.signature(call.function).parameters.values()
    return {one.name: one.default for one in there} | dict(call.keywords)


def distance(one: Call, other: Call) -> float:
    """Return the distance of two calls: 0 if they are the same, 2 or more if they can't be matched."""
    if one.function is not other.function:
        return _FAR
    if same_call(one, other):
        return 0.0
    if one.function is nn.Sequential:
        edits = _table(one.arguments, other.arguments, distance)[0][0]
        return min(1.5, edits / max(len(one.arguments), len(other.arguments)))
    mine, theirs = _given(one), _given(other)
    return min(1.5, 0.25 * sum(not same_call(value, theirs.get(key)) for key, value in mine.items()))


def aligned(
    child: Sequence[_One], parent: Sequence[_One], cost: Callable[[_One, _One], float]
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
    at, beside = 0, 0
    while at < len(child) or beside < len(parent):
        here = costs[at][beside]
        both = at < len(child) and beside < len(parent)
        if both and here == cost(child[at], parent[beside]) + costs[at + 1][beside + 1]:
            pairs.append((at, beside))
            at, beside = at + 1, beside + 1
        elif beside < len(parent) and here == 1 + costs[at][beside + 1]:
            pairs.append((None, beside))
            beside += 1
        else:
            pairs.append((at, None))
            at += 1
    return pairs


def _table(child: Sequence[_One], parent: Sequence[_One], cost: Callable[[_One, _One], float]) -> list[list[float]]:
    """Return the edit distance (Wagner and Fischer, 1974) of the suffixes that start at each pair of indices."""
    rows, columns = len(child), len(parent)
    costs = [[float(rows - at + columns - beside) for beside in range(columns + 1)] for at in range(rows + 1)]
    for at in reversed(range(rows)):
        for beside in reversed(range(columns)):
            costs[at][beside] = min(
                cost(child[at], parent[beside]) + costs[at + 1][beside + 1],
                1 + costs[at][beside + 1],
                1 + costs[at + 1][beside],
            )
    return costs
