"""Ring, butterfly and naive against a plain sum, and against what their derivations say they move."""

from __future__ import annotations

from itertools import pairwise
from math import log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.collectives import halving_doubling, naive, ring
from hpsearch_comm.collectives.parts import split
from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.errors import MismatchError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import DTYPES, Signature
from tests.comm.collectives.thread_mesh import ThreadMesh, ThreadWorld, assert_reduced

LONG = halving_doubling.SHORT // 4 + 1
"""float32 elements from which the butterfly halves."""

ALGORITHMS = {"ring": ring.allreduce, "butterfly": halving_doubling.allreduce, "naive": naive.allreduce}
SIZES = [1, 2, 3, 4, 5, 8]
ADDED = [dtype for dtype in DTYPES if dtype is not torch.bool]


def allreduce(
    algorithm: str, tensors: list[torch.Tensor], op: str = "sum", chunk: int = 1 << 20
) -> tuple[torch.Tensor, ThreadWorld]:
    """Reduce tensors in place, one on each rank; look that all ranks have the same bits."""
    world = ThreadWorld(len(tensors), chunk)
    members = range(world.size)
    reduction = reduction_for(op, tensors[0].dtype)
    world.run(lambda mesh, operation: ALGORITHMS[algorithm](mesh, operation, members, tensors[mesh.rank], reduction))
    assert len({bits(tensor) for tensor in tensors}) == 1
    return tensors[0], world


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


