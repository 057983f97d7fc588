from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import chain, combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch_comm.collectives import halving_doubling, hierarchical
from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.errors import MismatchError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import DTYPES, Signature
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.topology import Topology
from tests.comm.collectives.thread_mesh import ThreadMesh, ThreadWorld, assert_reduced

Hosts = tuple[tuple[int, ...], ...]
LONG = halving_doubling.SHORT // 4 + 1

HOSTS: list[Hosts] = [
    ((0,),),
    ((0, 1, 2),),
    ((0,), (1,)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),
    ((0,), (1, 2)),
    ((0, 1, 2, 3), (4, 5, 6)),
    ((0, 1, 2), (3,), (4, 5)),
    ((0, 1), (2, 3), (4, 5)),
]


def on_hosts(hosts: Hosts, task: Callable[[ShmSegment, ThreadMesh, Operation, Topology], Any]) -> ThreadWorld:
    """Call `task` on every rank, a thread each, where the ranks of a host share a segment."""
    world = ThreadWorld(sum(len(ranks) for ranks in hosts))
    descriptors: dict[int, dict[int, socket.socket]] = {rank: {} for rank in range(world.size)}
    for ranks in hosts:
        for one, other in combinations(ranks, 2):
            descriptors[one][other], descriptors[other][one] = socket.socketpair()

    def with_segment(mesh: ThreadMesh, operation: Operation) -> None:
        topology = Topology(mesh.rank, hosts)
        with closing(ShmSegment(mesh.rank, topology.local_ranks, descriptors[mesh.rank], operation.abort_state)) as shm:
            task(shm, mesh, operation, topology)

    with ExitStack() as exits:
        for sock in chain.from_iterable(ends.values() for ends in descriptors.values()):
            exits.enter_context(sock)
        world.run(with_segment, Signature(0, "allreduce", "hierarchical"))
    return world


def allreduce(hosts: Hosts, tensors: list[torch.Tensor], op: str = "sum") -> tuple[torch.Tensor, ThreadWorld]:
    """Reduce tensors in place, one on each rank; look that all ranks have the same bits."""
    reduction = reduction_for(op, tensors[0].dtype)
    world = on_hosts(
        hosts,
        lambda shm, mesh, operation, topology: hierarchical.allreduce(
            shm, mesh, operation, topology, tensors[mesh.rank], reduction
        ),
    )
    assert len({tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors}) == 1
    return tensors[0], world


def ones_and_twos(hosts: Hosts, length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Numbers whose sums are exact in every dtype, whatever the order."""
    size = sum(len(ranks) for ranks in hosts)
    return list(torch.randint(1, 3, (size, length), generator=torch.Generator().manual_seed(length)).to(dtype))


@pytest.mark.parametrize("length", [0, 1, 5, 1001, 4 * LONG])
@pytest.mark.parametrize("hosts", HOSTS)
def test_every_rank_gets_the_sum_whatever_the_hosts_hold(hosts, length):
    tensors = ones_and_twos(hosts, length)
    expected = torch.stack(tensors).sum(0)
    assert torch.equal(allreduce(hosts, tensors)[0], expected)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype is not torch.bool])
def test_every_dtype_is_summed(dtype):
    hosts = ((0, 1), (2, 3, 4))
    tensors = ones_and_twos(hosts, 4001, dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = torch.stack([tensor.to(wide) for tensor in tensors]).sum(0)
    result, _ = allreduce(hosts, tensors)
    # A sum that float8 can't hold is rounded to the nearest number that it can.
    torch.testing.assert_close(result.to(wide), expected.to(dtype).to(wide), rtol=0, atol=0)


@given(
    hosts=st.sampled_from(HOSTS),
    length=st.integers(0, 30),
    op=st.sampled_from(["sum", "mean", "min", "max", "product"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(max_examples=25, deadline=None)
def test_any_reduction_is_that_of_float64_but_for_rounding(hosts, length, op, dtype):
    size = sum(len(ranks) for ranks in hosts)
    tensors = list(torch.randn(size, length, generator=torch.Generator().manual_seed(length)).to(dtype))
    given = [tensor.clone() for tensor in tensors]
    result, _ = allreduce(hosts, tensors, op)
    assert_reduced(result, given, op)


@pytest.mark.parametrize("hosts", HOSTS)
def test_16_bit_sums_are_rounded_once(hosts):
    # In float16 itself, 2048 + 1 is 2048.
    tensors = [torch.ones(100, dtype=torch.float16) for ranks in hosts for _ in ranks]
    tensors[0].fill_(2048.0)
    result, _ = allreduce(hosts, tensors)
    assert set(result.tolist()) == {torch.tensor(2047.0 + len(tensors)).half().item()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_long_tensor_goes_slice_by_slice(monkeypatch, dtype):
    monkeypatch.setattr(hierarchical, "_SLICE", 4000)
    hosts = ((0, 1), (2, 3, 4))
    tensors = ones_and_twos(hosts, 4003, dtype)
    expected = torch.stack(tensors).float().sum(0)
    result, world = allreduce(hosts, tensors)
    assert torch.equal(result.float(), expected)
    assert [len(moved.steps) for moved in world.moved] == [5, 5, 5, 5, 0]


@pytest.mark.parametrize("numel", [2400, 12 * LONG])
@pytest.mark.parametrize("hosts", [((0, 1), (2, 3)), ((0, 1), (2, 3, 4)), ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))])
def test_only_one_tensor_per_host_goes_over_the_wire(hosts, numel):
    _, world = allreduce(hosts, ones_and_twos(hosts, numel))
    count = len(hosts)
    for ranks in hosts:
        sent = sum(world.moved[rank].nbytes for rank in ranks)
        if numel > LONG:
            assert sent == 2 * 4 * numel * (count - 1) / count
        elif count == 2:
            assert sent == 4 * numel  # one step of the butterfly instead of two of the ring
        for rank in ranks:
            assert all(peer not in ranks for peer, _ in world.moved[rank].sent)


def test_tensors_in_a_shared_buffer_are_reduced_where_they_lie():
    hosts = ((0, 1, 2), (3, 4))
    tensors = ones_and_twos(hosts, 50_000)
    expected = torch.stack(tensors).mean(0)
    reduction = reduction_for("mean", torch.float32)

    def task(shm: ShmSegment, mesh: ThreadMesh, operation: Operation, topology: Topology) -> None:
        shared = shm.empty(operation, 4 * 50_000).view(torch.float32)
        for _ in range(3):
            shared.copy_(tensors[mesh.rank])
            hierarchical.allreduce(shm, mesh, operation, topology, shared, reduction)
            torch.testing.assert_close(shared, expected)

    on_hosts(hosts, task)


@pytest.mark.parametrize("odd_one", [1, 3])
def test_ranks_that_disagree_find_out(odd_one):
    def task(shm: ShmSegment, mesh: ThreadMesh, operation: Operation, topology: Topology) -> None:
        shape = (2, 5) if mesh.rank == odd_one else (10,)
        signature = Signature(0, "allreduce", "hierarchical", torch.float32, shape, "sum")
        mine = Operation(mesh.rank, signature.pack(), operation.timeout, operation.abort_state)
        hierarchical.allreduce(shm, mesh, mine, topology, torch.ones(10), reduction_for("sum", torch.float32))

    with pytest.raises(MismatchError, match=r"\[2, 5\].*\[10\]|\[10\].*\[2, 5\]"):
        on_hosts(((0, 1), (2,), (3,)), task)
