"""Collectives of CUDA tensors through a group: what they give, and how the ranks agree; the GPUs are stand-ins."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.signature import DTYPES, Signature
from tests.comm.host_devices import CPU, DEVICE, DeviceRanks
from tests.comm.thread_ranks import run_ranks

FABRICS: dict[str, dict[str, Any]] = {
    "shared": {},
    "tcp-ring": {"transport": "tcp", "algorithm": "ring"},
    "hosts": {"hosts": ["a", "b", "a"]},
    "hosts-butterfly": {"hosts": ["a", "b", "b"], "algorithm": "butterfly"},
}


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
    """Call every collective in many ways, and give all results."""
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


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def wait_for_abort(ranks: DeviceRanks, rank: int) -> None:
    wait_for(lambda: "abort" in ranks.log(rank))


def errors_of(size: int, work: Callable[[comm.Group], Any], **options: Any) -> list[comm.CommError | None]:
    """Give what each rank's work raised."""

    def caught(group: comm.Group) -> comm.CommError | None:
        try:
            work(group)
        except comm.CommError as error:
            return error
        return None

    return run_ranks(size, caught, **options)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("cuda", ["auto", "host"])
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
    launched = {name for name in ranks.log(0) if name.startswith("nccl")}
    if cuda == "host" or size == 1:
        assert not launched
    else:
        assert {"ncclAllReduce", "ncclBroadcast", "ncclSend"} <= launched
        assert all(ranks.log(rank)[-2:] == ["finalize", "destroy"] for rank in range(size))


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


def test_the_path_is_agreed_once_reported_and_logged(caplog):
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> tuple[Any, ...]:
        before = group.device_path
        group.allreduce(torch.ones(3))
        group.broadcast(torch.ones(3))
        return before, group.device_path, group.last_algorithm

    with caplog.at_level(logging.INFO, "hpsearch_comm"):
        assert ranks.run(work) == [(None, "nccl", "nccl")] * 2
    assert [parts.asked for parts in ranks.parts] == [1, 1]
    lines = sorted(record.getMessage() for record in caplog.records if "cuda" in record.getMessage())
    assert lines == [f"rank {rank}: tensors on cuda:0 travel by nccl" for rank in range(2)]


def test_where_one_rank_lacks_nccl_all_go_through_host_memory(caplog):
    ranks = DeviceRanks(2, {1: {"problem": "no NCCL was found"}})

    def work(group: comm.Group) -> tuple[Any, ...]:
        return group.allreduce(torch.ones(3), "sum").tolist(), group.device_path, group.last_algorithm

    path = "host memory: rank 1: no NCCL was found"
    with caplog.at_level(logging.INFO, "hpsearch_comm"):
        assert ranks.run(work) == [([2.0] * 3, path, "direct")] * 2
    assert f"rank 0: tensors on cuda:0 travel by {path}" in caplog.text


def test_host_memory_can_be_forced_and_then_nobody_looks_for_nccl():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> tuple[Any, ...]:
        with group.duplicate() as other:
            ranks.join(other)
            other.allreduce(torch.ones(3))
            assert other.device_path is not None
            assert other.device_path.startswith("host memory")
        return group.allreduce(torch.ones(3), "sum").tolist(), group.device_path

    assert ranks.run(work, cuda="host") == [([2.0] * 3, "host memory: cuda='host' asks for it")] * 2
    assert [parts.asked for parts in ranks.parts] == [0, 0]


def test_nccl_that_cannot_be_is_refused_with_the_reason_and_the_group_goes_on():
    ranks = DeviceRanks(3, {2: {"nccl": 21805}})

    def work(group: comm.Group) -> list[float]:
        for _ in range(2):
            with pytest.raises(comm.ConfigurationError, match=r"cuda='nccl' needs NCCL .* rank 2 has 2\.18\.5"):
                group.allreduce(torch.ones(3))
        assert group.device_path is None
        del group._preparation
        return group.allreduce(torch.ones(1), "sum").tolist()

    assert ranks.run(work, cuda="nccl") == [[3.0]] * 3


