"""Collectives of CUDA tensors through a group: what they give, in which order, how they end. The GPUs are stand-ins."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.header import DTYPES
from tests.comm.host_devices import CPU, DEVICE, DeviceRanks, HostStream, errors_of, wait_for, wait_for_abort
from tests.comm.thread_ranks import run_ranks

FABRICS: dict[str, dict[str, Any]] = {
    "shared": {},
    "tcp-ring": {"transport": "tcp", "algorithm": "ring"},
    "hosts": {"hosts": ["a", "b", "a"]},
    "hosts-butterfly": {"hosts": ["a", "b", "b"], "algorithm": "butterfly"},
}


WORLDS = [(2, "shared"), (3, "tcp-ring"), (3, "hosts"), (2, "hosts-butterfly")]


def values(rank: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * length + rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, (length,), generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(length, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(length, generator=generator).to(dtype)
    return torch.randint(0, 100, (length,), generator=generator).to(dtype)


def everything(group: comm.Group) -> list[torch.Tensor]:
    """Call every collective in many ways, and return all results."""
    rank, size = group.rank, group.size
    results = []
    for length in (0, 1, 5, 1001):
        results.append(group.allreduce(values(rank, length), "sum"))
        results.append(group.broadcast(values(rank, length), size - 1))
        results.append(group.allgather(values(rank, length * (1 + rank))))
        results.append(group.reduce_scatter(values(rank, length), "max"))
        splits = [length * (rank + peer) % 7 for peer in range(size)]
        rows, counts = group.alltoall(values(rank, 3 * sum(splits)).view(-1, 3), splits)
        results += [rows, torch.tensor(counts)]
    for dtype in DTYPES:
        results.append(group.broadcast(values(rank, 67, dtype)))
        results.append(group.allgather(values(rank, 20 + rank, dtype)))
        results.append(group.alltoall(values(rank, 4 * size, dtype)))
        if dtype is not torch.bool and not (dtype.itemsize == 1 and dtype.is_floating_point):
            results.append(group.allreduce(values(rank, 40, dtype), "sum"))
            results.append(group.reduce_scatter(values(rank, 41, dtype), "sum"))
    complex_numbers = values(rank, 30, torch.complex64)
    results.append(group.allreduce(complex_numbers, "product"))
    results.append(group.reduce_scatter(complex_numbers, "product"))
    # Any layout, with and without `out`.
    turned = values(rank, 60).view(6, 10).t()
    assert group.allreduce(turned) is turned
    results.append(turned)
    sliced = values(rank, 60).view(6, 10)[:, ::2]
    out = torch.zeros(5, 6).t()
    assert group.allreduce(sliced, "sum", out) is out
    results += [out, sliced, group.broadcast(values(rank, 60).view(6, 10)[:, ::2], size - 1)]
    gathered = torch.zeros(5, 6 * size).t()
    assert group.allgather(sliced, gathered) is gathered
    results += [gathered, group.allgather(sliced), group.reduce_scatter(turned.t(), "mean")]
    part = torch.zeros(6, 10 // size + (rank < 10 % size)).t()
    assert group.reduce_scatter(turned, "sum", part) is part
    results += [part, group.alltoall(values(rank, 12 * size).view(4, 3 * size).t())]
    scalar = torch.tensor(float(rank))
    results += [group.allreduce(scalar), group.broadcast(torch.tensor(rank)), group.allgather(torch.tensor(rank))]
    parameter = torch.nn.Parameter(values(rank, 9))
    assert group.allreduce(parameter) is parameter
    results += [parameter.detach(), group.allgather(torch.zeros(rank, 0, 2))]
    return results


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("cuda", "size", "fabric"),
    [("auto", 1, "shared"), *((cuda, size, fabric) for cuda in ("auto", "host") for size, fabric in WORLDS)],
)
def test_they_give_what_those_of_cpu_tensors_give(cuda, size, fabric):
    ranks = DeviceRanks(size)

    def work(group: comm.Group) -> None:
        expected = everything(group)
        assert group.device_path is None
        ranks.join(group)
        found = everything(group)
        assert len(found) == len(expected)
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one.dtype is other.dtype
            assert one.shape == other.shape, index
            if one.dtype in (torch.uint16, torch.uint32, torch.uint64) or one.itemsize == 1:
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), index
            else:
                # NCCL adds 16-bit floats in 16 bits.
                tolerance = 2e-2 if one.itemsize == 2 and one.is_floating_point() else 1e-5
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)

    options = FABRICS[fabric] | {"cuda": cuda}
    if "hosts" in options:
        options["hosts"] = options["hosts"][:size]
    run_ranks(size, work, **options)
    launched = set(ranks.log(0))
    if cuda == "host" or size == 1:
        assert not launched
    else:
        assert {"allreduce", "broadcast", "alltoall_base", "_reduce_scatter_base", "_allgather_base"} <= launched
        assert all(ranks.log(rank)[-1] == "shutdown" for rank in range(size))


@pytest.mark.parametrize("cuda", ["nccl", "host"])
def test_what_is_gathered_may_lie_anywhere_in_the_result(cuda):
    def work(group: comm.Group) -> list[list[float]]:
        rank = group.rank
        results = []
        for length, runs in (
            (8, [(4, 8), (0, 4)]),
            (8, [(2, 6), (2, 6)]),
            (7, [(2, 6), (3, 6)]),
            (7, [(0, 4), (4, 7)]),
        ):
            out = torch.arange(float(length)) + 100 * rank
            start, stop = runs[rank]
            results.append(group.allgather(out[start:stop], out).tolist())
        return results

    for found in DeviceRanks(2).run(work, cuda=cuda):
        assert found == [
            [4, 5, 6, 7, 100, 101, 102, 103],
            [2, 3, 4, 5, 102, 103, 104, 105],
            [2, 3, 4, 5, 103, 104, 105],
            [0, 1, 2, 3, 104, 105, 106],
        ]


@pytest.mark.parametrize("cuda", ["nccl", "host"])
def test_conjugated_tensors_travel_by_value(cuda):
    def work(group: comm.Group) -> list[list[complex]]:
        def mine() -> torch.Tensor:
            return torch.tensor([1 + 2j, 3 - 1j]).mul_(1 + group.rank).conj()

        return [
            group.allreduce(mine(), "sum").tolist(),
            group.broadcast(mine(), 1).tolist(),
            group.allgather(mine()).tolist(),
            group.reduce_scatter(mine(), "sum").tolist(),
            group.alltoall(mine()).tolist(),
        ]

    for rank, found in enumerate(DeviceRanks(2).run(work, cuda=cuda)):
        one, other = [1 - 2j, 3 + 1j], [2 - 4j, 6 + 2j]
        assert found == [[3 - 6j, 9 + 3j], other, one + other, [[3 - 6j], [9 + 3j]][rank], [one[rank], other[rank]]]


def test_what_nccl_cannot_reduce_goes_through_host_memory():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> tuple[Any, ...]:
        product = group.allreduce(torch.full((3,), 1 + 1j), "product")
        algorithm = group.last_algorithm
        total = group.allreduce(torch.full((3,), 1 + 1j), "sum")
        return product.tolist(), algorithm, total.tolist(), group.last_algorithm, group.device_path

    assert ranks.run(work) == [([2j] * 3, "direct", [2 + 2j] * 3, "nccl", "nccl")] * 2


@pytest.mark.parametrize("cuda", ["nccl", "host"])
def test_an_out_of_another_length_is_told_at_the_end_and_the_group_goes_on(cuda):
    def work(group: comm.Group) -> list[float]:
        mine = torch.full((1 + group.rank,), float(group.rank))
        for call in (group.allgather, lambda *given: group.allgather_async(*given).wait()):
            if group.rank == 1:
                with pytest.raises(comm.UsageError, match=r"must be torch.float32 \[3\] on .*, got .*\[2\]"):
                    call(mine, torch.zeros(2))
            else:
                assert call(mine, torch.zeros(3)).tolist() == [0, 1, 1]
        return group.allreduce(mine[:1], "sum").tolist()

    assert DeviceRanks(2).run(work, cuda=cuda) == [[1.0]] * 2


@pytest.mark.parametrize("cuda", ["nccl", "host"])
def test_wrong_arguments_are_refused_before_anything_travels(cuda):
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> list[float]:
        group.allreduce(torch.ones(1))
        with pytest.raises(comm.UsageError, match=r"out of allreduce must be torch.float32 \[3\]"):
            group.allreduce(torch.ones(3), out=torch.ones(4))
        with pytest.raises(comm.UsageError, match=r"out of allgather must be .* on cpu, got .* on meta"):
            group.allgather(torch.ones(3), out=torch.ones(6, device="meta"))
        with pytest.raises(comm.UsageError, match="root must be a rank from 0 to 1, got 2"):
            group.broadcast(torch.ones(3), 2)
        with pytest.raises(comm.UsageError, match="got one without dimensions"):
            group.reduce_scatter(torch.tensor(1.0))
        with pytest.raises(comm.UsageError, match="got one without dimensions"):
            group.alltoall(torch.tensor(1.0))
        with pytest.raises(comm.UsageError, match="needs a number of rows"):
            group.alltoall(torch.ones(3))
        with pytest.raises(comm.UsageError, match='did you mean op="mean"'):
            group.allreduce(torch.ones(3), "avg")
        return group.allreduce(torch.ones(1), "sum").tolist()

    assert ranks.run(work, cuda=cuda) == [[2.0]] * 2


@pytest.mark.parametrize("fabric", ["shared", "hosts"])
@pytest.mark.parametrize("cuda", ["nccl", "host"])
def test_asynchronous_operations_of_both_kinds_run_in_one_order(cuda, fabric):
    ranks = DeviceRanks(3)

    def work(group: comm.Group) -> None:
        ranks.join(group, lambda tensor: CPU if tensor.dtype is torch.float64 else DEVICE)
        handles: list[comm.Handle[torch.Tensor]] = []
        for index in range(30):
            dtype = torch.float64 if index % 3 == 0 else torch.complex64 if index % 5 == 0 else torch.float32
            op = "product" if index % 5 == 0 else "sum"
            handles.append(group.allreduce_async(torch.full((40,), 2, dtype=dtype), op))
            if index % 7 == 0:
                assert group.allreduce(torch.ones(3), "sum").tolist() == [3.0] * 3
        gathered = group.allgather_async(torch.tensor([group.rank]))
        shared = group.reduce_scatter_async(torch.ones(3), "sum")
        moved = group.alltoall_async(torch.full((3,), group.rank))
        sent = group.broadcast_async(torch.tensor([group.rank]), 2)
        for index, handle in reversed(list(enumerate(handles))):
            assert (handle.wait(30) == (8 if index % 5 == 0 else 6)).all()
            assert handle.done()
        assert gathered.wait().tolist() == [0, 1, 2]
        assert shared.wait().tolist() == [3.0]
        assert moved.wait()[0].tolist() == [0, 1, 2]
        assert moved.wait()[1] == [1, 1, 1]
        assert sent.wait().tolist() == [2]

    run_ranks(3, work, cuda=cuda, **FABRICS[fabric])


@pytest.mark.parametrize("cuda", ["nccl", "host"])
def test_new_results_are_lent_to_the_callers_stream(cuda, monkeypatch):
    ranks = DeviceRanks(2)
    streams = [HostStream(), HostStream()]
    for rank in range(2):
        monkeypatch.setattr(ranks.parts[rank], "current", lambda _device, rank=rank: streams[rank])

    def work(group: comm.Group) -> None:
        mine = torch.ones(4)
        group.allreduce(mine)
        assert streams[group.rank].kept == []
        results = [group.allgather(mine), group.reduce_scatter(mine), group.alltoall(mine)]
        assert all(kept is result for kept, result in zip(streams[group.rank].kept, results, strict=True))

    ranks.run(work, cuda=cuda)


def test_operations_are_launched_while_the_gpu_is_still_busy():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)
        nccl = ranks.nccl[group.rank][0]
        nccl.busy = True
        tensors = [torch.ones(3), torch.ones(4)]
        handles = [group.allreduce_async(tensor, "sum") for tensor in tensors]
        wait_for(lambda: nccl.log.count("allreduce") == 2)
        assert not any(handle.done() for handle in handles)
        with pytest.raises(comm.CommTimeoutError, match="still running"):
            handles[0].wait(0.01)
        nccl.busy = False
        assert [handle.wait() is tensor for handle, tensor in zip(handles, tensors, strict=True)] == [True, True]
        assert all(handle.done() for handle in handles)
        assert handles[1].wait().tolist() == [2.0] * 4

    run_ranks(2, work)


def test_a_handle_gives_the_error_of_its_operation():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        group.barrier()
        group.broadcast(torch.ones(1))
        handle = group.allgather_async(torch.ones(2), out=torch.ones(5))
        with pytest.raises(comm.CommError, match=r"out of allgather must be torch.float32 \[4\]"):
            handle.wait()
        assert handle.done()

    ranks.run(work)


def test_an_error_of_nccl_ends_the_group_on_every_rank_and_the_communicators():
    ranks = DeviceRanks(2)
    ranks.nccl[1][0].fails["allreduce"] = RuntimeError("unhandled cuda error")

    def work(group: comm.Group) -> None:
        ranks.join(group)
        group.broadcast(torch.ones(1))
        group.allreduce(torch.ones(3))

    zero, one = errors_of(2, work, timeout=20.0)
    assert isinstance(one, comm.NcclError)
    assert "NCCL failed in allreduce 3 (mean of float32 [3], 12 bytes, on cuda, nccl): unhandled cuda error" in str(one)
    assert isinstance(zero, comm.CommError)
    for rank in range(2):
        wait_for_abort(ranks, rank)
        assert "shutdown" not in ranks.log(rank)


def test_a_rank_that_leaves_with_an_error_ends_the_others_wait_for_the_gpu():
    ranks = DeviceRanks(2)
    begun = threading.Event()

    def work(group: comm.Group) -> None:
        ranks.join(group)
        group.broadcast(torch.ones(1))
        ranks.nccl[group.rank][0].busy = True
        handle = group.allreduce_async(torch.ones(3))
        if group.rank == 1:
            assert begun.wait(30)
            raise ValueError("the batch is empty")
        wait_for(lambda: "allreduce" in ranks.log(0))
        begun.set()
        with pytest.raises(comm.PeerLost, match="its own ValueError: the batch is empty"):
            handle.wait()
        raise comm.UsageError("seen")

    with pytest.raises((comm.UsageError, ValueError)):
        run_ranks(2, work)
    for rank in range(2):
        wait_for_abort(ranks, rank)


def test_close_finishes_what_the_gpu_was_given():
    ranks = DeviceRanks(2)
    tensors = [torch.ones(3), torch.ones(3)]

    def work(group: comm.Group) -> comm.Handle[torch.Tensor]:
        handle = group.allreduce_async(tensors[group.rank], "sum")
        return handle

    for handle in ranks.run(work):
        assert handle.done()
        assert handle.wait().tolist() == [2.0] * 3
    assert [ranks.log(rank) for rank in range(2)] == [["started", "allreduce", "shutdown"]] * 2


@pytest.mark.parametrize("queued", [False, True])
def test_dropped_results_are_freed_without_the_garbage_collector(monkeypatch, queued):
    monkeypatch.setattr(HostStream, "keep", lambda stream, tensor: None)

    def work(group: comm.Group) -> list[bool]:
        results = []
        for _ in range(30):
            tensor = torch.ones(3)
            results.append(weakref.ref(group.allgather_async(tensor).wait() if queued else group.allgather(tensor)))
        return [result() is None for result in results]

    gc.disable()
    try:
        for freed in DeviceRanks(2).run(work):
            assert all(freed[:-1])
    finally:
        gc.enable()


def test_after_close_it_says_so():
    ranks = DeviceRanks(2)
    groups = ranks.run(lambda group: [group, group.allreduce(torch.ones(1))][0])
    for group in groups:
        assert isinstance(group, comm.Group)
        with pytest.raises(comm.GroupClosedError):
            group.allreduce(torch.ones(1))
        with pytest.raises(comm.GroupClosedError):
            group.allreduce_async(torch.ones(1))


def test_a_recorded_operation_lasts_until_the_gpu_has_done_it(tmp_path):
    ranks = DeviceRanks(2)
    released = threading.Event()

    def work(group: comm.Group) -> None:
        ranks.join(group)
        nccl = ranks.nccl[group.rank][0]
        group.broadcast(torch.ones(1))
        nccl.busy = True
        handles = [group.allreduce_async(torch.ones(length)) for length in (3, 4)]
        wait_for(lambda: "allreduce" in nccl.log)
        if group.rank == 0:
            # The second one is not launched while the first is timed.
            assert nccl.log.count("allreduce") == 1
            released.set()
        assert released.wait(30)
        nccl.busy = False
        for handle in handles:
            handle.wait()

    run_ranks(2, work, timeline=str(tmp_path / "trace.json"))
    for rank in range(2):
        assert "nccl" in json.dumps(json.loads((tmp_path / f"trace.rank{rank}.json").read_text()))


def train(group: comm.Group, steps: int, step: Callable[[int], object] = lambda number: None) -> list[torch.Tensor]:
    """Average the gradients of a model in several buckets, and return those of the last step."""
    model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(4)))
    for index, parameter in enumerate(model.parameters()):  # ranks are threads, and share torch's generator
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(index))
    parallel = comm.DataParallel(model, group, bucket_mb=0.01)
    for number in range(steps):
        step(number)
        model.zero_grad()
        parallel(torch.full((3, 40), 1.0 + group.rank)).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_a_training_step_whose_buckets_are_agreed_meets_nobody_on_the_host(monkeypatch):
    ranks = DeviceRanks(2)
    expected = run_ranks(2, lambda group: train(group, 1))[0]

    def work(group: comm.Group) -> tuple[list[torch.Tensor], list[int], int]:
        host = group._prepare.host
        meetings: list[int] = []
        now = 0

        def counted(*arguments: Any) -> None:
            meetings.append(now)
            barrier(*arguments)

        def begin(number: int) -> None:
            nonlocal now
            now = number

        barrier = host.barrier
        monkeypatch.setattr(host, "barrier", counted)
        gradients = train(group, 3, begin)
        return gradients, meetings, ranks.log(group.rank).count("allreduce")

    for gradients, meetings, launched in ranks.run(work):
        assert launched >= 3 * 2
        assert set(meetings) <= {0}  # of the agreement on the device and the buckets
        for found, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("other", ["barrier", "allreduce", "allgather"])
def test_a_rank_that_calls_something_else_within_a_training_step_is_told(other):
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)

        def step(number: int) -> None:
            if number == 2 and group.rank == 1:
                getattr(group, other)(*[] if other == "barrier" else [torch.ones(2)])

        train(group, 3, step)

    for error in errors_of(2, work):
        assert isinstance(error, comm.MismatchError), error
        assert "rank 0 calls allreduce" in str(error)
        assert f"rank 1 calls {other}" in str(error)
