"""Tensors of any shape between two ranks that follow each other in a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hpsearch_comm import Group, Handle
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.header import DTYPES
from hpsearch_trainers.host_memory import empty_on_host, to_host

__all__ = ["Channel", "packed", "unpacked"]

_NOTHING = -1
"""Stands for None, in place of a dtype."""
_AS_BEFORE = 0
"""Stands for the description of a message, where it is that of the one before."""


class Channel:
    """What this rank and another one send each other: lists of tensors, each described before it comes, and of None.

    Messages are a number, how long the description is, then that, then the tensors. A description that is that of the
    message before isn't sent.

    Args:
        group: Of both ranks.
        peer: The other one.
        device: Where what comes is put.
    """

    def __init__(self, group: Group, peer: int, device: torch.device) -> None:
        self._group = group
        self._peer = peer
        self._device = device
        self._sent_description: list[int] = []
        self._received_description: list[int] = []
        self._pending: list[Handle[Tensor]] = []

    def send(self, tensors: Sequence[Tensor | None]) -> None:
        """Send tensors, which mustn't change until `flush`."""
        description = [number for tensor in tensors for number in _described(tensor)]
        if description == self._sent_description:
            self._start(torch.tensor([_AS_BEFORE], device="cpu"))
        else:
            self._start(torch.tensor([len(description)], device="cpu"))
            self._start(torch.tensor(description, device="cpu"))
            self._sent_description = description
        for tensor in to_host([tensor for tensor in tensors if tensor is not None]):
            self._start(tensor)

    def flush(self) -> None:
        """Wait until all that was sent may change."""
        while self._pending:
            self._pending.pop(0).wait()

    def receive(self) -> list[Tensor | None]:
        """Receive tensors, which require a gradient where those that were sent do."""
        length = int(self._next(torch.empty(1, dtype=torch.int64, device="cpu")))
        if length != _AS_BEFORE:
            self._received_description = self._next(torch.empty(length, dtype=torch.int64, device="cpu")).tolist()
        numbers = iter(self._received_description)
        return [self._received(kind, numbers) for kind in numbers]

    def _received(self, kind: int, numbers: Iterator[int]) -> Tensor | None:
        if kind == _NOTHING:
            return None
        needs_gradient, dimensions = next(numbers), next(numbers)
        shape = [next(numbers) for _ in range(dimensions)]
        tensor = self._next(empty_on_host(shape, DTYPES[kind], self._device)).to(self._device)
        return tensor.requires_grad_(bool(needs_gradient))

    def _start(self, tensor: Tensor) -> None:
        self._pending.append(self._group.send_async(tensor, self._peer))

    def _next(self, tensor: Tensor) -> Tensor:
        return self._group.recv(tensor, self._peer)


def _described(tensor: Tensor | None) -> list[int]:
    if tensor is None:
        return [_NOTHING]
    return [DTYPES.index(tensor.dtype), int(tensor.requires_grad), tensor.dim(), *tensor.shape]


def unpacked(output: Any, stage: int) -> list[Tensor]:
    """Return the tensors that a stage gives.

    Raises:
        ConfigurationError: It gives something else.
    """
    tensors = list(output) if isinstance(output, tuple | list) else [output]
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.layout is torch.strided for tensor in tensors):
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
        raise ConfigurationError(
            f"a stage of a pipeline must give a tensor, or a tuple of tensors, for the next one; stage {stage} gives "
            f"{kinds or 'none'}: cut the model elsewhere, by naming other modules in Parts.pipeline"
        )
    return tensors


def packed(tensors: Sequence[Tensor]) -> Any:
    """Return what the next stage is called with."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)
