"""What averaging gradients needs of a group: a slice of `Group`, so that tests can stand in for it."""

from __future__ import annotations

from typing import Any, Protocol

import torch

__all__ = ["Collectives", "Pending"]


class Pending(Protocol):
    """An asynchronous operation."""

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for its end and give its result. On a GPU: until work of the current stream may use the result."""


class Collectives(Protocol):
    """The operations of a group; `Group` documents them."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def allreduce(self, tensor: torch.Tensor, op: str = "mean") -> torch.Tensor:
        """Reduce in place."""

    def allreduce_async(self, tensor: torch.Tensor, op: str = "mean") -> Pending:
        """Reduce in place, behind the operations called before."""

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Overwrite the tensor with the root's, in place."""

    def broadcast_async(self, tensor: torch.Tensor, root: int = 0) -> Pending:
        """Overwrite the tensor with the root's, in place, behind the operations called before."""

    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate the ranks' tensors along the first dimension, which may differ."""

    def allgather_async(self, tensor: torch.Tensor) -> Pending:
        """Concatenate the ranks' tensors, behind the operations called before."""

    def allgather_object(self, value: Any) -> list[Any]:
        """Give every rank's JSON-like value."""

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Give the root's JSON-like value."""

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Make a tensor in memory that the ranks of this host share; a collective."""

    def duplicate(self) -> Collectives:
        """Make an independent group of the same ranks; a collective."""
