"""What NCCL is asked to do for each operation, and what comes of it."""

from __future__ import annotations

import math

import pytest
import torch

from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.header import DTYPES
from tests.comm.host_nccl import HostEvent, HostStream, run_ranks
from tests.comm.nccl_world import worlds

FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]


@pytest.fixture
def make_world():
    with worlds() as make:
        yield make


def sample(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator, dtype=torch.bool)
    if dtype.is_complex:
        return torch.randn(numel, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(numel, generator=generator).to(dtype)
    return torch.randint(0, 200, (numel,), generator=generator).to(dtype)


def expected(op: str, dtype: torch.dtype, tensors: list[torch.Tensor]) -> torch.Tensor:
    """What the CPU's reduction gives."""
    reduction = reduction_for(op, dtype)
    total = reduction.view(tensors[0]).to(reduction.accumulate, copy=True)
    for tensor in tensors[1:]:
        reduction.combine(total, reduction.view(tensor))
    reduction.finish(total, len(tensors))
    return total.to(reduction.computed).view(dtype)


def close_enough(got: torch.Tensor, wanted: torch.Tensor, op: str) -> bool:
    exact = not (wanted.dtype.is_floating_point or wanted.dtype.is_complex) or op in ("min", "max")
    if exact:
        wide = torch.float64 if wanted.dtype.is_floating_point else torch.int64
        return torch.equal(got.to(wide), wanted.to(wide))
    wide = torch.complex128 if wanted.dtype.is_complex else torch.float64
    real = torch.finfo(wanted.dtype)
    return torch.allclose(got.to(wide), wanted.to(wide), rtol=8 * real.eps, atol=8 * real.eps)


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
def test_allreduce_gives_what_the_cpu_gives(make_world, size, op):
    world = make_world(size)
    dtypes = [*FLOATS, *(INTEGERS if op != "mean" else [])]
    if op in ("min", "max", "product"):
        dtypes.append(torch.bool)
    if op in ("sum", "mean"):
        dtypes.append(torch.complex64)

    def reduce(rank: int):
        return [world.communicators[rank].allreduce(sample(rank, 13, dtype), op).wait() for dtype in dtypes]

    results = run_ranks(size, reduce)
    for index, dtype in enumerate(dtypes):
        wanted = expected(op, dtype, [sample(rank, 13, dtype) for rank in range(size)])
        assert close_enough(results[0][index], wanted, op), dtype
        for others in results[1:]:
            assert torch.equal(others[index].view(torch.uint8), results[0][index].view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.uint32, torch.uint64])
def test_unsigned_sums_wrap_around(make_world, dtype):
    world = make_world(2)
    most = 2 ** (8 * dtype.itemsize) - 1

    def reduce(rank: int):
        return world.communicators[rank].allreduce(torch.tensor([most - rank, 7], dtype=dtype), "sum").wait().tolist()

    assert run_ranks(2, reduce) == [[most - 2, 14]] * 2


@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_as_on_the_cpu(make_world, op):
    world = make_world(2)
    rows = [[math.nan, 1.0, -0.0, -math.inf, 2.0], [1.0, math.nan, 0.0, -3.0, math.inf]]
    for dtype in FLOATS:

        def reduce(rank: int, dtype: torch.dtype = dtype):
            return world.communicators[rank].allreduce(torch.tensor(rows[rank]).to(dtype), op).wait()

        tensors = [torch.tensor(row).to(dtype) for row in rows]
        for got in run_ranks(2, reduce):
            assert torch.equal(got.view(torch.uint8), expected(op, dtype, tensors).view(torch.uint8)), dtype


