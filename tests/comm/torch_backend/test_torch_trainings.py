"""torch's own ways to train on several ranks, unchanged, over our backend: to the losses that Gloo gives."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.comm.torch_backend.served_ranks import served
from tests.comm.torch_backend.torch_ranks import TorchRanks

ranks = served("tests.comm.torch_backend.torch_trainings")


def assert_alike(found: Any, expected: Any) -> None:
    """Compare numbers, nested in lists: sums of more than two ranks may round otherwise."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert math.isclose(found, expected, rel_tol=2e-4, abs_tol=1e-5), (found, expected)


def assert_as_on_gloo(ranks: TorchRanks, size: int, function: str, *arguments: Any) -> None:
    expected = ranks.call(size, function, *arguments, backend="gloo")
    found = ranks.call(size, function, *arguments)
    assert any(expected)
    assert_alike(found, expected)


DDP = ("plain", "convnet", "views", "small buckets", "static", "hook", "fp16", "no_sync", "join")


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("what", DDP)
def test_ddp_on_two_ranks(ranks, what):
    assert_as_on_gloo(ranks, 2, "with_ddp", what)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("what", ["plain", "branches", "power"])
def test_ddp_on_three_ranks(ranks, what):
    assert_as_on_gloo(ranks, 3, "with_ddp", what)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("size", "function"),
    [
        (2, "with_sparse_gradients"),
        (2, "with_fsdp"),
        (3, "with_fsdp"),
        (4, "with_hybrid_fsdp"),
        (3, "with_dtensors"),
        (2, "with_tensor_parallel"),
    ],
)
def test_sparse_gradients_fsdp_and_dtensors(ranks, size, function):
    assert_as_on_gloo(ranks, size, function)


def test_checkpoints_of_sharded_models(ranks, tmp_path):
    expected = ranks.call(2, "with_checkpoints", str(tmp_path / "gloo"), backend="gloo")
    found = ranks.call(2, "with_checkpoints", str(tmp_path / "ours"))
    assert found == expected
    assert found[0][:6] == found[0][6:]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_pipelines(ranks, size, kind):
    assert_as_on_gloo(ranks, size, "with_pipeline", kind)
