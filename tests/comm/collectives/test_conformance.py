"""What every transport, algorithm and number of ranks must give: what a plain loop over the ranks' tensors gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch_comm as comm
from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.header import DTYPES, REDUCTIONS
from tests.comm.collectives.pairwise import Row, every_combination, pairwise
from tests.comm.thread_ranks import run_ranks

WAYS: dict[str, dict[str, Any]] = {
    "shared-direct": {},
    "shared-ring": {"algorithm": "ring"},
    "shared-butterfly": {"algorithm": "butterfly"},
    "shared-naive": {"algorithm": "naive"},
    "tcp": {"transport": "tcp"},
    "tcp-ring": {"transport": "tcp", "algorithm": "ring", "streams": 1},
    "tcp-butterfly": {"transport": "tcp", "algorithm": "butterfly"},
    "tcp-naive": {"transport": "tcp", "algorithm": "naive"},
    "hosts": {"hosts": "aabab"},
    "hosts-hierarchical": {"algorithm": "hierarchical", "hosts": "aabab"},
    "hosts-ring": {"algorithm": "ring", "hosts": "abbba"},
    "hosts-butterfly": {"algorithm": "butterfly", "hosts": "abbba"},
}
SIZES = (1, 2, 3, 4, 5)
LENGTHS = (0, 1, 2, 3, 7, 64, 67, 1001)
LONG = 300_007  # more than one chunk of everything that is cut into chunks
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def run(way: str, size: int, work: Callable[[comm.Group], Any], **options: Any) -> list[Any]:
    options = WAYS[way] | options
    hosts = options.pop("hosts", None)
    if options.get("algorithm") == "hierarchical" and size == 1:
        options["algorithm"] = "auto"
    return run_ranks(size, work, hosts=[hosts[rank % 5] for rank in range(size)] if hosts else None, **options)


def values(rank: int, length: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """The tensor of a rank: anyone can say what it is."""
    generator = torch.Generator().manual_seed(1000 * seed + 10 * length + rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, (length,), generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(length, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return (torch.randn(length, dtype=torch.float64, generator=generator) * 3).to(dtype)
    limits = torch.iinfo(dtype)
    low, high = (limits.min, limits.max) if dtype.itemsize < 4 else (-(2**30), 2**30)
    whole = torch.randint(max(low, 0) if limits.min == 0 else low, high, (length,), generator=generator)
    return whole.to(dtype)


def oracle(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """Reduce in the plainest way: floats in float64, integers as Python's own numbers, which wrap around at the end."""
    dtype = tensors[0].dtype
    if dtype is torch.bool:
        logical = {"max": torch.logical_or, "bor": torch.logical_or, "bxor": torch.logical_xor}
        return reduce(logical.get(op, torch.logical_and), tensors)
    if dtype.is_floating_point or dtype.is_complex:
        wide = [tensor.to(torch.complex128 if dtype.is_complex else torch.float64) for tensor in tensors]
        functions = {"product": torch.mul, "min": torch.minimum, "max": torch.maximum}
        result = reduce(functions.get(op, torch.add), wide)
        return (result / len(tensors) if op == "mean" else result).to(dtype)
    whole: dict[str, Callable[[int, int], int]] = {
        "sum": int.__add__,
        "product": int.__mul__,
        "min": min,
        "max": max,
        "band": int.__and__,
        "bor": int.__or__,
        "bxor": int.__xor__,
    }
    columns = zip(*[tensor.tolist() for tensor in tensors], strict=True)
    bits = 8 * dtype.itemsize
    wrapped = [reduce(whole[op], column) % 2**bits for column in columns]
    if torch.iinfo(dtype).min < 0:
        wrapped = [number - 2**bits if number >= 2 ** (bits - 1) else number for number in wrapped]
    return torch.tensor(wrapped, dtype=dtype)


