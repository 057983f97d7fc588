from __future__ import annotations

import math
from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.errors import UsageError
from hpsearch_comm.header import DTYPES, REDUCTIONS

OPERATORS = REDUCTIONS[1:6]
INTEGERS = [dtype for dtype in DTYPES if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)]
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
WIDE = [torch.float32, torch.float64]
NARROW = [dtype for dtype in FLOATS if dtype not in WIDE]
COMPLEX = [torch.complex64, torch.complex128]


def reduce_tensors(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Reduce as the algorithms do, and look that `into` and `combine` are one operator."""
    reduction = reduction_for(op, tensors[0].dtype)
    partial = reduction.partial(tensors[0].clone())
    for tensor in tensors[1:]:
        theirs = reduction.view(tensor)
        before = partial.clone()
        reduction.combine(partial, theirs)
        for out in (torch.empty_like(before), before.clone()):
            reduction.into(before, theirs, out)
            assert bits(out) == bits(partial)
        reduction.into(before, theirs, before)
        assert bits(before) == bits(partial)
    reduction.finish(partial, len(tensors))
    result = torch.empty_like(tensors[0])
    reduction.view(result).copy_(partial)
    return result


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def of_bits(pattern: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Make a tensor of integers of any dtype, from values that may wrap around."""
    width = 8 * dtype.itemsize
    signed = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    half = 1 << (width - 1)
    return torch.tensor([(value + half) % (2 * half) - half for value in pattern], dtype=signed).view(dtype)


@composite
def integer_tensors(draw: DrawFn) -> list[torch.Tensor]:
    dtype = draw(st.sampled_from(INTEGERS))
    limits = torch.iinfo(dtype)
    ranks, length = draw(st.integers(1, 5)), draw(st.integers(0, 40))
    edges = st.sampled_from([limits.min, limits.max, 0, 1, limits.max // 2, limits.max // 2 + 1])
    values = st.lists(edges | st.integers(limits.min, limits.max), min_size=length, max_size=length)
    return [of_bits(draw(values), dtype) for _ in range(ranks)]


@given(integer_tensors())
@settings(max_examples=60, deadline=None)
def test_integers_are_reduced_as_python_does_and_wrap_around(tensors):
    columns = list(zip(*(tensor.tolist() for tensor in tensors), strict=True))
    dtype = tensors[0].dtype
    plain = {
        "sum": [sum(column) for column in columns],
        "product": [math.prod(column) for column in columns],
        "min": [min(column) for column in columns],
        "max": [max(column) for column in columns],
        "band": [reduce(int.__and__, column) for column in columns],
        "bor": [reduce(int.__or__, column) for column in columns],
        "bxor": [reduce(int.__xor__, column) for column in columns],
    }
    for op, expected in plain.items():
        assert reduce_tensors(op, tensors).tolist() == of_bits(expected, dtype).tolist(), op


@composite
def floating_tensors(draw: DrawFn, dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    dtype = draw(st.sampled_from(dtypes))
    ranks, length = draw(st.integers(1, 5)), draw(st.integers(0, 40))
    values = st.lists(st.floats(width=32), min_size=length, max_size=length)
    return [torch.tensor(draw(values), dtype=torch.float32).to(dtype) for _ in range(ranks)]


def plain(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """What torch makes of them one after another."""
    functions: dict[str, Any] = {
        "sum": torch.add,
        "mean": torch.add,
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
    }
    result = tensors[0]
    for tensor in tensors[1:]:
        result = functions[op](result, tensor)
    return result / len(tensors) if op == "mean" else result


@given(floating_tensors(WIDE))
@settings(max_examples=40, deadline=None)
def test_floats_are_reduced_as_torch_does(tensors):
    for op in OPERATORS:
        torch.testing.assert_close(reduce_tensors(op, tensors), plain(op, tensors), rtol=0, atol=0, equal_nan=True)


@given(floating_tensors(NARROW))
@settings(max_examples=40, deadline=None)
def test_narrow_floats_are_reduced_in_float32_and_rounded_once(tensors):
    dtype = tensors[0].dtype
    for op in OPERATORS:
        expected = plain(op, [tensor.float() for tensor in tensors]).to(dtype)
        got = reduce_tensors(op, tensors)
        assert got.dtype is dtype
        torch.testing.assert_close(got.float(), expected.float(), rtol=0, atol=0, equal_nan=True)


def test_a_mean_of_float16_does_not_overflow_on_the_way():
    tensors = [torch.full((3,), 60000.0, dtype=torch.float16) for _ in range(4)]
    assert reduce_tensors("mean", tensors).tolist() == [60000.0] * 3


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("op", ["sum", "mean", "product"])
def test_complex_numbers_are_reduced_as_torch_does(op, dtype):
    tensors = list(torch.randn(3, 33, dtype=dtype))
    torch.testing.assert_close(reduce_tensors(op, tensors), plain(op, tensors))


def test_bits_of_a_complex_product_do_not_depend_on_where_it_is_cut():
    mine, theirs = torch.randn(2, 101, dtype=torch.complex64)
    reduction = reduction_for("product", torch.complex64)
    whole, single = mine.clone(), mine.clone()
    reduction.combine(whole, theirs)
    for index in range(len(mine)):
        reduction.combine(single[index : index + 1], theirs[index : index + 1])
    assert bits(whole) == bits(single)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *WIDE])
@pytest.mark.parametrize("op", ["min", "max"])
def test_bits_of_a_minimum_depend_on_neither_place_nor_order(op, dtype):
    special = torch.tensor([math.nan, -math.nan, 0.0, -0.0, 1.0, -1.0, math.inf, -math.inf], dtype=dtype)
    mine, theirs = torch.cartesian_prod(special, special).T.contiguous()
    whole = reduce_tensors(op, [mine, theirs])
    assert bits(whole) == bits(reduce_tensors(op, [theirs, mine]))
    one_by_one = [reduce_tensors(op, [mine[i : i + 1], theirs[i : i + 1]]) for i in range(len(mine))]
    assert bits(whole) == b"".join(bits(one) for one in one_by_one)
    assert bits(whole[whole == 0]) == bytes(int((whole == 0).sum()) * dtype.itemsize)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("rank", [0, 1])
def test_nan_of_any_rank_wins(op, dtype, rank):
    if dtype.is_complex and op in ("min", "max"):
        return
    tensors = [torch.ones(37, dtype=torch.float32).to(dtype) for _ in range(2)]
    tensors[rank] = torch.full((37,), math.nan).to(dtype)
    assert reduce_tensors(op, tensors).to(torch.complex64).isnan().all()


@pytest.mark.parametrize(("op", "expected"), [("min", [False, False, False, True]), ("max", [False, True, True, True])])
def test_min_of_bools_is_all_and_max_is_any(op, expected):
    tensors = [torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])]
    assert reduce_tensors(op, tensors).tolist() == expected
    assert reduce_tensors("product", tensors).tolist() == reduce_tensors("min", tensors).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_a_mean_divides_as_torch_does(count):
    part = torch.randn(1001)
    expected = part / count
    reduction_for("mean", torch.float32).finish(part, count)
    assert bits(part) == bits(expected)


def test_the_same_object_serves_the_same_operator_and_dtype():
    assert reduction_for("sum", torch.float32) is reduction_for("sum", torch.float32)
    assert reduction_for("sum", torch.float32) is not reduction_for("sum", torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_shares_the_tensors_memory(dtype):
    reduction = reduction_for("max", dtype if not dtype.is_complex else torch.float32)
    tensor = torch.zeros(4, dtype=reduction.dtype)
    view = reduction.view(tensor)
    assert view.data_ptr() == tensor.data_ptr()
    assert view.dtype is reduction.computed
    assert reduction.partial(tensor).dtype is reduction.accumulate
    assert (reduction.partial(tensor).data_ptr() == tensor.data_ptr()) == (not reduction.widens)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_minima_of_16_bit_floats_need_no_wider_memory(dtype):
    assert reduction_for("sum", dtype).accumulate is torch.float32
    assert reduction_for("min", dtype).accumulate is dtype


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        (
            "avg",
            torch.float32,
            r'op must be one of sum, mean, min, max, product, band, bor, bxor, got \'avg\'; did you mean op="mean"\?',
        ),
        ("prod", torch.float32, r'did you mean op="product"\?'),
        ("maximum", torch.float32, r'did you mean op="max"\?'),
        ("xyzzy", torch.float32, r"op must be one of .*got 'xyzzy'$"),
        (None, torch.float32, "got None"),
        (["sum"], torch.float32, "op must be one of"),
        ("none", torch.float32, "op must be one of"),
        ("mean", torch.int64, 'op="mean" needs a floating dtype, got int64: use op="sum"'),
        ("mean", torch.uint8, "got uint8"),
        ("sum", torch.bool, 'use op="max" for any'),
        ("mean", torch.bool, 'use op="max" for any'),
        ("min", torch.complex64, "an order, got complex64"),
        ("max", torch.complex128, "an order, got complex128"),
        ("band", torch.float32, 'op="band" combines the bits of integers or bools, got float32'),
        ("bxor", torch.complex64, "got complex64"),
        ("sum", torch.float8_e4m3fnuz, "dtypes uint8, .*; got float8_e4m3fnuz"),
    ],
)
def test_what_cannot_be_reduced_is_said_with_what_to_do(op, dtype, message):
    with pytest.raises(UsageError, match=message):
        reduction_for(op, dtype)
