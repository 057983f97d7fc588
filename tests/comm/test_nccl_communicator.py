from __future__ import annotations

import math
import threading
import time

import pytest
import torch

from hpsearch_comm.cuda.nccl_communicator import NcclCommunicator
from hpsearch_comm.cuda.nccl_library import UNIQUE_ID_BYTES
from hpsearch_comm.errors import CommTimeoutError, GroupClosedError, NcclError, PeerLost, UsageError
from hpsearch_comm.fate import Fate
from hpsearch_comm.reduction import reduction_for
from hpsearch_comm.signature import DTYPES
from tests.comm.host_nccl import HostEvent, HostNccl, HostQueue, HostWorld, SharedId, run_ranks

CPU = torch.device("cpu")
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]


class World:
    """Ranks with a communicator each; `fates` are closed by the fixture."""

    def __init__(self, size: int, timeout: float = 30.0) -> None:
        self.size = size
        self.fates = [Fate() for _ in range(size)]
        self.host = HostWorld(size)
        self.nccl = [HostNccl(self.host, rank) for rank in range(size)]
        share = SharedId()

        def make(rank: int) -> NcclCommunicator:
            library, queue = self.nccl[rank].as_library(), self.nccl[rank].queue()
            return NcclCommunicator(rank, size, CPU, share, self.fates[rank], timeout, library=library, queue=queue)

        self.communicators = run_ranks(size, make)


@pytest.fixture
def make_world():
    worlds = []

    def make(size: int, timeout: float = 30.0) -> World:
        worlds.append(World(size, timeout))
        return worlds[-1]

    yield make
    for world in worlds:
        world.host.abort()  # ends the threads that wait for a rank
        for fate in world.fates:
            fate.close()


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


def test_a_call_from_another_thread_follows_the_callers_stream(make_world):
    world = make_world(1)
    communicator = world.communicators[0]
    queue = communicator._queue
    assert isinstance(queue, HostQueue)
    ready = HostEvent(lambda: True)
    communicator.allreduce(torch.ones(2), "sum", ready=ready).wait()
    communicator.broadcast(torch.ones(2), ready=ready).wait()
    communicator.allgather(torch.ones(2), torch.ones(2), [2], ready=ready).wait()
    communicator.reduce_scatter(torch.ones(2), "sum", torch.ones(2), [2], ready=ready).wait()
    communicator.alltoall([torch.ones(2)], [torch.ones(2)], ready=ready).wait()
    assert queue.followed == [ready] * 5


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
        sends = [sample(10 * rank + peer, 1 + peer, dtype) for peer in range(3)]
        receives = [torch.zeros(1 + rank, dtype=dtype) for _ in range(3)]
        return whole, even, uneven, communicator.alltoall(sends, receives).wait()

    def raw(tensor: torch.Tensor) -> list[int]:
        return tensor.view(torch.uint8).tolist()

    for rank, (whole, even, uneven, received) in enumerate(run_ranks(3, move)):
        assert raw(whole) == raw(sample(2, 7, dtype))
        assert raw(even) == [byte for peer in range(3) for byte in raw(sample(peer, 4, dtype))]
        assert raw(uneven) == [byte for peer in range(3) for byte in raw(sample(peer, counts[peer], dtype))]
        assert [raw(part) for part in received] == [raw(sample(10 * peer + rank, 1 + rank, dtype)) for peer in range(3)]


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
        communicator.alltoall([torch.zeros(0)] * 2, [torch.zeros(0)] * 2).wait()

    run_ranks(2, empty)
    assert world.nccl[0].log == ["init"]


def test_several_works_may_be_under_way(make_world):
    world = make_world(2)

    def launch(rank: int):
        communicator = world.communicators[rank]
        works = [communicator.allreduce(torch.tensor([float(index + rank)]), "sum") for index in range(5)]
        return [work.wait().item() for work in reversed(works)], [work.done() for work in works]

    assert run_ranks(2, launch) == [([9.0, 7.0, 5.0, 3.0, 1.0], [True] * 5)] * 2


