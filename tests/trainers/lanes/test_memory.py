"""Packs for which there isn't memory enough become smaller ones, and nothing else of them changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch_trainers.memory import is_out_of_memory, memory_usage
from tests.hpsearch.support.fork_server import ForkServer

Stepped = Callable[[list[int], int, int], list[dict[str, Any]]]

SPARE = 128 << 20
"""Bytes: more than two lanes take, and less than thirty-two."""

COLUMNS = ("trial", "epoch", "lanes", "alone_because", "error", "same")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.trainers.lanes.short_of_memory") as it:
        yield it


@pytest.fixture
def stepped(server: ForkServer, tmp_path: Path) -> Stepped:
    """Train trials under a limit of addresses: so many bytes beyond what the process has before."""

    def step(greedy: list[int], spare: int, most: int) -> list[dict[str, Any]]:
        assert server.call("step", greedy, spare, most, str(tmp_path / "answer")) == 0
        lines = (tmp_path / "answer").read_text().splitlines()
        return [dict(zip(COLUMNS, json.loads(line), strict=True)) for line in lines]

    return step


@pytest.mark.exhaustive
def test_a_pack_without_memory_is_halved_until_there_is_some_and_has_the_bits_of_each_alone(stepped):
    told = stepped([0] * 32, SPARE, 32)
    assert {one["error"] for one in told} == {"None"}
    assert {one["alone_because"] for one in told} == {None}
    assert all(one["same"] for one in told)
    lanes = [{one["lanes"] for one in told if one["epoch"] == epoch} for epoch in range(3)]
    assert set().union(*lanes) <= {2, 4, 8, 16}
    # It is remembered: no epoch tries more lanes than the last pack of the one before it had memory for.
    assert all(max(later) <= min(earlier) for earlier, later in pairwise(lanes))


@pytest.mark.exhaustive
def test_a_try_of_more_lanes_than_there_are_trials_says_nothing_of_fewer(stepped):
    """Two trials come first; that there is no memory for thirty-two isn't held against them."""
    told = stepped([0] * 2, SPARE, 32)
    assert {one["lanes"] for one in told} == {2}
    assert all(one["same"] for one in told)


@pytest.mark.exhaustive
def test_with_memory_enough_all_are_one_pack(stepped):
    told = stepped([0] * 16, 4 << 30, 16)
    assert {one["lanes"] for one in told} == {16}
    assert all(one["same"] for one in told)


def test_a_lane_that_asks_for_more_than_there_is_fails_alone(stepped):
    told = stepped([0, 0, 1 << 40, 0], 1 << 30, 4)
    greedy = [one for one in told if one["trial"] == 2]
    assert all("allocate memory" in one["error"] for one in greedy)
    others = [one for one in told if one["trial"] != 2]
    assert {one["error"] for one in others} == {"None"}
    assert all(one["same"] for one in others)


class OutOfMemoryError(RuntimeError):
    """As torch names that of a GPU."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("can't allocate memory"), False),
        (OSError(12, "Cannot allocate memory"), False),
    ],
)
def test_what_an_allocator_raises_is_known(error, expected):
    assert is_out_of_memory(error) == expected
    wrapped = ValueError("training failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped) == expected


def test_what_is_told_of_memory_names_both_sizes_and_the_limit():
    words = memory_usage()
    assert "resident, of" in words
    assert "GiB (" in words