def row_share(whole: torch.Tensor, size: int, rank: int) -> torch.Tensor:
    """Return the rows of one rank, split as by torch.tensor_split, for any dtype."""
    return torch.tensor_split(whole.view(torch.uint8).view(len(whole), -1), size)[rank].reshape(-1).view(whole.dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    assert actual.dtype is expected.dtype, what
    assert actual.shape == expected.shape, what
    if expected.dtype in FLOAT8:
        # Twice rounded, from float64 and from float32, may differ in the last place.
        torch.testing.assert_close(actual.float(), expected.float(), rtol=0.26, atol=1e-2, equal_nan=True)
    elif expected.dtype.is_floating_point or expected.dtype.is_complex:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    else:
        assert actual.tolist() == expected.tolist(), what


def assert_same_bits(results: list[list[torch.Tensor]]) -> None:
    for tensors in zip(*results, strict=True):
        for other in tensors[1:]:
            assert torch.equal(tensors[0].contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def is_possible(row: Row) -> bool:
    """Say whether values of some factors may come together."""
    op, dtype, size = row.get("op", "sum"), row.get("dtype", torch.float32), row.get("size", 1)
    if dtype in FLOAT8 and op == "product" and size > 2:
        return False  # rounded in another order than the oracle's
    try:
        reduction_for(op, dtype)
    except comm.UsageError:
        return False
    return True


FACTORS = {"way": tuple(WAYS), "size": SIZES, "op": REDUCTIONS[1:], "dtype": DTYPES, "length": (*LENGTHS, LONG)}
CHOSEN = pairwise(FACTORS, is_possible)
ALWAYS_LONG = {("sum", torch.float32), ("mean", torch.bfloat16), ("max", torch.uint8)}


def every_case(way: str, size: int) -> list[Row]:
    """All combinations with this way and size; of long tensors, for which the oracle is slow, some."""
    rows = every_combination(FACTORS | {"way": (way,), "size": (size,)}, is_possible)
    return [row for row in rows if row["length"] != LONG or (row["op"], row["dtype"]) in ALWAYS_LONG or row in CHOSEN]


def chosen_cases(way: str, size: int) -> list[Row]:
    return [row for row in CHOSEN if (row["way"], row["size"]) == (way, size)]


@pytest.mark.some_cases(8)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cases", [chosen_cases, pytest.param(every_case, marks=pytest.mark.exhaustive)])
def test_allreduce_gives_what_the_oracle_gives_with_the_same_bits_on_every_rank(way, size, cases):
    rows = cases(way, size)

    def work(group: comm.Group) -> list[torch.Tensor]:
        return [group.allreduce(values(group.rank, row["length"], row["dtype"]), row["op"]) for row in rows]

    results = run(way, size, work)
    for index, row in enumerate(rows):
        tensors = [values(rank, row["length"], row["dtype"]) for rank in range(size)]
        assert_close(results[0][index], oracle(tensors, row["op"]), row)
    assert_same_bits(results)


def test_every_way_is_tried_with_every_size():
    assert all(chosen_cases(way, size) for way in WAYS for size in SIZES)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("way", ["shared-direct", "tcp-ring", "hosts-hierarchical"])
def test_the_same_inputs_give_the_same_bits_in_every_run(way):
    def work(group: comm.Group) -> list[torch.Tensor]:
        return [group.allreduce(values(group.rank, length, dtype)) for length in (1001, LONG) for dtype in FLOATS] + [
            group.reduce_scatter(values(group.rank, LONG, torch.float32))[:1]
        ]

    first, second = run(way, 4, work), run(way, 4, work)
    assert_same_bits([first[0][:-1], second[0][:-1]])
    for one, other in zip(first, second, strict=True):
        assert_same_bits([one, other])


NARROW = (torch.float16, torch.bfloat16, *FLOAT8)
EXTREMES = (1.0, -1.0, 0.999, -0.999, 0.5, -0.5, 0.25, 1e-3, 1e-6, -1e-6, 0.0)
"""Parts of the greatest number of a dtype."""


def greatest_of(dtype: torch.dtype) -> float:
    """Return a dtype's greatest number; if float32 can't hold larger ones, a number of which a few can be added."""
    return min(torch.finfo(dtype).max, torch.finfo(torch.float32).max / 16)


@st.composite
def narrow_cases(draw: st.DrawFn, size: int) -> tuple[torch.dtype, str, list[torch.Tensor]]:
    """Values of each rank, many of them so large that no two of them can be added in their own dtype."""
    dtype, op = draw(st.sampled_from(NARROW)), draw(st.sampled_from(["sum", "mean"]))
    part = st.one_of(st.sampled_from(EXTREMES), st.floats(-1, 1, width=32))
    rows = draw(st.lists(st.lists(part, min_size=size, max_size=size), min_size=1, max_size=6))
    greatest = greatest_of(dtype)
    columns = torch.tensor(rows, dtype=torch.float64).mul(greatest).to(dtype).unbind(1)
    # Short and long enough for each way in which a tensor is cut.
    length = draw(st.sampled_from([len(rows), 1001, 70_001]))
    return dtype, op, [column.repeat(-(-length // len(rows)))[:length] for column in columns]


def assert_summed_in_float32(found: torch.Tensor, tensors: list[torch.Tensor], op: str) -> None:
    """Compare with sums in float64, wherever the result is a number of the dtype: rounded once, from float32."""
    wide = torch.stack([tensor.double() for tensor in tensors])
    count = len(tensors) if op == "mean" else 1
    exact, error = wide.sum(0) / count, wide.abs().sum(0) / count * len(tensors) * 2**-23
    limits = torch.finfo(found.dtype)
    error += exact.abs() * limits.eps + limits.smallest_normal * limits.eps
    sure = exact.abs() + error < limits.max
    assert (found.double() - exact).abs()[sure].le(error[sure]).all(), (op, found.dtype, found[:6], exact[:6])


@pytest.mark.some_cases(4)
@pytest.mark.parametrize(
    ("way", "size"),
    [  # each way with one size, in turn, and all sizes with the first of them
        pytest.param(way, size, marks=[] if place % 3 == turn or not place else pytest.mark.exhaustive)
        for place, way in enumerate(WAYS)
        for turn, size in enumerate((2, 3, 5))
    ],
)
def test_narrow_floats_are_summed_in_float32_on_every_way_however_large_they_are(way, size):
    @settings(max_examples=2, deadline=None)
    @given(st.lists(narrow_cases(size), min_size=1, max_size=4))
    def check(cases: list[tuple[torch.dtype, str, list[torch.Tensor]]]) -> None:
        def work(group: comm.Group) -> list[list[torch.Tensor]]:
            return [
                [group.allreduce(tensors[group.rank].clone(), op), group.reduce_scatter(tensors[group.rank], op)]
                for _, op, tensors in cases
            ]

        results = run(way, size, work)
        for index, (_, op, tensors) in enumerate(cases):
            for rank, result in enumerate(results):
                whole, share = result[index]
                assert_summed_in_float32(whole, tensors, op)
                assert_summed_in_float32(share, [row_share(tensor, size, rank) for tensor in tensors], op)

    check()


@pytest.mark.exhaustive
def test_long_narrow_floats_are_summed_in_float32_in_a_chain_and_in_place():
    greatest = greatest_of(torch.float16)
    tensors = [torch.full((2_200_001,), greatest, dtype=torch.float16)] * 2

    def work(group: comm.Group) -> None:
        assert_summed_in_float32(group.allreduce(tensors[group.rank].clone()), tensors, "mean")
        shared = group.empty(2_200_001, dtype=torch.float16)
        shared.copy_(tensors[group.rank])
        assert_summed_in_float32(group.allreduce(shared), tensors, "mean")

    run_ranks(2, work)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["shared-direct", "shared-butterfly", "tcp-ring", "hosts-hierarchical"])
def test_eight_ranks(way):
    def work(group: comm.Group) -> list[torch.Tensor]:
        return [group.allreduce(values(group.rank, length, torch.float32), "sum") for length in (0, 5, 1001, LONG)]

    results = run(way, 8, work)
    for index, length in enumerate((0, 5, 1001, LONG)):
        assert_close(results[0][index], oracle([values(r, length, torch.float32) for r in range(8)], "sum"), length)
    assert_same_bits(results)


@pytest.mark.some_cases(3)
@pytest.mark.parametrize(
    ("way", "size"),
    [  # all sizes with the first way, and of the others three
        pytest.param(way, size, marks=[] if way == "shared-direct" or size in (1, 3, 4) else pytest.mark.exhaustive)
        for way in ("shared-direct", "shared-ring", "tcp", "hosts")
        for size in SIZES
    ],
)
def test_the_other_collectives(way, size):
    def work(group: comm.Group) -> None:
        rank = group.rank
        for dtype in DTYPES:
            for root in {0, size - 1}:
                mine = values(rank, 67, dtype)
                assert group.broadcast(mine, root) is mine
                assert torch.equal(mine.view(torch.uint8), values(root, 67, dtype).view(torch.uint8))
            everything = group.allgather(values(rank, 3 * rank, dtype))
            expected = torch.cat([values(r, 3 * r, dtype).view(torch.uint8) for r in range(size)])
            assert torch.equal(everything.view(torch.uint8), expected)
        for length in (0, 1, LONG):
            group.broadcast(mine := values(rank, length, torch.float32))
            assert torch.equal(mine, values(0, length, torch.float32))
            gathered = group.allgather(values(rank, length, torch.float32))
            assert torch.equal(gathered, torch.cat([values(r, length, torch.float32) for r in range(size)]))
        assert group.allgather(torch.tensor(rank)).tolist() == list(range(size))
        table = torch.stack([values(rank, 60, torch.float64, seed) for seed in range(7)])
        whole = oracle([torch.cat([values(r, 60, torch.float64, s) for s in range(7)]) for r in range(size)], "sum")
        before = table.clone()
        rows = group.reduce_scatter(table, "sum")
        torch.testing.assert_close(rows, torch.tensor_split(whole.view(7, 60), size)[rank])
        assert torch.equal(table, before)
        for dtype, op in ((torch.float16, "sum"), (torch.uint16, "max"), (torch.int8, "sum")):
            part = group.reduce_scatter(values(rank, 41, dtype), op)
            assert_close(part, row_share(oracle([values(r, 41, dtype) for r in range(size)], op), size, rank), dtype)
        sent = torch.arange(size * 2 * 3).view(size * 2, 3)
        came = group.alltoall(sent + 1000 * rank)
        assert torch.equal(came, torch.cat([sent[2 * rank : 2 * rank + 2] + 1000 * r for r in range(size)]))
        splits = [(rank + other) % 3 for other in range(size)]
        came, counts = group.alltoall(torch.full((sum(splits),), rank, dtype=torch.bfloat16), splits)
        assert counts == [(rank + other) % 3 for other in range(size)]
        assert came.tolist() == [other for other in range(size) for _ in range(counts[other])]
        group.barrier()
        assert group.allgather_object({"rank": rank, "text": "ä" * rank}) == [
            {"rank": r, "text": "ä" * r} for r in range(size)
        ]
        assert group.allgather_object("ä" * 200 * rank) == ["ä" * 200 * r for r in range(size)]  # short ones and long
        assert group.broadcast_object([rank, None, 1.5, "x"], root=size - 1) == [size - 1, None, 1.5, "x"]

    run(way, size, work)


@pytest.mark.parametrize("way", ["shared-direct", "tcp-ring", "hosts-hierarchical"])
def test_tensors_of_any_layout(way):
    def work(group: comm.Group) -> None:
        def fresh() -> torch.Tensor:
            return values(group.rank, 24_000, torch.float32).view(200, 120)

        expected = oracle([values(r, 24_000, torch.float32) for r in range(3)], "mean").view(200, 120)
        transposed = fresh().t()
        assert group.allreduce(transposed) is transposed
        torch.testing.assert_close(transposed, expected.t())
        sliced = torch.zeros(200, 240)
        sliced[:, ::2] = fresh()
        group.allreduce(sliced[:, ::2])
        torch.testing.assert_close(sliced[:, ::2], expected)
        assert (sliced[:, 1::2] == 0).all()
        out = torch.empty(120, 200).t()
        mine = fresh()
        assert group.allreduce(mine, out=out) is out
        torch.testing.assert_close(out, expected)
        assert torch.equal(mine, fresh())
        parameter = torch.nn.Parameter(fresh())
        group.allreduce(parameter)
        torch.testing.assert_close(parameter.detach(), expected)
        scalar = torch.tensor(float(group.rank))
        assert group.allreduce(scalar).item() == 1.0
        group.broadcast(flipped := fresh().t(), root=1)
        assert torch.equal(flipped, values(1, 24_000, torch.float32).view(200, 120).t())
        channels = torch.full((2, 3, 4, 5), float(group.rank)).to(memory_format=torch.channels_last)
        assert (group.allreduce(channels, "sum") == 3).all()
        complex_ = torch.complex(fresh(), fresh() + 1)
        group.allreduce(conjugated := complex_.conj())
        torch.testing.assert_close(conjugated.resolve_conj(), torch.complex(expected, -expected - 1))
        group.allreduce(negated := torch.complex(fresh(), fresh()).conj().imag)
        torch.testing.assert_close(negated.resolve_neg(), -expected)
        gathered = torch.empty(120, 600).t()
        group.allgather(fresh(), out=gathered)
        assert torch.equal(gathered[:200], values(0, 24_000, torch.float32).view(200, 120))

    run(way, 3, work)


@pytest.mark.parametrize("way", ["shared-direct", "tcp-ring", "hosts-hierarchical"])
def test_asynchronous_operations_run_in_order_and_blocking_ones_wait_behind_them(way):
    def work(group: comm.Group) -> None:
        tensors = [values(group.rank, 5000, torch.float32, seed) for seed in range(20)]
        handles = [group.allreduce_async(tensor, "sum") for tensor in tensors]
        gathered = group.allgather_async(torch.tensor([group.rank]))
        total = group.allreduce(torch.ones(3), "sum")
        assert all(handle.done() for handle in handles)
        for seed, handle in enumerate(handles):
            expected = oracle([values(r, 5000, torch.float32, seed) for r in range(3)], "sum")
            torch.testing.assert_close(handle.wait(), expected)
        assert gathered.wait().tolist() == [0, 1, 2]
        assert total.tolist() == [3, 3, 3]
        group.broadcast_async(torch.ones(5)).wait()
        group.reduce_scatter_async(torch.ones(5)).wait()
        rows, counts = group.alltoall_async(torch.ones(3)).wait()
        assert rows.tolist() == [1, 1, 1]
        assert counts == [1, 1, 1]
        group.barrier_async().wait()

    run(way, 3, work)


@pytest.mark.parametrize("way", ["shared-direct", "hosts-hierarchical", "tcp-ring"])
def test_tensors_in_shared_buffers(way):
    def work(group: comm.Group) -> None:
        for length in (1, 1001, LONG):
            buffer = group.empty(length)
            assert (buffer == 0).all()
            for _ in range(2):
                buffer.copy_(values(group.rank, length, torch.float32))
                group.allreduce(buffer)
                torch.testing.assert_close(buffer, oracle([values(r, length, torch.float32) for r in range(3)], "mean"))
        half = buffer[1 : LONG // 2]
        half.fill_(group.rank)
        group.allreduce(half, "max")
        assert (half == 2).all()
        table = group.empty(3, 5, dtype=torch.bfloat16)
        assert table.shape == (3, 5)
        table.fill_(1)
        assert (group.allreduce(table, "sum") == 3).all()

    run(way, 3, work)