def test_strides_shapes_and_out_are_kept(make_world):
    world = make_world(2)

    def reduce(rank: int):
        communicator = world.communicators[rank]
        strided = torch.arange(12.0).reshape(3, 4)[:, ::2] + rank
        turned = (torch.arange(6.0).reshape(2, 3) + rank).t()
        out = torch.zeros(3, 2).t().contiguous().t()
        assert communicator.allreduce(turned, "sum").wait() is turned
        result = communicator.allreduce(strided, "sum", out).wait()
        assert result is out
        scalar = communicator.allreduce(torch.tensor(float(rank)), "sum").wait()
        parameter = torch.full((3,), float(rank), requires_grad=True)
        communicator.allreduce(parameter, "mean").wait()
        return turned, strided, out, scalar, parameter.detach()

    for rank, (turned, strided, out, scalar, parameter) in enumerate(run_ranks(2, reduce)):
        assert torch.equal(turned, (2 * torch.arange(6.0).reshape(2, 3) + 1).t())
        assert torch.equal(strided, torch.arange(12.0).reshape(3, 4)[:, ::2] + rank)
        assert torch.equal(out, 2 * torch.arange(12.0).reshape(3, 4)[:, ::2] + 1)
        assert scalar.item() == 1.0
        assert parameter.tolist() == [0.5] * 3


def test_results_go_into_tensors_of_any_layout(make_world):
    world = make_world(2)

    def move(rank: int):
        communicator = world.communicators[rank]
        gathered = torch.zeros(3, 4).t()
        communicator.allgather(torch.arange(6.0).view(2, 3) + 10 * rank, gathered, [6, 6]).wait()
        whole = torch.arange(8.0).view(4, 2) + rank
        part = torch.zeros(2, 4)[:, ::2]
        communicator.reduce_scatter(whole, "sum", part, [4, 4]).wait()
        kept = whole.clone()
        communicator.reduce_scatter(whole, "sum", whole[1:3], [4, 4]).wait()
        assert torch.equal(whole[0], kept[0])
        assert torch.equal(whole[3], kept[3])
        return gathered, part, whole[1:3]

    rows = torch.arange(6.0).view(2, 3)
    sums = 2 * torch.arange(8.0).view(4, 2) + 1
    for rank, (gathered, part, inside) in enumerate(run_ranks(2, move)):
        assert torch.equal(gathered, torch.cat([rows, rows + 10]))
        assert torch.equal(part, sums[2 * rank : 2 * rank + 2])
        assert torch.equal(inside, part)


def test_every_call_follows_the_callers_stream_and_keeps_its_memory(make_world):
    communicator = make_world(1).communicators[0]
    stream = communicator.communicator.stream
    assert isinstance(stream, HostStream)
    mine, out = torch.ones(2), torch.ones(2)
    ready = HostEvent(lambda: True)
    communicator.allreduce(mine, "sum", out, ready).wait()
    assert stream.followed == [ready]
    communicator.broadcast(mine).wait()
    communicator.allgather(mine, out, [2]).wait()
    communicator.reduce_scatter(mine, "sum", out, [2]).wait()
    communicator.alltoall(mine, out, [2], [2]).wait()
    assert len(stream.followed) == 5
    assert [kept.data_ptr() for kept in stream.kept] == [
        tensor.data_ptr() for tensor in (mine, out, mine, mine, out, mine, out, mine, out)
    ]


def test_conjugated_tensors_are_reduced_by_value(make_world):
    world = make_world(2)

    def reduce(rank: int):
        tensor = torch.tensor([1 + 2j, 3 - 1j]).conj()
        return world.communicators[rank].allreduce(tensor, "sum").wait()

    for result in run_ranks(2, reduce):
        assert result.tolist() == [2 - 4j, 6 + 2j]


