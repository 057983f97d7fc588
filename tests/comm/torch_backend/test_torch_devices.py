"""torch.distributed over our groups with tensors on CUDA devices. What stands in for these lies on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import hpsearch_comm as comm
from hpsearch_comm.torch_backend.meeting import check_backends
from hpsearch_comm.torch_backend.plans import check_devices, check_input
from hpsearch_comm.torch_backend.process_group import CommProcessGroup
from hpsearch_comm.torch_backend.work import CallersStreams
from tests.comm.host_devices import DeviceRanks, wait_for
from tests.comm.thread_ranks import run_ranks
from tests.comm.torch_backend.served_ranks import served
from tests.comm.torch_backend.test_torch_trainings import assert_alike

ranks = served("tests.comm.torch_backend.torch_scripts")
functional = served("tests.comm.torch_backend.torch_functional")
devices = served("tests.comm.torch_backend.torch_devices")
failing = served("tests.comm.torch_backend.torch_failures")
trainings = served("tests.comm.torch_backend.torch_trainings")


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("how", ["blocking", "async", "future"])
def test_every_collective_gives_what_it_gives_on_the_cpu(ranks, size, how):
    expected = ranks.call(size, "collectives", "blocking", backend="gloo")
    assert ranks.call(size, "collectives", how, device="stand-in") == expected


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("function", "arguments"), [("functional", []), ("coalesced", [True]), ("coalesced", [False])])
def test_functional_and_coalesced_collectives_too(functional, size, function, arguments):
    expected = functional.call(size, function, *([True] if arguments else []), backend="gloo")
    assert functional.call(size, function, *arguments, device="stand-in") == expected


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("size", "function", "arguments"),
    [(2, "messages", [3]), (2, "groups", []), (2, "objects", []), (3, "messages", [400_000]), (3, "groups", [])],
)
def test_messages_groups_and_objects_too(ranks, size, function, arguments):
    if function == "groups":
        size = 3
    expected = ranks.call(size, function, *arguments, backend="gloo")
    assert ranks.call(size, function, *arguments, device="stand-in") == expected


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("function", ["beyond_gloo", "callbacks", "two_threads"])
def test_what_goes_beyond_gloo_too(ranks, function):
    assert ranks.call(2, function, device="stand-in") == ranks.call(2, function)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("size", "function", "arguments"),
    [
        (2, "with_ddp", ["plain"]),
        (2, "with_fsdp", []),
        (2, "with_sparse_gradients", []),
        (1, "with_ddp", ["fp16"]),
        (2, "with_ddp", ["fp16"]),
        (2, "with_ddp", ["convnet"]),
        (2, "with_tensor_parallel", []),
        (3, "with_ddp", ["power"]),
        (3, "with_dtensors", []),
        (3, "with_pipeline", ["1f1b"]),
        (4, "with_hybrid_fsdp", []),
    ],
)
def test_trainings_too(trainings, size, function, arguments):
    expected = trainings.call(size, function, *arguments, backend="gloo")
    assert_alike(trainings.call(size, function, *arguments, device="stand-in"), expected)


@pytest.mark.parametrize("size", [1, 2])
def test_the_way_is_that_of_our_groups_and_objects_stay_on_the_cpu(devices, size):
    path = "none: a group of one" if size == 1 else "nccl"
    assert devices.call(size, "way", device="stand-in") == [[path, path, "cpu"]] * size
    assert devices.call(size, "way") == [[None, None, "cpu"]] * size


@pytest.mark.parametrize("size", [1, 3])
def test_streams_threads_and_devices_may_be_mixed(devices, size):
    devices.call(size, "from_both_devices", device="stand-in")
    devices.call(size, "beside_the_caller", 3, 500, device="stand-in")
    devices.call(size, "without_a_wait", 500, device="stand-in")


@pytest.mark.parametrize("what", ["async", "future", "message"])
def test_a_rank_that_dies_is_lost_to_the_others(failing, what):
    *others, _ = failing.outcomes(3, "killed", what, device="stand-in")
    for outcome in others:
        assert "PeerLost: " in outcome.text
        assert "rank 2" in outcome.text


# Refused before anything travels. ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [{}, {"cpu": "hpsearch"}, {"cuda": "hpsearch"}, {"cpu": "hpsearch", "cuda": "hpsearch"}],
)
def test_a_group_may_be_made_for_the_cpu_for_cuda_devices_and_for_both(asked):
    check_backends(asked)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"cpu": "gloo", "cuda": "hpsearch"}, r'got "cpu:gloo,cuda:hpsearch".* dist.new_group\(backend="gloo"\)'),
        ({"cpu": "hpsearch", "cuda": "nccl"}, r'got "cpu:hpsearch,cuda:nccl".* dist.new_group\(backend="nccl"\)'),
        ({"cpu": "hpsearch", "xpu": "hpsearch"}, r'on CUDA devices, got "cpu:hpsearch,xpu:hpsearch".* tensors of xpu'),
    ],
)
def test_other_backends_and_other_devices_are_refused(asked, text):
    with pytest.raises(comm.UsageError, match=text):
        check_backends(asked)


@pytest.mark.parametrize("backend", ["cpu:hpsearch", "cuda:hpsearch", "cpu:hpsearch,cuda:hpsearch"])
def test_a_group_takes_tensors_on_the_cpu_whatever_it_was_made_for(devices, backend):
    assert devices.call(2, "way", backend=backend) == [[None, None, "cpu"]] * 2


def test_tensors_of_two_devices_are_refused():
    check_devices("all_gather", [torch.ones(1), torch.ones(2)])
    with pytest.raises(comm.UsageError, match="all_gather takes tensors on one device, got some on cpu and meta: move"):
        check_devices("all_gather", [torch.ones(1), torch.ones(1, device="meta")])
    with pytest.raises(comm.UsageError, match="on the CPU or on a CUDA device, got one on meta"):
        check_input("all_gather", torch.ones(1, device="meta"))


CALLS: dict[str, Callable[[CommProcessGroup, torch.Tensor, torch.Tensor], object]] = {
    "all_gather": lambda group, one, two: group.allgather([[two]], [one]),
    "all_gather_single": lambda group, one, two: group.all_gather_single(two, one),
    "reduce_scatter": lambda group, one, two: group.reduce_scatter([two], [[one]]),
    "reduce_scatter_single": lambda group, one, two: group.reduce_scatter_single(two, one),
    "all_to_all": lambda group, one, two: group.alltoall([two], [one]),
    "all_to_all_single": lambda group, one, two: group.all_to_all_single(two, one, [], []),
    "gather": lambda group, one, two: group.gather([[two]], [one], dist.GatherOptions()),
    "scatter": lambda group, one, two: group.scatter([two], [[one]], dist.ScatterOptions()),
}


class Elsewhere(torch.Tensor):
    """A tensor on the CPU that says that it lies on another device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 1)

    def detach(self) -> Elsewhere:
        return self


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("which", [0, 1])
def test_every_collective_refuses_tensors_of_two_devices(name, which, monkeypatch):
    monkeypatch.setattr("hpsearch_comm.torch_backend.plans.check_tensor", lambda _name, tensor: tensor)
    tensors = [torch.ones(3), torch.ones(3)]
    tensors[which] = tensors[which].as_subclass(Elsewhere)
    with (
        comm.Group(0, 1) as group,
        pytest.raises(dist.DistBackendError, match=f"{name} takes tensors on one device, got some on cpu and cuda:1"),
    ):
        CALLS[name](CommProcessGroup(group, b"", 60.0), *tensors)


