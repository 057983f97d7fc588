"""Values that travel between ranks as JSON: nothing that is read can run code."""

from __future__ import annotations

import json
from typing import Any

import torch

from hpsearch_comm.errors import CommError, UsageError

__all__ = ["decode", "encode"]


def encode(value: Any) -> torch.Tensor:
    """Return the value as UTF-8 bytes in a 1-D uint8 tensor.

    Raises:
        UsageError: JSON has no such value, or would change it as it does with keys that aren't text. A tuple arrives as
            a list.
    """
    try:
        _check_keys(value)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
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


def _check_keys(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} would become text")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)
