"""Finding out, before anything moves, that all ranks have built the same model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import torch
from torch.nn.parameter import is_lazy

from hpsearch_comm.errors import MismatchError, UsageError
from hpsearch_comm.group import Group


def describe_tensors(kind: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return a line for each tensor: what must be equal on every rank, in words.

    Raises:
        UsageError: A parameter hasn't got its shape yet.
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
    """Return a line for each parameter: what the memory of its gradient depends on, in words."""
    lines = describe_tensors("parameter", parameters := list(parameters))
    return [
        line if parameter.is_contiguous() else f"{line} of strides {list(parameter.stride())}"
        for line, (_, parameter) in zip(lines, parameters, strict=True)
    ]


_ADVICE = "Build it from the same configuration everywhere, in the same order"


def check_agreement(group: Group, subject: str, lines: Sequence[str], advice: str = _ADVICE) -> None:
    """Raise, on every rank, unless all ranks have the same lines; a collective.

    Args:
        group: The ranks.
        subject: What the lines describe.
        lines: This rank's.
        advice: What to do where they differ.

    Raises:
        MismatchError: They differ; names the first line that does, and what each of two ranks has there.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(group.gather_in("agreement", digest))) == 1:
        return
    # Everyone has seen the same digests, so everyone comes here.
    first, *others = group.gather_in("agreement", list(lines))
    for rank, theirs in enumerate(others, 1):
        for our_line, their_line in zip_longest(first, theirs, fillvalue="nothing more"):
            if our_line != their_line:
                raise MismatchError(
                    f"{subject} must be the same on every rank; the first difference: rank 0 has {our_line}, "
                    f"rank {rank} has {their_line}. {advice}"
                )
