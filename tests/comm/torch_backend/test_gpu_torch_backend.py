"""torch.distributed over our groups with tensors on a GPU: ranks that have it alone, and two that share it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.comm.torch_backend.served_ranks import served
from tests.comm.torch_backend.test_torch_trainings import DDP, assert_alike
from tests.comm.torch_backend.torch_ranks import TorchRanks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch built for CUDA"),
]

HOST = {"HPSEARCH_COMM_CUDA": "host"}
NCCL = {"HPSEARCH_COMM_CUDA": "auto", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


ranks = served("tests.comm.torch_backend.torch_scripts")
functional = served("tests.comm.torch_backend.torch_functional")
devices = served("tests.comm.torch_backend.torch_devices")
failing = served("tests.comm.torch_backend.torch_failures")
trainings = served("tests.comm.torch_backend.torch_trainings")


@pytest.fixture(params=["host", "nccl"])
def env(request: pytest.FixtureRequest, devices: TorchRanks) -> dict[str, str]:
    """Two ranks' way, by the environment; skips where NCCL can't be shared."""
    found = HOST if request.param == "host" else NCCL
    path = devices.call(2, "way", device="cuda", **found)[0][0]
    if request.param == "nccl" and path != "nccl":
        pytest.skip(path)
    return found


def test_two_ranks_that_share_a_gpu_go_through_host_memory_and_say_why(devices):
    for first, second, objects in devices.call(2, "way", device="cuda", NCCL_MULTI_RANK_GPU_ENABLE="0"):
        assert first == second
        assert first.startswith("host memory: ")
        assert objects == "cpu"


def test_nccl_that_ranks_cant_share_is_refused_where_it_is_demanded(devices):
    for outcome in devices.outcomes(2, "way", device="cuda", HPSEARCH_COMM_CUDA="nccl", NCCL_MULTI_RANK_GPU_ENABLE="0"):
        assert (outcome.result, outcome.error) == ("DistBackendError", "ConfigurationError"), outcome
        assert "ranks 0 and 1 share a GPU" in outcome.text


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_rank_alone_with_its_gpu(devices, trainings, functional, device):
    assert devices.call(1, "way", device=device) == [["none: a group of one"] * 2 + ["cpu"]]
    devices.call(1, "from_both_devices", device=device)
    devices.call(1, "beside_the_caller", 10, 1_000_000, device=device)
    devices.call(1, "without_a_wait", 500_000, device=device)
    assert functional.call(1, "coalesced", True, device=device) == functional.call(1, "coalesced", True)
    for function, *arguments in (("with_ddp", "plain"), ("with_ddp", "fp16"), ("with_fsdp",)):
        expected = trainings.call(1, function, *arguments)
        assert_alike(trainings.call(1, function, *arguments, device=device), expected)


@pytest.mark.parametrize("how", ["blocking", "async", "future"])
def test_every_collective_gives_what_it_gives_on_the_cpu(ranks, how, env):
    expected = ranks.call(2, "collectives", "blocking", backend="gloo")
    assert ranks.call(2, "collectives", how, device="cuda", **env) == expected


def test_functional_and_coalesced_collectives_too(functional, env):
    expected = functional.call(2, "functional", backend="gloo")
    assert functional.call(2, "functional", device="cuda", **env) == expected
    for later in (True, False):
        expected = functional.call(2, "coalesced", True, backend="gloo")
        assert functional.call(2, "coalesced", later, device="cuda", **env) == expected


def test_messages_and_objects_too(ranks, env):
    calls: list[tuple[Any, ...]] = [("messages", 3), ("messages", 400_000), ("objects",)]
    for function, *arguments in calls:
        expected = ranks.call(2, function, *arguments, backend="gloo")
        assert ranks.call(2, function, *arguments, device="cuda", **env) == expected


def test_groups_of_some_ranks_too(ranks):
    assert ranks.call(3, "groups", device="cuda", **HOST) == ranks.call(3, "groups", backend="gloo")


@pytest.mark.parametrize("function", ["beyond_gloo", "callbacks", "forgotten_inputs"])
def test_what_goes_beyond_gloo_too(ranks, function, env):
    assert ranks.call(2, function, device="cuda", **env) == ranks.call(2, function)


def test_streams_and_devices_may_be_mixed(devices, env):
    devices.call(2, "from_both_devices", device="cuda", **env)
    devices.call(2, "beside_the_caller", 20, 1_000_000, device="cuda", **env)
    devices.call(2, "without_a_wait", 500_000, device="cuda", **env)


@pytest.mark.parametrize("what", DDP)
def test_ddp(trainings, what, env):
    expected = trainings.call(2, "with_ddp", what, backend="gloo")
    assert_alike(trainings.call(2, "with_ddp", what, device="cuda", **env), expected)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("with_sparse_gradients", []),
        ("with_fsdp", []),
        ("with_dtensors", []),
        ("with_tensor_parallel", []),
        ("with_pipeline", ["1f1b"]),
    ],
)
def test_other_trainings(trainings, function, arguments, env):
    expected = trainings.call(2, function, *arguments, backend="gloo")
    assert_alike(trainings.call(2, function, *arguments, device="cuda", **env), expected)


def test_checkpoints_of_sharded_models(trainings, tmp_path, env):
    expected = trainings.call(2, "with_checkpoints", str(tmp_path / "gloo"), backend="gloo")
    found = trainings.call(2, "with_checkpoints", str(tmp_path / "ours"), device="cuda", **env)
    assert_alike(found, expected)


def test_batch_normalization_over_all_ranks(devices, env):
    devices.call(2, "with_sync_batch_norm", device="cuda", **env)


def test_mistakes_are_said_and_the_group_goes_on(devices, failing, env):
    for said in devices.call(2, "one_device", device="cuda", **env):
        assert "all_gather takes tensors on one device, got some on cpu and cuda:0" in said
    for said in devices.call(2, "in_a_graph", device="cuda", **env):
        assert said.count("can't be part of a CUDA graph") == 2
    for said in failing.call(2, "mistaken_and_goes_on", "splits", device="cuda", **env):
        assert "all_to_all_single expected" in said


@pytest.mark.parametrize("what", ["blocking", "async", "future", "message"])
def test_a_rank_that_dies_is_lost_to_the_other(failing, what, env):
    survivor, _ = failing.outcomes(2, "killed", what, device="cuda", **env)
    assert "PeerLost: " in survivor.text
    assert "rank 1" in survivor.text
