"""Sweeps with `fuse: rounding`, also where a worker has a GPU: who is trained with whom is no part of a result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hpsearch_trainers.lanes
from hpsearch.results.study import Study
from tests.hpsearch.support.lane_sweeps import results, search, table
from tests.hpsearch.support.merged import merged
from tests.trainers.lanes.ways import ALL_WAYS

FAULTS = ("", "nan", "draws", "", "step", "")


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have one thread, and no GPU but where the test needs one."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rounded(directory: Path, **options: Any) -> Study:
    points = [
        {"lr": 0.1 / (1 + place), "hidden": 24, "dropout": 0.08 * place, "fault": fault}
        for place, fault in enumerate(FAULTS)
    ]
    given: dict[str, Any] = {"early_terminate": None, "max_iter": 3, "points_to_try": points, "run_cap": 6}
    given["resources"] = {"fuse": "rounding", "trials_per_worker": 4, "gpus_per_worker": 0.5}
    return search(directory, ("", "nan", "draws", "step"), **merged(given, options))


@pytest.mark.exhaustive
@ALL_WAYS
def test_a_worker_with_a_part_of_a_gpu_trains_many_and_no_row_depends_on_the_others(way, tmp_path, monkeypatch):
    monkeypatch.setattr(hpsearch_trainers.lanes, "RoundingFuser", way)
    study = rounded(tmp_path / "six")
    assert max(row.lanes for row in study.trials) == 3, "the one that draws trains alone"
    assert [row.failure is None for row in study.trials] == [fault != "step" for fault in FAULTS]
    fewer = rounded(tmp_path / "three", run_cap=3)
    assert table(study).splitlines()[:4] == table(fewer).splitlines()
    told = results(study)
    assert {of: told[of] for of in results(fewer)} == results(fewer)


def test_with_the_bits_of_each_alone_a_gpu_has_one_trial_at_a_time(tmp_path):
    study = rounded(tmp_path, resources={"fuse": "auto"}, run_cap=3)
    assert {row.lanes for row in study.trials} == {1}


def test_a_worker_has_cublas_repeat_itself_and_leaves_the_environment_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    seen = []

    def right(output: Tensor, target: Tensor) -> Tensor:
        seen.append(os.environ["CUBLAS_WORKSPACE_CONFIG"])
        return (output.argmax(1) == target).float()

    monkeypatch.setattr("tests.hpsearch.support.lane_trainables._right", right)
    rounded(tmp_path / "rounded", run_cap=1)
    assert {*seen} == {":4096:8"}
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":0:0"
    seen.clear()
    rounded(tmp_path / "exact", resources={"fuse": "auto"}, run_cap=1)
    assert {*seen} == {":0:0"}


def test_cublas_is_not_told_too_late(monkeypatch):
    from hpsearch.worker import worker

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for knows, found in ((False, ":0:0"), (True, ":4096:8")):
        monkeypatch.setattr(worker, "_cublas_knows", knows)
        with worker._cublas():
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == found
