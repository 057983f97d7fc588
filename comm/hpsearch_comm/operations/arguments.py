"""The description of a call, which must be equal on all ranks, and checks of the user's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.errors import UsageError
from hpsearch_comm.header import DTYPES, SUPPORTED, Signature
from hpsearch_comm.operations.contiguous import is_plain, may_share_elements
from hpsearch_comm.shm.shared_memory import lies_in_shared_memory

_NO_DISPATCH = torch.Tensor.__torch_dispatch__


@dataclass(frozen=True, slots=True)
class Call:
    """The description of calls of one operation with tensors of the same shape and dtype. It is created once."""

    operation: str
    algorithm: str
    nbytes: int
    """Size of the tensor in bytes."""
    head: bytes
    """The packed signature up to the sequence number."""
    tail: bytes
    """The packed signature after the sequence number."""
    reduction: Reduction | None
    carry: Callable[..., Any] | None
    """The function that runs the call, for an allreduce of CPU tensors; else None."""

    @classmethod
    def of(cls, signature: Signature, reduction: Reduction | None, carry: Callable[..., Any] | None) -> Call:
        """Return the description for a signature, without its sequence number."""
        packed, nbytes = signature.pack(), signature.nbytes
        return cls(signature.operation, signature.algorithm, nbytes, packed[:16], packed[24:], reduction, carry)

    def packed(self, sequence: int) -> bytes:
        """Return the packed signature with this sequence number."""
        return self.head + sequence.to_bytes(8, "little") + self.tail


def check_tensor(name: str, tensor: object) -> torch.Tensor:
    """Return the tensor as a plain torch.Tensor without autograd history, in the same memory.

    Raises:
        UsageError: It isn't a dense tensor in memory, or its dtype isn't supported.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{name} takes a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested one" if tensor.is_nested else f"one of layout {str(tensor.layout).removeprefix('torch.')}"
        raise UsageError(
            f"{name} takes a dense tensor, got {kind}: use tensor.to_dense(), or allgather what it consists of, such "
            "as its indices() and values()"
        )
    if tensor.dtype not in SUPPORTED:
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
    """Run `check_tensor` for an operation that distributes rows.

    Raises:
        UsageError: The tensor isn't supported, or is 0-D.
    """
    source = check_tensor(name, tensor)
    if source.dim() == 0:
        raise UsageError(f"{name} shares out the rows of a tensor, got one without dimensions")
    return source


def check_target(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if a result can be written to it.

    Raises:
        UsageError: Its elements overlap in memory, or it is in memory that other ranks share.
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
    """Check that the result can be written to `out`, also while the input is still being read.

    Args:
        name: The operation.
        out: The user's tensor for the result.
        tensor: The input of the operation.
        shape: The shape of the result.
        alias: The part of the input that `out` may be. None allows any overlap.

    Raises:
        UsageError: `out` has another shape, dtype or device, its elements overlap, or it overlaps the input.
    """
    result = check_target(f"out of {name}", check_tensor(f"out of {name}", out))
    if result.shape != shape or result.dtype is not tensor.dtype or result.device != tensor.device:
        raise UsageError(
            f"out of {name} must be {tensor.dtype} {list(shape)} on {tensor.device}, got {result.dtype} "
            f"{list(result.shape)} on {result.device}"
        )
    # If one of the two isn't plain, the operation uses a copy of its elements.
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
    """Return a rank argument as an int.

    Raises:
        UsageError: It isn't a rank of the group.
    """
    number = whole_number(rank)
    if number is None or not 0 <= number < size:
        raise UsageError(f"{name} must be a rank from 0 to {size - 1}, got {rank!r}")
    return number


def check_splits(
    rows: int, splits: Sequence[int] | torch.Tensor | None, size: int, *, all_rows: bool = True
) -> list[int]:
    """Return the number of rows that alltoall sends to each rank.

    Args:
        rows: Number of rows of the tensor.
        splits: The user's numbers; None sends equal numbers.
        size: Number of ranks.
        all_rows: Whether every row must be sent.

    Raises:
        UsageError: The rows can't be divided in this way.
    """
    if splits is None:
        if rows % size:
            raise UsageError(
                f"alltoall without splits needs a number of rows that {size} ranks can share evenly, got {rows}: pass "
                "splits, the rows for each rank"
            )
        return [rows // size] * size
    try:
        numbers = [whole_number(count) for count in splits]
    except TypeError:  # not iterable
        numbers = []
    counts = [number for number in numbers if number is not None and number >= 0]
    total = sum(counts)
    if len(numbers) == len(counts) == size and (total == rows or (total < rows and not all_rows)):
        return counts
    most = "" if all_rows else "at most "
    raise UsageError(
        f"splits must be {size} whole numbers of at least 0, one for each rank, with a sum of {most}{rows} rows, got "
        f"{splits!r}"
    )


def whole_number(value: Any) -> int | None:
    """Return an integer of any type, including NumPy's and torch's, as an int; None for anything else, such as True."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool:
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _without_class(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a Parameter or other subclass as a plain torch.Tensor, without the subclass's overrides."""
    if type(tensor).__torch_dispatch__ is not _NO_DISPATCH:
        raise UsageError(
            f"{name} takes tensors with memory of their own, got {type(tensor).__name__}, which keeps its elements "
            "elsewhere: pass the tensors that it consists of, such as tensor.to_local()"
        )
    return tensor.as_subclass(torch.Tensor)


def _normal(tensor: torch.Tensor) -> torch.Tensor:
    """Return a normal tensor in the memory of an inference tensor: it may also be changed outside inference mode."""
    with torch.inference_mode(False):
        normal = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        normal.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.is_conj():
            normal = normal.conj()
        return torch._neg_view(normal) if tensor.is_neg() else normal
