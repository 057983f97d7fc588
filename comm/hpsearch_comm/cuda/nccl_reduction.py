"""What NCCL is asked to do for an operator and a dtype, where it lacks the dtype or means something else by it.

NCCL has no bool, no complex numbers and no 16-bit integers. Its minima and maxima of floats drop NaN, where ours keep
it. Its means multiply each value by 1/size, rounded to the dtype, before they add; in 16 bits that is off by as much as
0.2 % where size isn't a power of two. So a tensor goes through one of these, each with the same result as on the CPU
but for the order of additions:

    as it is          float32, float64, (u)int8, (u)int32, (u)int64, and sums of float16 and bfloat16
    other view        bool as uint8; complex as pairs of floats, for sums and means
    widened           int16, uint16 in int32; float8 in float32; float16, bfloat16 in float32 for products, and for
                      means where size isn't a power of two
    as ordered keys   minima and maxima of floats: as integers that have the same order, with NaN beyond the end

Sums of float16 and bfloat16 are taken in the dtype itself at each hop between GPUs, unlike on the CPU, where they are
taken in float32: for two ranks the result is the same, for more it is rounded up to size - 1 times instead of once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from hpsearch_comm.cuda.nccl_library import DATATYPES, OPERATORS

__all__ = ["NcclReduction", "lower", "supports"]

Convert = Callable[[torch.Tensor], torch.Tensor]

_BITWISE = ("band", "bor", "bxor")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_HALVES = (torch.float16, torch.bfloat16)
_VIEWS = {torch.bool: torch.uint8, torch.complex64: torch.float32, torch.complex128: torch.float64}
_KEYS = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True, slots=True, eq=False)
class NcclReduction:
    """How a reduction of tensors of one dtype is put to NCCL."""

    operator: int
    """`ncclRedOp_t`."""
    datatype: int
    """`ncclDataType_t` of what `prepare` gives."""
    shares: bool
    """Whether `prepare` gives the tensor's own memory, so that NCCL may write the result straight into it."""
    prepare: Convert
    """Gives what NCCL is to reduce, 1-D and contiguous, for a 1-D contiguous tensor."""
    restore: Convert
    """Gives the result in the tensor's dtype, for what NCCL has reduced."""


def supports(op: str, dtype: torch.dtype) -> bool:
    """Say whether NCCL can do a reduction that has a meaning; what it can't do goes through host memory."""
    return op not in _BITWISE and not (dtype.is_complex and op == "product")


@lru_cache(maxsize=256)
def lower(op: str, dtype: torch.dtype, size: int) -> NcclReduction:
    """Give the way to reduce tensors of this dtype over `size` ranks, which NCCL `supports`."""
    assert supports(op, dtype), "NCCL lacks it, or would multiply real and imaginary parts by themselves"
    if op in ("min", "max") and dtype.is_floating_point:
        return _ordered(op, dtype)
    operator = OPERATORS[op]
    uneven = size & (size - 1) != 0
    if dtype in _FLOAT8 or (dtype in _HALVES and (op == "product" or (op == "mean" and uneven))):
        return NcclReduction(operator, DATATYPES[torch.float32], False, _to(torch.float32), _to(dtype))
    if dtype is torch.int16:
        return NcclReduction(operator, DATATYPES[torch.int32], False, _to(torch.int32), _to(torch.int16))
    if dtype is torch.uint16:
        return NcclReduction(operator, DATATYPES[torch.int32], False, _from_uint16, _to_uint16)
    if dtype in _VIEWS:
        seen = _VIEWS[dtype]
        return NcclReduction(operator, DATATYPES[seen], True, _view(seen), _view(dtype))
    return NcclReduction(operator, DATATYPES[dtype], True, _same, _same)


def _ordered(op: str, dtype: torch.dtype) -> NcclReduction:
    """Compare floats as integers.

    Read as an integer, a float that isn't negative keeps its order, and a negative one has it reversed; with all bits
    but the sign turned over, the negative ones are in order too, below the others. NaN becomes the integer that wins.
    """
    wide = dtype if dtype is torch.float64 else torch.float32
    integer = _KEYS[wide]
    limits = torch.iinfo(integer)
    winner = limits.max if op == "max" else limits.min

    def turn(bits: torch.Tensor) -> torch.Tensor:
        return bits ^ ((bits >> (limits.bits - 1)) & limits.max)

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        values = tensor.to(wide)
        return turn(values.view(integer)).masked_fill_(values.isnan(), winner)

    def restore(keys: torch.Tensor) -> torch.Tensor:
        values = turn(keys).view(wide)
        if dtype not in _FLOAT8:  # which torch can't compute with
            values = values.to(dtype)
        # One NaN and one zero, as on the CPU.
        return values.nan_to_num_(math.nan, math.inf, -math.inf).add_(0.0).to(dtype)

    return NcclReduction(OPERATORS[op], DATATYPES[integer], False, prepare, restore)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _to(dtype: torch.dtype) -> Convert:
    return lambda tensor: tensor.to(dtype)


def _view(dtype: torch.dtype) -> Convert:
    return lambda tensor: tensor.view(dtype)


def _from_uint16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)


def _to_uint16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int16).view(torch.uint16)
