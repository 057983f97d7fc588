"""Checks, before any data is sent, that all ranks have built the same model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import torch
from torch.nn.parameter import is_lazy

from hpsearch_comm.errors import MismatchError, UsageError
from hpsearch_comm.group import Group


def describe_tensors(kind: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return a line for each tensor that describes its properties that must be the same on every rank.

    Raises:
        UsageError: A parameter is lazy and has no shape yet.
    """
    lines = []
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise UsageError(
                f"{kind} {name} is lazy and has no shape yet: run one batch through the model before wrapping it"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        frozen = " without gradient" if kind == "parameter" and not tensor.requires_grad else ""
        lines.append(f"{kind} {name} {dtype} {list(tensor.shape)}{frozen}")
    return lines


def describe_layouts(parameters: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return a line for each parameter that describes its properties that define its gradient's memory layout."""
    lines = describe_tensors("parameter", parameters := list(parameters))
    return [
        line if parameter.is_contiguous() else f"{line} of strides {list(parameter.stride())}"
        for line, (_, parameter) in zip(lines, parameters, strict=True)
    ]


_ADVICE = "Build it from the same configuration everywhere, in the same order"


def check_agreement(group: Group, subject: str, lines: Sequence[str], advice: str = _ADVICE) -> None:
    """Check that all ranks have the same lines; a collective.

    Args:
        group: The ranks.
        subject: What the lines describe.
        lines: This rank's lines.
        advice: What to do if the lines differ.

    Raises:
        MismatchError: The lines differ; raised on every rank. The error shows the first different line of two ranks.
    """
    first, *others = group.gather_in("agreement", list(lines))
    for rank, theirs in enumerate(others, 1):
        for our_line, their_line in zip_longest(first, theirs, fillvalue="nothing more"):
            if our_line != their_line:
                raise MismatchError(
                    f"{subject} must be the same on every rank; the first difference: rank 0 has {our_line}, "
                    f"rank {rank} has {their_line}. {advice}"
                )
