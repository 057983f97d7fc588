"""Training on several ranks gives what training on one rank gives with the same batches."""

from __future__ import annotations

import pytest
import torch

from hpsearch_comm import Group
from tests.comm.collectives.pairwise import every_second
from tests.comm.data_parallel.branching_model import Training
from tests.comm.thread_ranks import run_ranks

TRAININGS = {
    "sgd": Training(),
    "adam": Training(optimizer="adam"),
    "zeroed gradients": Training(set_to_none=False),
    "clipped": Training(clip=True),
    "accumulated": Training(parts=3),
    "accumulated, zeroed gradients": Training(parts=3, set_to_none=False, optimizer="adam"),
    "unused parameters": Training(branches=True),
    "unused parameters, adam": Training(branches=True, optimizer="adam"),
    "unused parameters, zeroed gradients": Training(branches=True, set_to_none=False, optimizer="adam"),
    "unused parameters, accumulated": Training(branches=True, parts=2),
    "unequal shards": Training((5, 2)),
    "unequal shards, adam": Training((5, 2), optimizer="adam", clip=True),
    "all at once": Training((5, 2), branches=True, parts=2, clip=True, optimizer="adam", set_to_none=False),
    "many buckets": Training(branches=True, arguments=(("bucket_mb", 1e-4),)),
}


FEW = 12
"""Steps that are enough in float64, where any mistake shows: each kind of batch comes four times."""


def widen(training: Training) -> Training:
    return training.but(shards=(*training.shards, 4 if len(set(training.shards)) == 1 else 3))


def assert_same_bits(results: list[list[torch.Tensor]]) -> None:
    for result in results[1:]:
        for theirs, ours in zip(result, results[0], strict=True):
            assert torch.equal(theirs, ours)


WAYS = ("at the end", "overlapping", "large gradients")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Arguments for each way of averaging, whatever the machine would choose."""
    if request.param == "large gradients":
        monkeypatch.setattr("hpsearch_comm.data_parallel.buckets.LARGE", 128)
    return (("overlap", request.param != "at the end"),)


SIZES_AND_WAYS = [(2, "at the end"), (2, "large gradients"), (3, "overlapping")]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("name", "size", "way"),
    [
        pytest.param(name, *how, marks=() if number % 3 == place else pytest.mark.exhaustive)
        for place, how in enumerate(SIZES_AND_WAYS)
        for number, name in enumerate(TRAININGS)
    ],
    indirect=["way"],
)
def test_ranks_match_one_rank_with_the_global_batch(name, size, way):
    training = TRAININGS[name] if size == 2 else widen(TRAININGS[name])
    training = training.but(arguments=training.arguments + way, steps=FEW)
    expected = training.on_one_rank()
    results = run_ranks(size, training.run)
    assert_same_bits(results)
    for ours, theirs in zip(results[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("name", ["sgd", "adam", "accumulated", "unused parameters", "unequal shards", "all at once"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_match_one_rank_to_float32_rounding(name, size):
    training = (TRAININGS[name] if size == 2 else widen(TRAININGS[name])).but(dtype=torch.float32)
    expected = training.on_one_rank()
    results = run_ranks(size, training.run)
    assert_same_bits(results)
    for ours, theirs in zip(results[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("name", ["sgd", "adam", "clipped", "accumulated", "unused parameters"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_distributed_optimizer_matches_one_rank_too(name, size):
    training = (TRAININGS[name] if size == 2 else widen(TRAININGS[name])).but(wrapper="optimizer", steps=FEW)
    expected = training.on_one_rank()
    results = run_ranks(size, training.run)
    assert_same_bits(results)
    for ours, theirs in zip(results[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.some_cases(1)
def test_two_runs_give_the_same_bits(way):
    training = TRAININGS["all at once"].but(shards=(3, 1, 2), dtype=torch.float32, arguments=way, steps=FEW)
    assert_same_bits([run_ranks(3, training.run)[0] for _ in range(2)])


@pytest.mark.parametrize("options", [{"transport": "tcp"}, {"hosts": ["a", "b", "a"]}], ids=["tcp", "two hosts"])
def test_ranks_of_several_hosts_match_one_rank(options):
    training = widen(TRAININGS["unused parameters"]).but(steps=FEW)
    results = run_ranks(3, training.run, **options)
    assert_same_bits(results)
    for ours, theirs in zip(results[0], training.on_one_rank(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("compression", "set_to_none", "way"), every_second(("fp16", "bf16"), (True, False), WAYS), indirect=["way"]
)
def test_compressed_gradients_train_nearly_the_same(compression, set_to_none, way):
    tolerance = {"fp16": 2e-3, "bf16": 2e-2}[compression]
    training = TRAININGS["unused parameters"].but(
        arguments=(("compression", compression), *way), dtype=torch.float32, set_to_none=set_to_none
    )
    results = run_ranks(2, training.run)
    assert_same_bits(results)
    exact = training.on_one_rank()
    assert any(not torch.equal(ours, theirs) for ours, theirs in zip(results[0], exact, strict=True))
    for ours, theirs in zip(results[0], exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_one_rank_alone_is_trained_as_if_it_were_not_wrapped():
    training = Training((8,), branches=True, parts=2)
    with Group(0, 1) as group:
        assert_same_bits([training.run(group), training.on_one_rank()])
