from __future__ import annotations

from itertools import product
from math import ceil, log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.collectives import pairwise, tree
from hpsearch_comm.errors import MismatchError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import DTYPES, Signature
from tests.comm.collectives.thread_mesh import ThreadMesh, ThreadWorld

SIZES = [1, 2, 3, 4, 5, 8]
CHUNK = tree.CHUNK


def broadcast(tensors: list[torch.Tensor], root: int) -> ThreadWorld:
    """Broadcast among tensors, one on each rank; look that all have become the root's."""
    world, members, expected = ThreadWorld(len(tensors)), range(len(tensors)), tensors[root].clone()
    world.run(lambda mesh, operation: tree.broadcast(mesh, operation, members, tensors[mesh.rank], root))
    assert all(bits(tensor) == bits(expected) for tensor in tensors)
    return world


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


@pytest.mark.some_cases(24)
@pytest.mark.parametrize("root", [0, 1, -1])
@pytest.mark.parametrize("length", [0, 1, 1001, CHUNK + 1, 9 * CHUNK + 5])
@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_the_roots_tensor(size, length, root):
    generator = torch.Generator().manual_seed(size)
    broadcast([torch.randint(0, 256, (length,), generator=generator).to(torch.uint8) for _ in range(size)], root % size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_broadcast(dtype):
    broadcast([torch.full((CHUNK,), value).to(dtype) for value in range(4)], 2)


def test_the_root_may_be_any_of_some_members():
    world, members = ThreadWorld(5), [3, 0, 4]
    tensors = [torch.tensor([rank]) for rank in range(5)]

    def task(mesh: ThreadMesh, operation: Operation) -> None:
        if mesh.rank in members:
            tree.broadcast(mesh, operation, members, tensors[mesh.rank], 4)

    world.run(task)
    assert [tensor.item() for tensor in tensors] == [4, 1, 2, 4, 4]


def test_a_short_tensor_goes_down_a_binomial_tree():
    world = broadcast([torch.full((10,), value, dtype=torch.uint8) for value in range(8)], 0)
    sent = [[1, 4, 2, 1], [2], [3, 3], [4], [5, 6, 5], [6], [7, 7], [0]]
    assert [[peer for peer, _ in moved.sent] for moved in world.moved] == sent
    steps = [[1, 2], [1, 2], [1, 2, 3], [1, 3], [1, 2, 3], [1, 3], [1, 3, 4], [1, 4]]
    assert [moved.steps for moved in world.moved] == steps


@pytest.mark.parametrize("size", SIZES)
def test_a_binomial_tree_is_at_most_log_p_deep(size):
    world = broadcast([torch.zeros(1) for _ in range(size)], size - 1)
    assert max([1, *(step for moved in world.moved for step in moved.steps)]) <= 1 + ceil(log2(size))
    assert sum(nbytes > 0 for moved in world.moved for _, nbytes in moved.sent) == size - 1


@pytest.mark.parametrize("size", [3, 5, 8])
def test_a_long_tensor_goes_down_a_chain_in_c_plus_p_minus_2_steps(size):
    chunks = 8
    world = broadcast([torch.zeros(chunks * CHUNK, dtype=torch.uint8) for _ in range(size)], 1)
    for rank, moved in enumerate(world.moved):
        after = (rank + 1) % size
        assert moved.sent == [(after, 0)] + ([] if after == 1 else [(after, CHUNK)] * chunks)
    assert max(step for moved in world.moved for step in moved.steps) == 1 + chunks + size - 2


def alltoall(lengths: list[list[int]], dtype: torch.dtype = torch.int32) -> ThreadWorld:
    """Send `lengths[i][j]` elements from rank i to rank j; look that everything comes where it belongs."""
    size = len(lengths)
    sends = [[torch.arange(lengths[i][j]).add(10 * i + j).to(dtype) for j in range(size)] for i in range(size)]
    receives = [[torch.zeros(lengths[j][i], dtype=dtype) for j in range(size)] for i in range(size)]
    world = ThreadWorld(size)
    world.run(
        lambda mesh, operation: pairwise.alltoall(mesh, operation, range(size), sends[mesh.rank], receives[mesh.rank])
    )
    for i in range(size):
        for j in range(size):
            assert bits(receives[i][j]) == bits(sends[j][i])
    return world


@given(
    st.integers(1, 6).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from([0, 1, 3, 50, pairwise.LITTLE]), min_size=size, max_size=size),
            min_size=size,
            max_size=size,
        )
    )
)
@settings(max_examples=25, deadline=None)
def test_every_pair_of_ranks_exchanges_as_much_as_it_likes(lengths):
    alltoall(lengths, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_exchanged(dtype):
    alltoall([[2, 3, 0], [0, 1, 4], [5, 0, 0]], dtype)


@pytest.mark.parametrize("size", SIZES)
def test_alltoall_sends_each_byte_once_in_p_minus_1_steps(size):
    numel = pairwise.LITTLE
    world = alltoall([[numel] * size for _ in range(size)], torch.uint8)
    for rank, moved in enumerate(world.moved):
        assert moved.sent == [((rank + step) % size, numel) for step in range(1, size)]
        assert len(moved.steps) == size - 1


def test_ranks_with_little_to_exchange_take_no_turns():
    world = alltoall([[10] * 4 for _ in range(4)])
    assert [len(moved.steps) for moved in world.moved] == [1] * 4


@pytest.mark.parametrize("size", [*SIZES, 6, 7])
def test_a_barrier_takes_log_p_rounds_of_empty_messages(size):
    world = ThreadWorld(size)
    world.run(lambda mesh, operation: pairwise.barrier(mesh, operation, range(size)))
    for rank, moved in enumerate(world.moved):
        assert moved.sent == [((rank + (1 << turn)) % size, 0) for turn in range(ceil(log2(size)))]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_nobody_leaves_a_barrier_before_the_last_has_come(size):
    world, entered = ThreadWorld(size), []

    def task(mesh: ThreadMesh, operation: Operation) -> int:
        entered.append(mesh.rank)
        pairwise.barrier(mesh, operation, range(size))
        return len(entered)

    assert world.run(task) == [size] * size


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("length", [0, 7])
def test_a_rank_with_another_tensor_is_found_out(size, length):
    def task(mesh: ThreadMesh, operation: Operation) -> None:
        shape = (length + mesh.rank // (size - 1),)
        signature = Signature(0, "broadcast", "tree", torch.uint8, shape, root=0)
        mine = Operation(mesh.rank, signature.pack(), operation.timeout, operation.abort_state)
        tree.broadcast(mesh, mine, range(size), torch.zeros(shape, dtype=torch.uint8), 0)

    with pytest.raises(MismatchError, match=rf"broadcast 0 \(uint8 \[{length + 1}\]"):
        ThreadWorld(size).run(task)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("length", [0, 1, 6 * CHUNK])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_that_name_different_roots_are_found_out_at_once(size, length):
    def task(mesh: ThreadMesh, operation: Operation) -> None:
        root = roots[mesh.rank]
        signature = Signature(0, "broadcast", "tree", torch.uint8, (length,), root=root)
        mine = Operation(mesh.rank, signature.pack(), operation.timeout, operation.abort_state)
        tree.broadcast(mesh, mine, range(size), torch.zeros(length, dtype=torch.uint8), root)

    for roots in product(range(size), repeat=size):
        if len(set(roots)) > 1:
            with pytest.raises(MismatchError, match=r"root \d.*root \d"):
                ThreadWorld(size).run(task)
