"""Tells which tensors torch's operations use in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class TorchUses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of every tensor that an operation of this thread works on, views apart. Use it as a context.

    Args:
        tell: Called with the tensor, and whether the operation writes it.
    """

    def __init__(self, tell: Callable[[torch.Tensor, bool], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tell = tell

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            arguments = func._schema.arguments
            named = dict(zip((argument.name for argument in arguments), args, strict=False)) | (kwargs or {})
            for argument in arguments:
                value = named.get(argument.name)
                if isinstance(value, torch.Tensor):
                    self._tell(value, argument.alias_info is not None and argument.alias_info.is_write)
        return func(*args, **(kwargs or {}))