def test_what_is_reduced_for_other_ranks_must_be_on_the_device_too(monkeypatch):
    monkeypatch.setattr("hpsearch_comm.torch_backend.plans.check_tensor", lambda _name, tensor: tensor)

    def work(group: comm.Group) -> None:
        tensors = [torch.ones(3), torch.ones(3)]
        tensors[1 - group.rank] = tensors[1 - group.rank].as_subclass(Elsewhere)
        with pytest.raises(dist.DistBackendError, match="reduce_scatter takes tensors on one device"):
            CommProcessGroup(group, b"", 60.0).reduce_scatter([torch.ones(3)], [tensors])

    run_ranks(2, work)


def test_torch_is_told_which_devices_a_group_takes():
    with comm.Group(0, 1) as group:
        process_group = CommProcessGroup(group, b"", 60.0)
        assert process_group._device_types == [torch.device("cpu"), torch.device("cuda")]
        # What init_process_group(device_id=...) asks.
        assert not process_group._get_backend(torch.device("cuda", 0)).supports_splitting
        with pytest.raises(RuntimeError, match="No backend type associated with device type xpu"):
            process_group._get_backend(torch.device("xpu"))


# While a GPU is busy. ----------------------------------------------------------------------------------------------


@pytest.fixture
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch's futures without their devices, for which it isn't built here."""
    monkeypatch.setattr(CallersStreams, "devices", [])


def test_a_work_ends_when_the_gpu_has_done_it_and_not_when_it_was_given_to_it(no_devices):
    ranks = DeviceRanks(2)

    def work(group: comm.Group) -> None:
        ranks.join(group)
        process_group, nccl = CommProcessGroup(group, b"", 60.0), ranks.nccl[group.rank][0]
        group.broadcast(torch.ones(1))
        nccl.busy = True
        outputs = [torch.zeros(2), torch.zeros(2)]
        works = [process_group.allreduce([torch.ones(3)]), process_group.allgather([outputs], [torch.ones(2)])]
        futures = [each.get_future() for each in works]
        wait_for(lambda: "_allgather_base" in nccl.log)
        assert not any(each.is_completed() for each in works)
        with pytest.raises(dist.DistBackendError, match="still running"):
            works[0].wait(timedelta(seconds=0.01))
        assert not any(future.done() for future in futures)
        nccl.busy = False
        assert futures[0].wait()[0].tolist() == [2.0] * 3
        assert [output.tolist() for output in futures[1].wait()] == [[1.0, 1.0]] * 2
        assert all(each.is_completed() and each.is_success() for each in works)

    run_ranks(2, work)


def test_a_future_gets_what_has_ended_the_group_while_the_gpu_was_busy(no_devices):
    ranks = DeviceRanks(2)
    begun = threading.Event()

    def work(group: comm.Group) -> None:
        ranks.join(group)
        process_group, nccl = CommProcessGroup(group, b"", 60.0), ranks.nccl[group.rank][0]
        group.broadcast(torch.ones(1))
        nccl.busy = True
        future = process_group.allreduce([torch.ones(3)]).get_future()
        if group.rank == 1:
            assert begun.wait(30)
            raise ValueError("the batch is empty")
        wait_for(lambda: "allreduce" in nccl.log)
        begun.set()
        with pytest.raises(RuntimeError, match=r"PeerLost: .* its own ValueError: the batch is empty"):
            future.wait()
        raise comm.UsageError("seen")

    with pytest.raises((comm.UsageError, ValueError)):
        run_ranks(2, work)