def test_ranks_that_were_told_to_take_different_ways_are_told_so():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)
        object.__setattr__(group._options, "cuda", ("auto", "host")[group.rank])
        with pytest.raises(comm.ConfigurationError, match="same on every rank, got auto on rank 0, host on rank 1"):
            group.allreduce(torch.ones(3))

    run_ranks(2, work)


def test_a_way_that_there_is_not_is_refused():
    with pytest.raises(comm.ConfigurationError, match="cuda must be one of auto, nccl, host, got 'gloo'"):
        comm.Group(0, 1, cuda="gloo")


def test_other_devices_are_refused_and_the_group_goes_on():
    with comm.Group(0, 1) as group:
        with pytest.raises(comm.UsageError, match=r"on the CPU or on a CUDA device, got one on meta: move it"):
            group.allreduce(torch.ones(3, device="meta"))
        with pytest.raises(comm.UsageError, match=r"got one on meta"):
            group.alltoall_async(torch.ones(3, device="meta"))
        assert group.allreduce(torch.ones(1)).tolist() == [1.0]


def test_what_nccl_cannot_reduce_goes_through_host_memory():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> tuple[Any, ...]:
        product = group.allreduce(torch.full((3,), 1 + 1j), "product")
        algorithm = group.last_algorithm
        total = group.allreduce(torch.full((3,), 1 + 1j), "sum")
        return product.tolist(), algorithm, total.tolist(), group.last_algorithm, group.device_path

    assert ranks.run(work) == [([2j] * 3, "direct", [2 + 2j] * 3, "nccl", "nccl")] * 2


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


def disagree(group: comm.Group, how: str) -> None:
    odd = group.rank == 1
    if how == "shape":
        group.allreduce(torch.ones(6 if odd else 5), "sum")
    elif how == "dtype":
        group.reduce_scatter(torch.ones(5, dtype=torch.float64 if odd else torch.float32), "sum")
    elif how == "op":
        group.allreduce(torch.ones(5), "max" if odd else "sum")
    elif how == "root":
        group.broadcast(torch.ones(5), 1 if odd else 0)
    elif how == "operation":
        (group.alltoall if odd else group.allgather)(torch.ones(6))
    elif how == "order":
        handles = [group.allreduce_async(torch.ones(length)) for length in ((2, 1) if odd else (1, 2))]
        for handle in handles:
            handle.wait()
    elif how == "rows":
        group.allgather(torch.ones(2, 4 if odd else 3))
    elif how == "device":
        if odd:
            del group._preparation
        # Many chunks to the one, a single tensor to the other.
        group.allreduce(torch.ones(100), "sum")


@pytest.mark.parametrize("hosts", [["a", "a"], ["a", "b"]])
@pytest.mark.parametrize("cuda", ["nccl", "host"])
@pytest.mark.parametrize("how", ["shape", "dtype", "op", "root", "operation", "order", "rows", "device"])
def test_ranks_that_disagree_are_told_and_nothing_is_launched(how, cuda, hosts):
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)
        group.barrier()
        group.broadcast(torch.ones(1))
        disagree(group, how)
        # Two roots of a tree both send and neither waits; what they sent meets the next operation.
        group.barrier()

    for error in errors_of(2, work, cuda=cuda, hosts=hosts):
        assert isinstance(error, comm.MismatchError)
        assert "rank 0 calls" in str(error)
        assert "rank 1 calls" in str(error)
        assert "on cuda" in str(error)
    for rank in range(2):
        assert [name for name in ranks.log(rank) if name.startswith("nccl")] == ["ncclBroadcast"] * (cuda == "nccl")


def test_a_rank_that_does_not_come_to_agree_is_told():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        if group.rank == 0:
            ranks.join(group)
        group.allreduce(torch.ones(5), "sum")

    for error in errors_of(2, work):
        assert isinstance(error, comm.MismatchError)
        assert "rank 0 calls first_cuda_use 1 (direct)" in str(error)
        assert "rank 1 calls allreduce 1 (sum of float32 [5], 20 bytes, direct)" in str(error)


