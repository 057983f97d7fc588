"""States that are sure to be read back, by the types in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

__all__ = ["is_plain"]

_LARGEST = 2**63
"""Integers from here on are pickled in another way."""


def is_plain(state: object) -> bool:
    """Say whether a state holds nothing but tensors, numbers, texts, and lists, tuples and dictionaries of these.

    `torch.load(weights_only=True)` reads all of it. Of what else there is, some it reads and some it doesn't.
    """
    try:
        return _plain(state, set())
    except RecursionError:  # it lies too deep to look at
        return False


def _all_plain(values: Iterable[Any], around: set[int]) -> bool:
    return all(_plain(value, around) for value in values)


def _plain(value: Any, around: set[int]) -> bool:
    """Look at a value within the containers with these ids: one that holds itself isn't plain."""
    kind = type(value)
    if kind in (float, bool, str, type(None)):
        return True
    if kind is int:
        return bool(-_LARGEST <= value < _LARGEST)
    if kind not in (dict, OrderedDict, list, tuple):
        return _is_plain_tensor(value)
    if id(value) in around:
        return False
    within = around | {id(value)}
    if kind in (list, tuple):
        return _all_plain(value, within)
    own = vars(value).values() if kind is OrderedDict else ()  # a module's state_dict has an attribute of its own
    return _all_plain(value, within) and _all_plain(value.values(), within) and _all_plain(own, within)


def _is_plain_tensor(value: Any) -> bool:
    import torch

    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and not vars(value)
        and value.layout is torch.strided
        and not value.is_neg()
        and value.device.type in ("cpu", "cuda")
        and value.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    )