def test_wrong_tensors_are_refused_and_the_communicator_goes_on(make_world):
    world = make_world(2)
    communicator = world.communicators[0]
    with pytest.raises(UsageError, match=r"tensors must lie on cpu, .* got one on meta"):
        communicator.allreduce(torch.zeros(2, device="meta"))
    with pytest.raises(UsageError, match=r"out must have the tensor's shape \[2\], got \[3\]"):
        communicator.allreduce(torch.zeros(2), "sum", torch.zeros(3))
    with pytest.raises(UsageError, match=r"one dtype, got torch\.float32 and torch\.float64"):
        communicator.allreduce(torch.zeros(2), "sum", torch.zeros(2, dtype=torch.float64))
    with pytest.raises(UsageError, match="root must be a rank from 0 to 1, got 2"):
        communicator.broadcast(torch.zeros(2), 2)
    with pytest.raises(UsageError, match=r"out must have 3 elements by counts \[1, 2\], got 4"):
        communicator.allgather(torch.zeros(1), torch.zeros(4), [1, 2])
    with pytest.raises(UsageError, match=r"a number for each of the 2 ranks, got \[3\]"):
        communicator.allgather(torch.zeros(3), torch.zeros(3), [3])
    with pytest.raises(UsageError, match="receives must be contiguous"):
        communicator.alltoall([torch.zeros(2)] * 2, [torch.zeros(2, 2)[:, 0]] * 2)
    with pytest.raises(UsageError, match="a tensor for each of the 2 ranks, got 1 to send and 2 to receive"):
        communicator.alltoall([torch.zeros(1)], [torch.zeros(1)] * 2)
    with pytest.raises(UsageError, match=r"sends\[0\] and receives\[0\].* got 1 and 2 elements"):
        communicator.alltoall([torch.zeros(1)] * 2, [torch.zeros(2)] * 2)
    with pytest.raises(UsageError, match="NCCL can't multiply complex numbers"):
        communicator.allreduce(torch.zeros(2, dtype=torch.complex64), "product")

    def reduce(rank: int):
        return world.communicators[rank].allreduce(torch.ones(2), "sum").wait().tolist()

    assert run_ranks(2, reduce) == [[2.0, 2.0]] * 2


def test_a_failed_group_wakes_the_wait_and_aborts(make_world):
    world = make_world(2)
    communicator, fate = world.communicators[0], world.fates[0]
    lost = PeerLost("rank 1 has died", 1)
    threading.Thread(target=fate.fail, args=(lost,)).start()
    # Rank 1 never comes, so the call stays under way until the group fails.
    with pytest.raises(PeerLost, match="rank 1 has died"):
        communicator.allreduce(torch.ones(2), "sum")
    wait_for(lambda: "abort" in world.nccl[0].log)
    with pytest.raises(PeerLost):
        communicator.allreduce(torch.ones(2), "sum")
    communicator.abort()
    communicator.close()
    assert world.nccl[0].log.count("abort") == 1


def test_an_aborted_kernel_is_no_result(make_world):
    world = make_world(2)
    for nccl in world.nccl:
        nccl.busy = True  # the kernels don't end

    def launch(rank: int):
        return world.communicators[rank].allreduce(torch.ones(2), "sum")

    works = run_ranks(2, launch)
    assert not works[0].done()
    for fate in world.fates:
        fate.fail(PeerLost("rank 2 has died", 2))
    wait_for(lambda: all("abort" in nccl.log for nccl in world.nccl))
    # The abort has made the kernels end, and yet there is nothing to be had.
    assert works[0].done()
    for work in works:
        with pytest.raises(PeerLost, match="rank 2 has died"):
            work.wait()


def test_operation_without_an_end_is_given_up(make_world):
    world = make_world(2, timeout=0.2)
    world.nccl[0].busy = True

    def reduce(rank: int):
        work = world.communicators[rank].allreduce(torch.ones(3), "sum")
        return work.wait() if rank else work

    work = run_ranks(2, reduce)[0]
    with pytest.raises(CommTimeoutError, match=r"rank 0 waited .* in allreduce \(sum of float32 \[3\], 12 bytes\)"):
        work.wait()
    assert isinstance(world.fates[0].error, CommTimeoutError)
    wait_for(lambda: "abort" in world.nccl[0].log)


def test_peer_that_never_comes_is_given_up(make_world):
    world = make_world(2, timeout=0.2)
    with pytest.raises(CommTimeoutError, match=r"in broadcast \(uint8 \[4\], 4 bytes, root 0\) through NCCL"):
        world.communicators[0].broadcast(torch.zeros(4, dtype=torch.uint8), 0)


def test_wait_with_a_timeout_of_its_own_leaves_the_operation_alone(make_world):
    world = make_world(1)
    world.nccl[0].busy = True
    work = world.communicators[0].allreduce(torch.ones(2), "sum")
    with pytest.raises(CommTimeoutError, match="is still under way; it goes on"):
        work.wait(0.01)
    assert world.fates[0].error is None
    world.nccl[0].busy = False
    assert work.wait().tolist() == [1.0, 1.0]


def test_error_of_nccl_ends_the_group(make_world):
    world = make_world(1)
    world.nccl[0].fails["ncclAllReduce"] = 5
    with pytest.raises(NcclError, match=r"ncclAllReduce failed in allreduce \(mean of float32"):
        world.communicators[0].allreduce(torch.ones(2))
    assert isinstance(world.fates[0].error, NcclError)


