"""The description of a call that ranks must agree on, and the check of what a user passes to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.reduction import Reduction
from hpsearch_comm.signature import DTYPES, Signature

__all__ = ["Call", "check_device", "check_out", "check_root", "check_tensor"]


@dataclass(frozen=True, slots=True)
class Call:
    """A kind of call: all that is the same whenever an operation is called with like tensors, so it is made once."""

    operation: str
    algorithm: str
    nbytes: int
    """Of the tensor."""
    head: bytes
    """Of the packed signature, before the sequence number."""
    tail: bytes
    """Of the packed signature, behind the sequence number."""
    reduction: Reduction | None = None

    @classmethod
    def of(cls, signature: Signature, nbytes: int, reduction: Reduction | None = None) -> Call:
        """Describe the call that this signature stands for, whatever its sequence number."""
        packed = signature.pack()
        return cls(signature.operation, signature.algorithm, nbytes, packed[:16], packed[24:], reduction)

    def packed(self, sequence: int) -> bytes:
        """Give the signature of the call with this number."""
        return self.head + sequence.to_bytes(8, "little") + self.tail


def check_tensor(name: str, tensor: object) -> torch.Tensor:
    """Give the tensor without its history, or say why no collective can take it.

    Raises:
        UsageError: It isn't a dense tensor of a dtype that can travel.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{name} takes a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"{name} takes a dense tensor, got one of layout {str(tensor.layout).removeprefix('torch.')}: use "
            "tensor.to_dense(), or allgather its indices() and values()"
        )
    if tensor.dtype not in DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise UsageError(f"{name} takes tensors of {kinds}, got {str(tensor.dtype).removeprefix('torch.')}")
    return tensor.detach() if tensor.requires_grad else tensor


def check_out(name: str, out: object, tensor: torch.Tensor, shape: torch.Size | tuple[int, ...]) -> torch.Tensor:
    """Check that the result fits into `out`.

    Raises:
        UsageError: It has another shape, dtype or device.
    """
    result = check_tensor(f"out of {name}", out)
    if result.shape != shape or result.dtype is not tensor.dtype or result.device != tensor.device:
        raise UsageError(
            f"out of {name} must be {tensor.dtype} {list(shape)} on {tensor.device}, got {result.dtype} "
            f"{list(result.shape)} on {result.device}"
        )
    return result


def check_root(root: Any, size: int) -> int:
    """Check that the root is a rank.

    Raises:
        UsageError: It isn't.
    """
    if not isinstance(root, int) or isinstance(root, bool) or not 0 <= root < size:
        raise UsageError(f"root must be a rank from 0 to {size - 1}, got {root!r}")
    return root


def check_device(device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
    """Raise UsageError unless all tensors lie on the device."""
    for tensor in tensors:
        if tensor.device != device:
            raise UsageError(
                f"tensors must lie on {device}, where this rank computes, got one on {tensor.device}: move it with "
                "tensor.to(device)"
            )
