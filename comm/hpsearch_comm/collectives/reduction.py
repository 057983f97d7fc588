"""Reductions of two values: one object for each operator and dtype, used by all algorithms.

Sums and products of float16, bfloat16 and the float8 formats are computed in float32 and rounded once, at the end.
torch hardly supports unsigned integers of 16 to 64 bits, so they are reinterpreted as signed ones. Sums and products
wrap around and have the same bits. For minima and maxima the top bit is flipped.

If one rank has NaN, the min, max, sum and product are NaN. If a minimum or maximum is zero, it is +0. So the bits of a
minimum don't depend on the order in which the ranks are compared.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.header import DTYPES, REDUCTIONS

Combine = Callable[[torch.Tensor, torch.Tensor], object]
Into = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SHORT = (torch.float16, torch.bfloat16)
_OPERATORS = REDUCTIONS[1:]
_BITWISE: dict[str, Callable[..., torch.Tensor]] = {
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
_OTHER_NAMES = {"avg": "mean", "average": "mean", "prod": "product", "multiply": "product", "add": "sum"}


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """An operator on tensors of one dtype. There is one object for each pair, so `is` compares them.

    `combine`, `into` and `finish` are plain functions in fields: method calls would slow down the fast path.
    """

    name: str
    """sum, mean, min, max, product, band, bor or bxor."""
    dtype: torch.dtype
    """Dtype of the user's tensors."""
    computed: torch.dtype
    """Dtype of `view(tensor)`: `dtype` itself, or the signed type of the same size."""
    accumulate: torch.dtype
    """Dtype of partial results: float32 if `computed` is too short for sums, else `computed`."""
    combine: Combine
    """`combine(mine, theirs)`: mine = mine op theirs, in place.

    `mine` has the dtype `accumulate`; `theirs` has that or `computed`.
    """
    into: Into
    """`into(first, second, out)`: out = first op second. `out` has the dtype `accumulate`; it may be one of the two."""
    finish: Callable[[torch.Tensor, int], object]
    """`finish(part, count)`: turn the reduced values of `count` ranks into the result, in place; a mean divides."""

    @property
    def widens(self) -> bool:
        """Whether partial results are wider than the tensor, so that they need memory of their own."""
        return self.accumulate is not self.computed

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor viewed as `computed`."""
        return tensor if tensor.dtype is self.computed else tensor.view(self.computed)

    def partial(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's values in the dtype `accumulate`: its own memory, or a copy if that dtype is wider."""
        return self.view(tensor).to(self.accumulate)


def reduction_for(op: str, dtype: torch.dtype) -> Reduction:
    """Return the reduction with this name for tensors of this dtype; always the same object.

    Raises:
        UsageError: The operator is unknown, or not defined for this dtype.
    """
    # A subclass of str, such as an enum member, may have its own comparison and hash.
    name = op if type(op) is str else str.__str__(op) if isinstance(op, str) else None
    if name is None:
        raise _unknown(op)
    cached = _cache.get((name, dtype))
    return cached if cached is not None else _cache.setdefault((name, dtype), _make(name, dtype))


_cache: dict[tuple[str, torch.dtype], Reduction] = {}


def _make(op: str, dtype: torch.dtype) -> Reduction:
    _check(op, dtype)
    computed = _SIGNED.get(dtype, dtype)
    exact = op in ("min", "max")
    accumulate = torch.float32 if dtype in _FLOAT8 or (dtype in _SHORT and not exact) else computed
    combine, into = _functions(op, dtype)
    if accumulate is not computed:
        combine, into = _widening(combine, into, accumulate, promoted=dtype in _SHORT)
    finish = _divide if op == "mean" else _canonicalize if exact and dtype.is_floating_point else _keep
    return Reduction(op, dtype, computed, accumulate, combine, into, finish)


