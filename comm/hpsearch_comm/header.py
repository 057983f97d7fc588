"""The 112-byte header of each message. It describes the operation, and is checked before the payload is used.

Layout, little endian, fixed size; every field is bounds-checked when it is read:

    offset  size  field
         0     4  magic "HPSC"
         4     1  version of this layout
         5     1  operation          index into OPERATIONS
         6     1  reduction          index into REDUCTIONS
         7     1  dtype              index into DTYPES
         8     1  algorithm          index into ALGORITHMS
         9     1  dimensions         0 to 8
        10     1  device             0 for host memory, n for the n-th CUDA device that the rank has used
        11     5  zero
        16     8  sequence           the operation's number in its group, from 0
        24     8  root               -1 if the operation has no root; the tag of send and recv; the locks of share
        32    64  shape              8 numbers; if there are more dimensions, the last is the product of the others
        96     8  step               the message's number within the operation, from 0
       104     8  bytes              of the payload that follows

Two ranks run the same step of the same operation exactly if their 112 bytes are equal.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

import torch

from hpsearch_comm.errors import RefusedError

HEADER_BYTES = 112
SIGNATURE_BYTES = 96
"""Size of the first part, which is the same in all messages of an operation."""

OPERATIONS = (
    "allreduce",
    "broadcast",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "barrier",
    "allgather_object",
    "broadcast_object",
    "empty",
    "first_cuda_use",
    "subgroup",
    "compare_clocks",
    "agreement",
    "buckets",
    "lock",
    "await_counts",
    "share",
    "send_recv",
    "envelope",
)
"""The operations. first_cuda_use to buckets are internal steps, which no user call can be mistaken for. lock and
await_counts are waits in shared memory. An envelope precedes each tensor of send and recv."""
REDUCTIONS = ("none", "sum", "mean", "min", "max", "product", "band", "bor", "bxor")
ALGORITHMS = ("none", "direct", "ring", "butterfly", "hierarchical", "naive", "tree", "pairwise", "nccl")
DTYPES: tuple[torch.dtype, ...] = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
SUPPORTED = frozenset(DTYPES)

_WITHOUT_TENSOR = frozenset(
    ("barrier", "allgather_object", *OPERATIONS[OPERATIONS.index("first_cuda_use") : OPERATIONS.index("share")])
)
_MAGIC = int.from_bytes(b"HPSC", "little")
_ROOTS = {"send_recv": "tag", "share": "locks"}
_VERSION = 4
_DIMENSIONS = 8
_SIGNATURE = struct.Struct("<I7B5xqq8q")
TAIL = struct.Struct("<qq")
"""The end of a header, after the signature: the message's number and the length of its payload."""
assert _SIGNATURE.size == SIGNATURE_BYTES
assert _SIGNATURE.size + TAIL.size == HEADER_BYTES
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_DTYPE_INDEX = {dtype: index for index, dtype in enumerate(DTYPES)}


@dataclass(frozen=True, slots=True)
class Signature:
    """Description of an operation. It must be equal on every rank."""

    sequence: int
    operation: str
    algorithm: str
    dtype: torch.dtype = torch.uint8
    shape: tuple[int, ...] = ()
    reduction: str = "none"
    root: int = -1
    device: int = 0

    def pack(self) -> bytes:
        """Return the first 96 bytes of the header."""
        shape = self.shape
        if len(shape) > _DIMENSIONS:
            shape = (*shape[: _DIMENSIONS - 1], prod(shape[_DIMENSIONS - 1 :]))
        return _SIGNATURE.pack(
            _MAGIC,
            _VERSION,
            OPERATIONS.index(self.operation),
            REDUCTIONS.index(self.reduction),
            _DTYPE_INDEX[self.dtype],
            ALGORITHMS.index(self.algorithm),
            len(shape),
            self.device,
            self.sequence,
            self.root,
            *shape,
            *(0,) * (_DIMENSIONS - len(shape)),
        )

    @classmethod
    def unpack(cls, header: bytes | memoryview) -> Signature:
        """Read the signature at the start of a header.

        Raises:
            RefusedError: The bytes are not a valid signature.
        """
        if len(header) < SIGNATURE_BYTES:
            raise RefusedError(f"expected a header of {HEADER_BYTES} bytes, got {len(header)}")
        magic, version, operation, reduction, dtype, algorithm, *numbers = _SIGNATURE.unpack_from(header)
        dimensions, device, sequence, root, *shape = numbers
        if magic != _MAGIC or version != _VERSION:
            raise RefusedError(
                f"expected a header of this version of hpsearch_comm ({_VERSION}), got {bytes(header[:5]).hex()}: "
                "either the same version must run on every rank, or the stream is out of step"
            )
        named = (operation, OPERATIONS), (reduction, REDUCTIONS), (dtype, DTYPES), (algorithm, ALGORITHMS)
        is_valid = all(index < len(names) for index, names in named)
        if not is_valid or dimensions > _DIMENSIONS or min(shape) < 0:
            raise RefusedError(f"expected a header with known fields, got {bytes(header[:16]).hex()}")
        return cls(
            sequence,
            OPERATIONS[operation],
            ALGORITHMS[algorithm],
            DTYPES[dtype],
            tuple(shape[:dimensions]),
            REDUCTIONS[reduction],
            root,
            device,
        )

    @property
    def nbytes(self) -> int:
        """Size of the operation's tensor in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """Describe the operation for messages: `allreduce 17 (mean of float32 [3, 4], 48 bytes, ring)`."""
        kind = str(self.dtype).removeprefix("torch.")
        layout = f"{kind} {list(self.shape)}, {self.nbytes:,} bytes"
        parts = [layout if self.reduction == "none" else f"{self.reduction} of {layout}"]
        if self.root >= 0:
            parts.append(f"{_ROOTS.get(self.operation, 'root')} {self.root}")
        if self.device:
            parts.append("on cuda" if self.device == 1 else f"on cuda device {self.device} in order of first use")
        if self.algorithm != "none":
            parts.append(self.algorithm)
        if self.operation in _WITHOUT_TENSOR:
            parts = parts[1:]
        inside = f" ({', '.join(parts)})" if parts else ""
        return f"{self.operation} {self.sequence}{inside}"


def dtype_named(name: object) -> torch.dtype:
    """Return the dtype with this name, such as `float32`, received from another rank.

    Raises:
        RefusedError: The dtype is unknown or not supported.
    """
    dtype = _DTYPE_NAMES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise RefusedError(
            f"expected a tensor of one of the dtypes {', '.join(_DTYPE_NAMES)}, got {name!r}: the same version of "
            "hpsearch_comm must run on every rank"
        )
    return dtype


def unpack_tail(header: bytes | memoryview) -> tuple[int, int]:
    """Read a message's number and the length of its payload from its header."""
    step, nbytes = TAIL.unpack_from(header, SIGNATURE_BYTES)
    return int(step), int(nbytes)
