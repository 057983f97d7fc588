"""How a group's ranks agree on the way of their CUDA tensors, and what they are told where they don't."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.header import Signature
from tests.comm.collectives.pairwise import pairwise
from tests.comm.host_devices import DeviceRanks, errors_of
from tests.comm.thread_ranks import run_ranks


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


FACTORS: dict[str, list[Any]] = {
    "how": ["shape", "dtype", "op", "root", "operation", "order", "rows", "device"],
    "cuda": ["nccl", "host"],
    "hosts": [["a", "a"], ["a", "b"]],
}


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
        group.allreduce(torch.ones(100), "sum")


@pytest.mark.parametrize(
    ("how", "cuda", "hosts"), [tuple(row.values()) for row in pairwise(FACTORS, lambda _row: True)]
)
def test_ranks_that_disagree_are_told_and_nothing_is_launched(how, cuda, hosts):
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)
        group.barrier()
        group.broadcast(torch.ones(1))
        disagree(group, how)
        group.barrier()

    for error in errors_of(2, work, cuda=cuda, hosts=hosts):
        assert isinstance(error, comm.MismatchError)
        assert "rank 0 calls" in str(error)
        assert "rank 1 calls" in str(error)
        assert "on cuda" in str(error)
    for rank in range(2):
        launched = [name for name in ranks.log(rank) if name not in ("started", "abort")]
        assert launched == ["broadcast"] * (cuda == "nccl")


def test_a_rank_that_does_not_come_to_agree_is_told():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        if group.rank == 0:
            ranks.join(group)
        group.allreduce(torch.ones(5), "sum")

    for error in errors_of(2, work):
        assert isinstance(error, comm.MismatchError)
        assert "rank 0 calls first_cuda_use 0 (direct)" in str(error)
        assert "rank 1 calls allreduce 0 (sum of float32 [5], 20 bytes, direct)" in str(error)


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
    assert ranks.nccl[0][1].log[:2] == ["started", "allreduce"]


def test_a_signature_tells_the_device():
    signature = Signature(7, "allreduce", "nccl", torch.float32, (3, 4), "sum", device=2)
    assert Signature.unpack(signature.pack()) == signature
    assert str(signature) == (
        "allreduce 7 (sum of float32 [3, 4], 48 bytes, on cuda device 2 in order of first use, nccl)"
    )


@pytest.mark.parametrize("hosts", [["a", "a", "a"], ["a", "a", "b"]])
def test_where_nccl_does_not_start_on_one_rank_all_go_through_host_memory(hosts, caplog):
    ranks = DeviceRanks(3)
    ranks.nccl[1][0].fails["start"] = RuntimeError("no device memory")

    def work(group: comm.Group) -> tuple[Any, ...]:
        total = group.allreduce(torch.ones(100), "sum")
        return total.tolist() == [3.0] * 100, group.device_path, group.last_algorithm == "nccl"

    reason = "NCCL hasn't started on rank 1: no device memory"
    with caplog.at_level(logging.WARNING, "hpsearch_comm"):
        assert ranks.run(work, hosts=hosts) == [(True, f"host memory: {reason}", False)] * 3
    warnings = [record.getMessage() for record in caplog.records if "NCCL" in record.getMessage()]
    assert warnings == [f"{reason}. Tensors on cuda:0 travel through host memory"]
    assert [ranks.log(rank) for rank in range(3)] == [[], [], []]


def test_a_demand_for_nccl_that_does_not_start_is_refused_and_the_group_goes_on():
    ranks = DeviceRanks(2)
    ranks.nccl[0][0].fails["start"] = RuntimeError("no device memory")

    def work(group: comm.Group) -> tuple[Any, ...]:
        with pytest.raises(comm.ConfigurationError, match=r"cuda='nccl' .* hasn't started on rank 0: no device memory"):
            group.allreduce(torch.ones(3))
        # Whoever tries again may be luckier.
        return group.allreduce(torch.ones(3), "sum").tolist(), group.device_path

    assert ranks.run(work, cuda="nccl") == [([2.0] * 3, "nccl")] * 2


def test_a_rank_that_dies_while_nccl_starts_is_named_and_the_others_give_it_up():
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)
        if group.rank == 1:
            ranks.parts[1].process_group = None  # type: ignore[assignment]
        group.allreduce(torch.ones(3))

    def outcome(group: comm.Group) -> str:
        try:
            work(group)
        except comm.PeerLost as error:
            return f"lost {error.rank}"
        except TypeError:
            return "died"
        return "ended well"

    assert run_ranks(2, outcome) == ["lost 1", "died"]
    assert "allreduce" not in ranks.log(0)


def test_a_cuda_graph_cannot_hold_a_collective(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(comm.UsageError, match="can't be part of a CUDA graph"):
        CudaStream.current(torch.device("cuda", 0))