@pytest.mark.parametrize("counts", [[4, 4, 4], [5, 4, 3], [0, 7, 1], [0, 0, 0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.float8_e5m2])
def test_reduce_scatter_gives_each_rank_its_part(make_world, counts, dtype):
    world = make_world(3)
    total = sum(counts)

    def scatter(rank: int):
        out = torch.zeros(counts[rank], dtype=dtype)
        return world.communicators[rank].reduce_scatter(sample(rank, total, dtype), "sum", out, counts).wait()

    wanted = expected("sum", dtype, [sample(rank, total, dtype) for rank in range(3)]).split(counts)  # type: ignore[no-untyped-call]
    for got, part in zip(run_ranks(3, scatter), wanted, strict=True):
        assert close_enough(got, part, "sum")


@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_carry_every_dtype_bit_by_bit(make_world, dtype):
    world = make_world(3)
    counts = [2, 0, 5]

    def move(rank: int):
        communicator = world.communicators[rank]
        whole = communicator.broadcast(sample(rank, 7, dtype), 2).wait()
        even = communicator.allgather(sample(rank, 4, dtype), torch.zeros(12, dtype=dtype), [4] * 3).wait()
        uneven = communicator.allgather(sample(rank, counts[rank], dtype), torch.zeros(7, dtype=dtype), counts).wait()
        sends = torch.cat([sample(10 * rank + peer, 1 + peer, dtype) for peer in range(3)])
        received = torch.zeros(3 * (1 + rank), dtype=dtype)
        communicator.alltoall(sends, received, [1, 2, 3], [1 + rank] * 3).wait()
        return whole, even, uneven, received

    def raw(tensor: torch.Tensor) -> list[int]:
        return tensor.view(torch.uint8).tolist()

    for rank, (whole, even, uneven, received) in enumerate(run_ranks(3, move)):
        assert raw(whole) == raw(sample(2, 7, dtype))
        assert raw(even) == [byte for peer in range(3) for byte in raw(sample(peer, 4, dtype))]
        assert raw(uneven) == [byte for peer in range(3) for byte in raw(sample(peer, counts[peer], dtype))]
        assert raw(received) == [byte for peer in range(3) for byte in raw(sample(10 * peer + rank, 1 + rank, dtype))]


def test_broadcast_fills_strided_tensors(make_world):
    world = make_world(2)

    def move(rank: int):
        tensor = torch.full((4, 4), float(rank))[:, ::2]
        return world.communicators[rank].broadcast(tensor, 1).wait()

    for tensor in run_ranks(2, move):
        assert torch.equal(tensor, torch.ones(4, 2))


def test_empty_tensors_ask_nothing_of_nccl(make_world):
    world = make_world(2)

    def empty(rank: int):
        communicator = world.communicators[rank]
        communicator.allreduce(torch.zeros(0, 3), "sum").wait()
        communicator.broadcast(torch.zeros(0), 0).wait()
        communicator.allgather(torch.zeros(0), torch.zeros(0), [0, 0]).wait()
        communicator.alltoall(torch.zeros(0, 3), torch.zeros(0, 3), [0, 0], [0, 0]).wait()

    run_ranks(2, empty)
    assert world.nccl[0].log == ["init"]


def test_several_works_may_be_under_way(make_world):
    world = make_world(2)

    def launch(rank: int):
        communicator = world.communicators[rank]
        works = [communicator.allreduce(torch.tensor([float(index + rank)]), "sum") for index in range(5)]
        return [work.wait().item() for work in reversed(works)], [work.done() for work in works]

    assert run_ranks(2, launch) == [([9.0, 7.0, 5.0, 3.0, 1.0], [True] * 5)] * 2


def test_autograd_learns_what_was_changed_in_place(make_world):
    world = make_world(2)

    def reduce(rank: int) -> list[int]:
        communicator = world.communicators[rank]
        reduced, root, out, gathered = torch.ones(2), torch.ones(2), torch.ones(1), torch.ones(4)
        communicator.allreduce(reduced, "sum").wait()
        communicator.broadcast(root, 0).wait()
        communicator.reduce_scatter(torch.ones(2), "sum", out, [1, 1]).wait()
        communicator.allgather(torch.ones(2), gathered, [2, 2]).wait()
        return [tensor._version for tensor in (reduced, root, out, gathered)]

    assert run_ranks(2, reduce) == [[1, 0, 1, 1], [1, 1, 1, 1]]