def ones_and_twos(size: int, length: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Numbers whose sums are exact in every dtype, whatever the order."""
    generator = torch.Generator().manual_seed(length)
    return [torch.randint(1, 3, (length,), generator=generator).to(dtype) for _ in range(size)]


@pytest.mark.some_cases(24)
@pytest.mark.parametrize("length", [0, 1, 3, 7, 64, 1001, LONG, 3 * LONG + 1])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_rank_gets_the_sum(algorithm, size, length):
    tensors = ones_and_twos(size, length, torch.float32)
    expected = torch.stack(tensors).double().sum(0)
    result, _ = allreduce(algorithm, tensors)
    assert torch.equal(result.double(), expected)


@pytest.mark.some_cases(24)
@pytest.mark.parametrize("length", [37, 4 * LONG + 3])
@pytest.mark.parametrize("dtype", ADDED)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_dtype_is_summed(algorithm, dtype, length):
    tensors = ones_and_twos(3, length, dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = torch.stack([tensor.to(wide) for tensor in tensors]).sum(0)
    result, _ = allreduce(algorithm, tensors)
    assert result.dtype is dtype
    assert torch.equal(result.to(wide), expected)


@given(
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    size=st.integers(1, 9),
    length=st.integers(0, 40),
    op=st.sampled_from(["sum", "mean", "min", "max", "product"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    chunk=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_any_reduction_is_that_of_float64_but_for_rounding(algorithm, size, length, op, dtype, chunk, seed):
    tensors = list(torch.randn(size, length, generator=torch.Generator().manual_seed(seed)).to(dtype))
    given, again = ([tensor.clone() for tensor in tensors] for _ in range(2))
    result, _ = allreduce(algorithm, tensors, op, chunk)
    assert_reduced(result, given, op)
    assert bits(allreduce(algorithm, again, op)[0]) == bits(result), "another run, cut otherwise, gives other bits"


@pytest.mark.parametrize("length", [100, LONG])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_16_bit_sums_are_rounded_once(algorithm, size, length):
    # In float16 itself, 2048 + 1 is 2048.
    tensors = [torch.full((length,), 1.0, dtype=torch.float16) for _ in range(size)]
    tensors[0].fill_(2048.0)
    result, _ = allreduce(algorithm, tensors)
    assert set(result.tolist()) == {torch.tensor(2048.0 + size - 1).half().item()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_sum_is_taken_over_the_members_only(algorithm):
    members, world = [4, 1, 2], ThreadWorld(5)
    tensors = ones_and_twos(5, 10, torch.int32)
    expected = tensors[4] + tensors[1] + tensors[2]
    untouched = tensors[0].clone(), tensors[3].clone()

    def task(mesh: ThreadMesh, operation: Operation) -> None:
        if mesh.rank in members:
            ALGORITHMS[algorithm](mesh, operation, members, tensors[mesh.rank], reduction_for("sum", torch.int32))

    world.run(task)
    for rank in members:
        assert torch.equal(tensors[rank], expected)
    assert torch.equal(tensors[0], untouched[0])
    assert torch.equal(tensors[3], untouched[1])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nan_of_one_rank_reaches_all(algorithm):
    tensors = [torch.ones(5) for _ in range(3)]
    tensors[1][2] = torch.nan
    result, _ = allreduce(algorithm, tensors, "max")
    assert result.isnan().tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_operations_may_follow_one_another_under_one_number(algorithm):
    world, tensors = ThreadWorld(3), ones_and_twos(3, 11, torch.int64)
    reduction = reduction_for("sum", torch.int64)

    def task(mesh: ThreadMesh, operation: Operation) -> None:
        for _ in range(3):
            ALGORITHMS[algorithm](mesh, operation, range(3), tensors[mesh.rank], reduction)

    expected = torch.stack(tensors).sum(0) * 9
    world.run(task)
    assert all(torch.equal(tensor, expected) for tensor in tensors)


@pytest.mark.parametrize("length", [0, 10])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ranks_that_disagree_find_out_even_about_nothing(algorithm, length):
    world = ThreadWorld(3)

    def task(mesh: ThreadMesh, operation: Operation) -> None:
        signature = Signature(0, "allreduce", algorithm, torch.float32, (length, 1 + mesh.rank // 2))
        theirs = Operation(mesh.rank, signature.pack(), operation.timeout, operation.abort_state)
        ALGORITHMS[algorithm](mesh, theirs, range(3), torch.zeros(length), reduction_for("sum", torch.float32))

    with pytest.raises(
        MismatchError, match=rf"allreduce 0 \(float32 \[{length}, 2\].*\[{length}, 1\]|\[{length}, 1\].*2\]"
    ):
        world.run(task)


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_moves_2n_p_minus_1_over_p_bytes_in_2_p_minus_1_steps(size):
    numel = 120 * size
    _, world = allreduce("ring", ones_and_twos(size, numel, torch.float32))
    for rank, moved in enumerate(world.moved):
        assert moved.steps == list(range(1, 2 * (size - 1) + 1))
        assert moved.nbytes == 2 * 4 * numel * (size - 1) / size
        assert {peer for peer, _ in moved.sent} <= {(rank + 1) % size}


def test_in_a_ring_partial_sums_of_16_bit_numbers_travel_as_float32():
    _, world = allreduce("ring", ones_and_twos(4, 400, torch.bfloat16))
    assert [nbytes for _, nbytes in world.moved[0].sent] == [400] * 3 + [200] * 3


def test_a_ring_adds_each_part_up_in_the_order_of_the_ring():
    # 1e30 swallows what it is added to: what is left tells the order.
    tensors = [torch.full((3,), value) for value in (1.0, 1e30, -1e30)]
    result, _ = allreduce("ring", tensors)
    # Part 0: (1e30 - 1e30) + 1; part 1: (-1e30 + 1) + 1e30; part 2: (1 + 1e30) - 1e30.
    assert result.tolist() == [1.0, 0.0, 0.0]


def test_in_a_ring_each_member_owns_its_part():
    world, parts = ThreadWorld(3), [(0, 1), (1, 1), (1, 6)]
    tensors = ones_and_twos(3, 6, torch.int32)
    expected = torch.stack(tensors).sum(0)
    reduction = reduction_for("sum", torch.int32)
    world.run(
        lambda mesh, operation: ring.reduce_scatter(mesh, operation, range(3), tensors[mesh.rank], parts, reduction)
    )
    for tensor, (start, stop) in zip(tensors, parts, strict=True):
        assert torch.equal(tensor[start:stop].long(), expected[start:stop])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sampled_from(DTYPES))
@settings(max_examples=30, deadline=None)
def test_a_ring_gathers_parts_of_any_length(lengths, dtype):
    size = len(lengths)
    edges = [sum(lengths[:index]) for index in range(size + 1)]
    parts = list(pairwise(edges))
    whole = torch.arange(edges[-1]).to(dtype)
    tensors = [torch.zeros(edges[-1], dtype=dtype) for _ in range(size)]
    for tensor, (start, stop) in zip(tensors, parts, strict=True):
        tensor[start:stop] = whole[start:stop]
    ThreadWorld(size).run(
        lambda mesh, operation: ring.allgather(mesh, operation, range(size), tensors[mesh.rank], parts)
    )
    assert all(bits(tensor) == bits(whole) for tensor in tensors)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_butterfly_moves_as_little_as_a_ring_in_2_log_p_steps(size):
    numel = LONG // size * size + size
    _, world = allreduce("butterfly", ones_and_twos(size, numel, torch.float32))
    for moved in world.moved:
        assert len(moved.steps) == 2 * log2(size)
        assert moved.nbytes == 2 * 4 * numel * (size - 1) / size


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_butterfly_sends_a_short_tensor_whole_in_log_p_steps(size):
    _, world = allreduce("butterfly", ones_and_twos(size, 250, torch.float32))
    for rank, moved in enumerate(world.moved):
        assert moved.sent == [(rank ^ (1 << bit), 1000) for bit in range(int(log2(size)))]


@pytest.mark.parametrize("numel", [250, LONG])
@pytest.mark.parametrize(("size", "core"), [(3, 2), (5, 4), (6, 4), (7, 4)])
def test_ranks_beyond_a_power_of_two_cost_a_step_and_n_bytes_on_each_side(size, core, numel):
    _, alone = allreduce("butterfly", ones_and_twos(core, numel, torch.float32))
    _, world = allreduce("butterfly", ones_and_twos(size, numel, torch.float32))
    rounds, pairs = len(alone.moved[0].steps), size - core
    for rank, moved in enumerate(world.moved):
        if rank >= 2 * pairs:
            assert len(moved.steps) == rounds
        elif rank % 2:
            assert moved.sent == [(rank - 1, 4 * numel)]
            assert moved.steps == [1, rounds + 2]
        else:
            assert len(moved.steps) == rounds + 2
            assert moved.sent[-1] == (rank + 1, 4 * numel)
            assert moved.nbytes == pytest.approx(alone.moved[0].nbytes + 4 * numel, abs=32)


@pytest.mark.parametrize("numel", [8, LONG])
def test_a_butterfly_adds_neighbours_first(numel):
    tensors = [torch.full((numel,), value) for value in (1.0, 1e30, -1e30, 1.0)]
    result, _ = allreduce("butterfly", tensors)
    assert set(result.tolist()) == {0.0}  # (1 + 1e30) + (-1e30 + 1)
    tensors = [torch.full((numel,), value) for value in (1e30, -1e30, 1.0, 2.0)]
    result, _ = allreduce("butterfly", tensors)
    assert set(result.tolist()) == {3.0}


def test_a_butterfly_goes_slice_by_slice_where_ranks_stand_aside(monkeypatch):
    monkeypatch.setattr(halving_doubling, "_SLICE", 400)
    tensors = ones_and_twos(3, 1001, torch.float16)
    expected = torch.stack(tensors).float().sum(0)
    result, world = allreduce("butterfly", tensors)
    assert torch.equal(result.float(), expected)
    assert [nbytes for _, nbytes in world.moved[1].sent] == [400] * 10 + [4]


@pytest.mark.parametrize("size", SIZES)
def test_naive_sends_everything_to_everybody_in_one_step(size):
    _, world = allreduce("naive", ones_and_twos(size, 100, torch.float16))
    for rank, moved in enumerate(world.moved):
        assert moved.steps == [1]
        assert moved.sent == [(peer, 200) for peer in range(size) if peer != rank]


def test_naive_adds_up_in_the_order_of_the_ranks():
    result, _ = allreduce("naive", [torch.tensor([value]) for value in (1e30, -1e30, 1.0)])
    assert result.item() == 1.0


@pytest.mark.parametrize("algorithm", [ring, halving_doubling])
def test_a_mean_may_count_more_ranks_than_there_are_members(algorithm):
    # Between hosts, what is reduced is already a sum over the ranks of each.
    tensors = [torch.full((7,), 6.0), torch.full((7,), 4.0)]
    reduction = reduction_for("mean", torch.float32)

    def task(mesh: ThreadMesh, operation: Operation) -> None:
        mine = tensors[mesh.rank]
        algorithm.allreduce(mesh, operation, range(2), mine, reduction, count=5)

    ThreadWorld(2).run(task)
    assert [tensor.tolist() for tensor in tensors] == [[2.0] * 7] * 2


def test_parts_of_the_ring_are_as_even_as_can_be():
    _, world = allreduce("ring", ones_and_twos(3, 10, torch.uint8))
    assert [nbytes for _, nbytes in world.moved[0].sent] == [
        stop - start for start, stop in (split(10, 3)[index] for index in (2, 1, 0, 2))
    ]