def _check(op: str, dtype: torch.dtype) -> None:
    if op not in _OPERATORS:
        raise _unknown(op)
    kind = str(dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        names = ", ".join(str(supported).removeprefix("torch.") for supported in DTYPES)
        raise UsageError(f"a tensor to reduce must have one of the dtypes {names}; got {kind}: convert it first")
    if dtype is torch.bool and op in ("sum", "mean"):
        raise UsageError(
            f'op="{op}" of bool tensors has no meaning that fits in a bool: use op="max" for any, op="min" for all, '
            "or count them with tensor.to(torch.int64)"
        )
    if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        raise UsageError(
            f'op="mean" needs a floating dtype, got {kind}: use op="sum" and divide, or convert it with '
            "tensor.to(torch.float64)"
        )
    if op in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise UsageError(f'op="{op}" combines the bits of integers or bools, got {kind}: convert it first')
    if dtype.is_complex and op in ("min", "max"):
        raise UsageError(f'op="{op}" needs numbers that have an order, got {kind}: reduce tensor.abs() or parts of it')


def _unknown(op: object) -> UsageError:
    close = difflib.get_close_matches(str(op).rpartition(".")[2].lower(), [*_OPERATORS, *_OTHER_NAMES], 1, 0.5)
    meant = f'; did you mean op="{_OTHER_NAMES.get(close[0], close[0])}"?' if close else ""
    return UsageError(f"op must be one of {', '.join(_OPERATORS)}, got {op!r}{meant}")


def _functions(op: str, dtype: torch.dtype) -> tuple[Combine, Into]:
    if op in ("sum", "mean"):
        return torch.Tensor.add_, lambda first, second, out: torch.add(first, second, out=out)
    if op == "product":
        if dtype.is_complex:
            return lambda mine, theirs: _multiply_complex(mine, theirs, mine), _multiply_complex
        return torch.Tensor.mul_, lambda first, second, out: torch.mul(first, second, out=out)
    bitwise = _BITWISE.get(op)
    if bitwise is not None:
        return (
            lambda mine, theirs: bitwise(mine, theirs, out=mine),
            lambda first, second, out: bitwise(first, second, out=out),
        )
    better = torch.minimum if op == "min" else torch.maximum
    if dtype not in _SIGNED:
        return (
            lambda mine, theirs: better(mine, theirs, out=mine),
            lambda first, second, out: better(first, second, out=out),
        )
    top_bit = torch.iinfo(_SIGNED[dtype]).min

    def into(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        """Compare as unsigned: with the top bit flipped, signed numbers have the order of unsigned ones."""
        turned = torch.bitwise_xor(first, top_bit)
        better(turned, torch.bitwise_xor(second, top_bit), out=turned)
        torch.bitwise_xor(turned, top_bit, out=out)

    return lambda mine, theirs: into(mine, theirs, mine), into


def _widening(combine: Combine, into: Into, accumulate: torch.dtype, *, promoted: bool) -> tuple[Combine, Into]:
    """Return the functions for operands of a smaller dtype than the result. If `promoted`, torch converts them."""
    if promoted:
        return combine, lambda first, second, out: into(first.to(accumulate), second, out)
    return (
        lambda mine, theirs: combine(mine, theirs.to(accumulate)),
        lambda first, second, out: into(first.to(accumulate), second.to(accumulate), out),
    )


def _multiply_complex(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
    """Multiply complex numbers with a rounding after each operation.

    torch's own product rounds differently in full vector registers and in the last few elements, so its bits would
    depend on where a message was cut into chunks.
    """
    a, b = torch.view_as_real(first).unbind(-1)
    c, d = torch.view_as_real(second).unbind(-1)
    real, imaginary = a * c - b * d, a * d + b * c
    torch.view_as_real(out).copy_(torch.stack((real, imaginary), -1))


def _divide(values: torch.Tensor, count: int) -> None:
    if values.dtype.is_complex:
        values = torch.view_as_real(values)
    # 0-D tensors are cached: wrapping a Python number in a tensor takes longer than dividing a small part by it.
    scale = _scales.get(count)
    if count & (count - 1) == 0:
        values.mul_(scale if scale is not None else _scales.setdefault(count, _scalar(1.0 / count)))  # exact
    else:
        values.div_(scale if scale is not None else _scales.setdefault(count, _scalar(float(count))))


_scales: dict[int, torch.Tensor] = {}


def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def _canonicalize(values: torch.Tensor, _count: int) -> None:
    """Make the bits of all NaNs equal, and all zeros positive.

    torch compares differently in full vector registers and in the last few elements. Without this, the bits would
    depend on where a message was cut into chunks.
    """
    values.add_(_ZERO)
    values.masked_fill_(values.isnan(), math.nan)


_ZERO = torch.tensor(0.0, dtype=torch.float32, device="cpu")


def _keep(values: torch.Tensor, count: int) -> None:
    """Do nothing: sums, products, and minima and maxima of integers need no finishing."""
