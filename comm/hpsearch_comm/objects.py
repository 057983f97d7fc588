"""Values that travel between ranks as JSON: nothing that is read can run code."""

from __future__ import annotations

import json
from typing import Any

import torch

from hpsearch_comm.errors import CommError, UsageError

__all__ = ["decode", "encode"]


def encode(value: Any) -> torch.Tensor:
    """Give the value as UTF-8 bytes in a 1-D uint8 tensor.

    Raises:
        UsageError: JSON has no such value, or would change it: a tuple and keys that aren't text are refused too.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if json.loads(text) != value and not _has_nan(value):
            raise TypeError("tuples become lists and keys become text on the way")
        return torch.frombuffer(bytearray(text.encode("utf-8", "surrogatepass")), dtype=torch.uint8)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"a value must consist of dicts with text keys, lists, text, numbers, booleans and None to travel between "
            f"ranks, got {type(value).__name__}: {error}. Send tensors with broadcast or allgather"
        ) from None


def decode(data: torch.Tensor) -> Any:
    """Read a value back.

    Raises:
        CommError: It isn't JSON in UTF-8.
    """
    try:
        return json.loads(bytes(data.tolist()) if data.numel() < 64 else data.numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise CommError(f"a rank sent what can't be read as JSON ({error}): run one version on every rank") from None


def _has_nan(value: Any) -> bool:
    """Say whether NaN, which equals nothing, explains that a value isn't what it was."""
    if isinstance(value, dict):
        return any(_has_nan(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_nan(item) for item in value)
    return isinstance(value, float) and value != value
