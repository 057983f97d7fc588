"""The description of a call that ranks must agree on, and the check of what a user passes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.errors import UsageError
from hpsearch_comm.header import DTYPES, Signature
from hpsearch_comm.operations.contiguous import is_plain, may_share_elements
from hpsearch_comm.shm.shared_memory import lies_in_shared_memory

_NO_DISPATCH = torch.Tensor.__torch_dispatch__


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
    reduction: Reduction | None
    carry: Callable[..., Any] | None
    """Of an allreduce of tensors in this machine's memory: what carries it out."""

    @classmethod
    def of(cls, signature: Signature, reduction: Reduction | None, carry: Callable[..., Any] | None) -> Call:
        """Describe the call that this signature stands for, whatever its sequence number."""
        packed, nbytes = signature.pack(), signature.nbytes
        return cls(signature.operation, signature.algorithm, nbytes, packed[:16], packed[24:], reduction, carry)

    def packed(self, sequence: int) -> bytes:
        """Return the signature of the call with this number."""
        return self.head + sequence.to_bytes(8, "little") + self.tail


def check_tensor(name: str, tensor: object) -> torch.Tensor:
    """Return the tensor's memory as a plain torch.Tensor without history, or say why no collective can take it.

    Raises:
        UsageError: It isn't a dense tensor in memory, of a dtype that can travel.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{name} takes a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested one" if tensor.is_nested else f"one of layout {str(tensor.layout).removeprefix('torch.')}"
        raise UsageError(
            f"{name} takes a dense tensor, got {kind}: use tensor.to_dense(), or allgather what it consists of, such "
            "as its indices() and values()"
        )
    if tensor.dtype not in DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise UsageError(f"{name} takes tensors of {kinds}, got {str(tensor.dtype).removeprefix('torch.')}")
    if type(tensor) is not torch.Tensor:
        tensor = _without_class(name, tensor)
    if not tensor.data_ptr() and tensor.numel() and not tensor.is_meta:
        raise UsageError(
            f"{name} takes a tensor whose elements are in memory, got one of shape {list(tensor.shape)} without any: "
            "its storage was freed, or it stands for zeros that were never made; pass tensor.clone(), or make it anew"
        )
    if tensor.is_inference():
        tensor = _normal(tensor)
    return tensor.detach() if tensor.requires_grad else tensor


def check_rows(name: str, tensor: object) -> torch.Tensor:
    """Do as `check_tensor`, of an operation that shares out rows.

    Raises:
        UsageError: No collective can take the tensor, or it has no rows.
    """
    source = check_tensor(name, tensor)
    if source.dim() == 0:
        raise UsageError(f"{name} shares out the rows of a tensor, got one without dimensions")
    return source


def check_target(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or say why no result can be written into it.

    Raises:
        UsageError: Several of its elements lie in one place, or it is other ranks' memory too.
    """
    if lies_in_shared_memory(tensor):
        raise UsageError(
            f"{name} must have memory of this rank's own, since a result is written into it while others may still "
            "read theirs, got memory of Group.share: pass tensor.clone()"
        )
    if not tensor.is_contiguous() and may_share_elements(tensor):
        raise UsageError(
            f"{name} must have memory of its own for each element, since a result is written into it, got a view of "
            f"shape {list(tensor.shape)} with strides {list(tensor.stride())}, such as expand() or unfold() make: pass "
            "tensor.clone()"
        )
    return tensor


def check_out(
    name: str,
    out: object,
    tensor: torch.Tensor,
    shape: torch.Size | tuple[int, ...],
    alias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Check that the result fits into `out`, and can be written there while the tensor is still read.

    Args:
        name: The operation.
        out: Where the user wants the result.
        tensor: What goes into the operation.
        shape: Of the result.
        alias: The part of the tensor that `out` may be. Without it, any overlap will do.

    Raises:
        UsageError: It has another shape, dtype or device, shares elements, or overlaps the tensor.
    """
    result = check_target(f"out of {name}", check_tensor(f"out of {name}", out))
    if result.shape != shape or result.dtype is not tensor.dtype or result.device != tensor.device:
        raise UsageError(
            f"out of {name} must be {tensor.dtype} {list(shape)} on {tensor.device}, got {result.dtype} "
            f"{list(result.shape)} on {result.device}"
        )
    # Where one of the two isn't plain, its elements are copied, and only the copy takes part.
    if alias is None or not is_plain(result) or not is_plain(tensor):
        return result
    start, at = tensor.data_ptr(), result.data_ptr()
    if at == alias.data_ptr():
        return result
    if start < at + result.nbytes and at < start + tensor.nbytes:
        expected = "the tensor" if alias is tensor else "the rows of the tensor that this rank gets"
        raise UsageError(
            f"out of {name} must be {expected} or lie apart from it, got one that begins {at - start:+,} bytes from "
            "the tensor's begin and overlaps it: pass memory of its own"
        )
    return result


def check_rank(name: str, rank: Any, size: int) -> int:
    """Return an argument that names a rank as an int, or say why it is none.

    Raises:
        UsageError: It isn't one.
    """
    number = whole_number(rank)
    if number is None or not 0 <= number < size:
        raise UsageError(f"{name} must be a rank from 0 to {size - 1}, got {rank!r}")
    return number


def whole_number(value: Any) -> int | None:
    """Return a whole number of any kind, NumPy's and torch's too, as an int; None for all else, such as True."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool:
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _without_class(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a Parameter or another subclass without what that makes of torch's functions."""
    if type(tensor).__torch_dispatch__ is not _NO_DISPATCH:
        raise UsageError(
            f"{name} takes tensors with memory of their own, got {type(tensor).__name__}, which keeps its elements "
            "elsewhere: pass the tensors that it consists of, such as tensor.to_local()"
        )
    return tensor.as_subclass(torch.Tensor)


def _normal(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of an inference tensor as a tensor that may be changed outside of inference mode too."""
    with torch.inference_mode(False):
        normal = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        normal.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.is_conj():
            normal = normal.conj()
        return torch._neg_view(normal) if tensor.is_neg() else normal