def test_ranks_that_mean_different_devices_are_told():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        def pick(tensor: torch.Tensor) -> torch.device:
            return torch.device("cuda", len(tensor) % 2)

        ranks.join(group, pick)
        group.allreduce(torch.ones(2))
        group.allreduce(torch.ones(1))
        assert group.allreduce(torch.ones(4), "sum").tolist() == [2.0] * 4
        ranks.join(group, lambda tensor: torch.device("cuda", group.rank))
        group.allreduce(torch.ones(4))

    for error in errors_of(2, work):
        assert isinstance(error, comm.MismatchError)
        assert "on cuda, nccl" in str(error)
        assert "on cuda device 2 in order of first use, nccl" in str(error)
    assert [name for name in ranks.nccl[0][1].log if name.startswith("nccl")] == ["ncclAllReduce"]


def test_a_signature_tells_the_device():
    signature = Signature(7, "allreduce", "nccl", torch.float32, (3, 4), "sum", device=2)
    assert Signature.unpack(signature.pack()) == signature
    assert str(signature) == (
        "allreduce 7 (sum of float32 [3, 4], 48 bytes, on cuda device 2 in order of first use, nccl)"
    )


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


def test_operations_are_launched_while_the_gpu_is_still_busy():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)
        nccl = ranks.nccl[group.rank][0]
        nccl.busy = True
        tensors = [torch.ones(3), torch.ones(4)]
        handles = [group.allreduce_async(tensor, "sum") for tensor in tensors]
        wait_for(lambda: nccl.log.count("ncclAllReduce") == 2)
        assert not any(handle.done() for handle in handles)
        with pytest.raises(comm.CommTimeoutError, match="still under way"):
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
    ranks.nccl[1][0].fails["ncclAllReduce"] = 5

    def work(group: comm.Group) -> None:
        ranks.join(group)
        group.broadcast(torch.ones(1))
        group.allreduce(torch.ones(3))

    zero, one = errors_of(2, work, timeout=20.0)
    assert isinstance(one, comm.NcclError)
    assert "ncclAllReduce failed in allreduce (mean of float32 [3], 12 bytes)" in str(one)
    assert isinstance(zero, comm.CommError)
    for rank in range(2):
        wait_for_abort(ranks, rank)
        assert "finalize" not in ranks.log(rank)


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
        wait_for(lambda: "ncclAllReduce" in ranks.log(0))
        begun.set()
        with pytest.raises(comm.PeerLost, match="its own ValueError: the batch is empty"):
            handle.wait()
        raise comm.UsageError("seen")

    with pytest.raises((comm.UsageError, ValueError)):
        run_ranks(2, work)
    for rank in range(2):
        wait_for_abort(ranks, rank)


def test_an_nccl_that_does_not_start_says_how_to_do_without():
    ranks = DeviceRanks(2)
    for rank in range(2):
        ranks.nccl[rank][0].fails["ncclGetUniqueId"] = 2

    def work(group: comm.Group) -> None:
        ranks.join(group)
        group.allreduce(torch.ones(3))

    errors = errors_of(2, work)
    assert any("HPSEARCH_COMM_CUDA=host" in str(error) for error in errors)
    assert all(isinstance(error, comm.CommError) for error in errors)


def test_close_finishes_what_the_gpu_was_given():
    ranks = DeviceRanks(2)
    tensors = [torch.ones(3), torch.ones(3)]

    def work(group: comm.Group) -> comm.Handle[torch.Tensor]:
        handle = group.allreduce_async(tensors[group.rank], "sum")
        return handle

    for handle in ranks.run(work):
        assert handle.done()
        assert handle.wait().tolist() == [2.0] * 3
    assert [ranks.log(rank) for rank in range(2)] == [["init", "ncclAllReduce", "finalize", "destroy"]] * 2


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
        wait_for(lambda: "ncclAllReduce" in nccl.log)
        if group.rank == 0:
            # The second one is not launched while the first is timed.
            assert nccl.log.count("ncclAllReduce") == 1
            released.set()
        assert released.wait(30)
        nccl.busy = False
        for handle in handles:
            handle.wait()

    trace = tmp_path / "trace.json"
    run_ranks(2, work, timeline=str(trace))
    assert "nccl" in json.dumps(json.loads(trace.read_text()))
