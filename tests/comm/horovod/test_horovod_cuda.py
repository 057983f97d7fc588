"""hpsearch_comm.horovod on CUDA tensors. Those here are on the CPU, and Gloo stands in for NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.comm.horovod.horovod_ranks import HorovodRanks

_ROUNDING = 1e-5


@pytest.fixture(scope="module")
def calls() -> Iterator[HorovodRanks]:
    with HorovodRanks(2, "tests.comm.horovod.horovod_calls", cuda=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def trainings() -> Iterator[HorovodRanks]:
    with HorovodRanks(2, "tests.comm.horovod.horovod_training", cuda=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def objects() -> Iterator[HorovodRanks]:
    with HorovodRanks(2, "tests.comm.horovod.horovod_objects", cuda=True) as ranks:
        yield ranks


@pytest.mark.parametrize(
    "function",
    [
        pytest.param("allreduces", marks=pytest.mark.exhaustive),
        "synchronous_ways",
        "gathers",
        "alltoalls",
        "reducescatters",
        "gradients",
        "sparse_reductions",
        "adasums",
    ],
)
def test_results_are_those_that_can_be_worked_out(calls, function):
    calls.call(function)


def test_nccl_carries_them_out(calls):
    calls.call("simple_operations")
    calls.call("alltoalls")
    for asked in calls.call("asked_of_nccl"):
        assert {"started", "allreduce", "alltoall_base"} <= set(asked)


def test_a_tensor_on_the_cpu_of_one_rank_is_refused_and_the_job_goes_on(calls):
    for text in calls.call("disagree_on_the_device"):
        assert "its device must be the same on every rank, but is cuda on rank 0 and cpu on rank 1" in text


def test_ranks_that_have_joined_give_zeros(calls):
    (last, means), (other, more) = calls.call("join_after", [1, 3])
    assert last == other == 1
    assert means == [[3.0, 2, 0.5]]
    assert more == [[3.0, 2, 0.5], [2.0, 2, 0.5], [2.0, 2, 0.5]]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("averages", ["SGD"]),
        ("averages", ["SGD", 3, 2]),
        ("averages_with", [{"gradient_predivide_factor": 4.0}]),
        ("clips", []),
        ("scales_the_loss", []),
        ("sparse_gradients", [False]),
        ("normalizes", [[3, 2], 0.1]),
    ],
)
def test_trainings_step_on_the_mean_of_all_gradients(trainings, function, arguments):
    found: list[Any] = trainings.call(function, *arguments)
    values = [max(value) if isinstance(value, list) else value for value in found]
    assert max(values) < _ROUNDING


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_an_optimizers_state_goes_to_all_ranks(objects, kind):
    assert objects.call("optimizer_state", kind, [2, 0]) == [True] * 2
    assert objects.call("objects")