def test_error_within_a_group_of_calls_closes_the_group(make_world):
    world = make_world(2)
    world.nccl[0].fails["ncclSend"] = 4
    with pytest.raises(NcclError, match="ncclSend failed in alltoall"):
        world.communicators[0].alltoall([torch.ones(1)] * 2, [torch.ones(1)] * 2)
    assert world.nccl[0]._group is None


def test_dead_peer_is_named_although_nccl_saw_it_first(make_world, monkeypatch):
    world = make_world(1)
    nccl, fate = world.nccl[0], world.fates[0]
    nccl.busy = True
    work = world.communicators[0].allreduce(torch.ones(2), "sum")
    nccl.fails["ncclCommGetAsyncError"] = 6
    make_error = nccl.error

    def error_and_then_the_watcher(*arguments):
        threading.Thread(target=fate.fail, args=(PeerLost("rank 1 has died", 1),)).start()
        return make_error(*arguments)

    monkeypatch.setattr(nccl, "error", error_and_then_the_watcher)
    with pytest.raises(PeerLost, match="rank 1 has died"):
        work.wait()


def test_peer_that_has_left_with_work_undone_is_lost(make_world):
    world = make_world(2)
    world.fates[0].mark_left(1)
    with pytest.raises(PeerLost, match=r"rank 1 has closed the group while rank 0 is still in allreduce"):
        world.communicators[0].allreduce(torch.ones(2), "sum")


def test_close_is_taken_by_all_together_and_twice(make_world):
    world = make_world(3)
    run_ranks(3, lambda rank: world.communicators[rank].close())
    for nccl in world.nccl:
        assert nccl.log == ["init", "finalize", "destroy"]
    world.communicators[0].close()
    with pytest.raises(GroupClosedError, match="is closed"):
        world.communicators[0].allreduce(torch.ones(1))


def test_close_finishes_what_is_under_way(make_world):
    world = make_world(2)
    for nccl in world.nccl:
        nccl.busy = True  # the kernels don't end

    def launch_and_close(rank: int) -> None:
        communicator, nccl = world.communicators[rank], world.nccl[rank]
        communicator.allreduce(torch.ones(2), "sum")
        closing = threading.Thread(target=communicator.close)
        closing.start()
        closing.join(0.05)
        assert "finalize" not in nccl.log
        nccl.busy = False
        closing.join()

    run_ranks(2, launch_and_close)
    for nccl in world.nccl:
        assert nccl.log == ["init", "ncclAllReduce", "finalize", "destroy"]


def test_close_without_the_others_aborts(make_world):
    world = make_world(2)
    world.communicators[0].close(timeout=0.05)
    assert world.nccl[0].log == ["init", "finalize", "abort"]


def test_results_from_before_a_lonely_close_still_count(make_world):
    world = make_world(2)
    works = run_ranks(2, lambda rank: world.communicators[rank].allreduce(torch.ones(2), "sum"))
    world.communicators[0].close(timeout=0.05)
    assert world.nccl[0].log == ["init", "ncclAllReduce", "finalize", "abort"]
    assert works[0].done()
    assert works[0].wait().tolist() == [2.0, 2.0]


def test_close_of_a_failed_group_aborts_at_once(make_world):
    world = make_world(1)
    world.fates[0].fail(NcclError("x"))
    world.communicators[0].close()
    wait_for(lambda: "abort" in world.nccl[0].log)
    assert "finalize" not in world.nccl[0].log


def test_rank_that_never_comes_to_the_start_is_given_up():
    fate = Fate()
    nccl = HostNccl(HostWorld(2), 0)
    with pytest.raises(CommTimeoutError, match="in making an NCCL communicator of 2 ranks"):
        NcclCommunicator(
            0, 2, CPU, SharedId(), fate, 30, start_timeout=0.1, library=nccl.as_library(), queue=nccl.queue()
        )
    assert "abort" in nccl.log
    fate.close()


def test_others_learn_that_rank_0_has_no_id():
    share = SharedId()
    world = HostWorld(2)
    messages = []

    def make(rank: int) -> None:
        fate = Fate()
        nccl = HostNccl(world, rank)
        nccl.fails["ncclGetUniqueId"] = 2
        try:
            NcclCommunicator(rank, 2, CPU, share, fate, 5, library=nccl.as_library(), queue=nccl.queue())
        except NcclError as error:
            messages.append(str(error))
        fate.close()

    run_ranks(2, make)
    assert any("ncclGetUniqueId failed" in message for message in messages)
    assert any(f"rank 0 must give the {UNIQUE_ID_BYTES} bytes" in message for message in messages)


def wait_for(condition) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)
