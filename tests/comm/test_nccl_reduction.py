from __future__ import annotations

import pytest
import torch

from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.cuda.nccl_library import DATATYPES, OPERATORS
from hpsearch_comm.cuda.nccl_reduction import lower, supports
from hpsearch_comm.errors import UsageError
from hpsearch_comm.header import DTYPES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.uint64])
def test_what_nccl_has_goes_as_it_is(dtype):
    reduction = lower("sum", dtype, 3)
    tensor = torch.zeros(3, dtype=dtype)
    assert (reduction.operator, reduction.datatype, reduction.shares) == (0, DATATYPES[dtype], True)
    assert reduction.prepare(tensor) is tensor


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_widened_where_nccl_would_be_off(dtype):
    narrow, wide = DATATYPES[dtype], DATATYPES[torch.float32]
    assert [lower("sum", dtype, size).datatype for size in (2, 3)] == [narrow, narrow]
    # 1/4 is exact in 16 bits, 1/3 is not.
    assert [lower("mean", dtype, size).datatype for size in (1, 2, 3, 4, 6)] == [narrow, narrow, wide, narrow, wide]
    assert lower("product", dtype, 2).datatype == wide


@pytest.mark.parametrize(
    ("dtype", "seen"), [(torch.bool, torch.uint8), (torch.complex64, torch.float32), (torch.complex128, torch.float64)]
)
def test_views_share_the_memory(dtype, seen):
    reduction = lower("max" if dtype is torch.bool else "sum", dtype, 2)
    tensor = torch.ones(5, dtype=dtype)
    prepared = reduction.prepare(tensor)
    assert (prepared.dtype, prepared.data_ptr(), prepared.nbytes) == (seen, tensor.data_ptr(), tensor.nbytes)
    assert DATATYPES[seen] == reduction.datatype
    assert torch.equal(reduction.restore(prepared), tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_one_rank_gets_back_what_it_gave(op, dtype):
    try:
        reduction_for(op, dtype)
    except UsageError:
        return  # means nothing, on the CPU either
    if not supports(op, dtype):
        assert dtype.is_complex or op in ("band", "bor", "bxor")
        with pytest.raises(AssertionError, match="by themselves"):
            lower(op, dtype, 1)
        return
    reduction = lower(op, dtype, 1)
    edges = torch.tensor([0, 1, 2, 255, 254, 253, 3]).to(dtype)
    prepared = reduction.prepare(edges)
    assert DATATYPES[prepared.dtype] == reduction.datatype
    assert prepared.is_contiguous()
    assert (prepared.data_ptr() == edges.data_ptr()) == reduction.shares
    assert torch.equal(reduction.restore(prepared).view(torch.uint8), edges.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("op", ["min", "max"])
def test_keys_of_floats_are_in_their_order(op, dtype):
    values = torch.tensor([-torch.inf, -3.5, -1e-30, -0.0, 0.0, 1e-30, 2.0, torch.inf]).to(dtype)
    keys = lower(op, dtype, 2).prepare(values)
    assert not keys.dtype.is_floating_point
    assert keys.tolist() == sorted(keys.tolist())
    nan = lower(op, dtype, 2).prepare(torch.tensor([torch.nan, -torch.nan]).to(dtype))
    limits = torch.iinfo(keys.dtype)
    assert nan.tolist() == [limits.max if op == "max" else limits.min] * 2


def test_uint16_is_compared_without_a_sign():
    reduction = lower("max", torch.uint16, 2)
    prepared = reduction.prepare(torch.tensor([1, 40000, 65535], dtype=torch.uint16))
    assert prepared.tolist() == [1, 40000, 65535]
    assert reduction.restore(prepared).tolist() == [1, 40000, 65535]
