"""Sweeps on a GPU: workers on Ray that share one, Hyperband, lanes, and the digits' own sweeps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import Hyperband, load, search
from hpsearch.backends.ray.session import shut_down
from hpsearch_trainers.digits import MLP
from tests.hpsearch.support.merged import merged

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch built for CUDA"),
]

ROOT = Path(__file__).parents[2]
LR = {"lr": {"min": 0.01, "max": 0.3, "distribution": "log_uniform_values"}}


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    """End the local Ray that searches of this process share."""
    yield
    shut_down()


def tells_its_share(trial: Any) -> None:
    """Report the GPUs that it sees, and whether it may have more than a quarter of one's memory."""
    free = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(int(0.3 * free), dtype=torch.uint8, device="cuda")
        more = 1.0
    except torch.OutOfMemoryError:
        more = 0.0
    trial.report({"value": float(torch.cuda.device_count()), "more": more})


def tells_whether_it_sees_one(trial: Any) -> None:
    trial.report({"value": float(torch.cuda.is_available())})


def run(trainable: Any, folder: Path, **options: Any) -> Any:
    given: dict[str, Any] = {"parameters": LR, "name": "gpus", "directory": folder / "study"}
    return search(trainable, **merged(given, options))


def test_four_workers_share_a_gpu_and_its_memory(tmp_path):
    options = {
        "metric": {"name": "value", "goal": "maximize"},
        "max_iter": 1,
        "run_cap": 8,
        "resources": {"workers": 4, "gpus_per_worker": 0.25},
    }
    rows = run(tells_its_share, tmp_path, **options).trials
    assert {row.value for row in rows} == {1.0}
    assert {row.metrics["more"] for row in rows} == {0.0}


@pytest.mark.parametrize("backend", ["ray", "inline"])
def test_workers_without_a_gpu_see_none(tmp_path, backend):
    options = {
        "metric": {"name": "value", "goal": "maximize"},
        "max_iter": 1,
        "run_cap": 1,
        "resources": {"workers": 1},
        "backend": backend,
    }
    (row,) = run(tells_whether_it_sees_one, tmp_path, **options).trials
    assert row.value == 0.0


def test_hyperband_on_parts_of_a_gpu_finds_what_it_promotes(tmp_path):
    study = run(
        MLP,
        tmp_path,
        metric={"name": "accuracy", "goal": "maximize"},
        early_terminate=Hyperband(max_iter=9),
        resources={"workers": 4, "gpus_per_worker": 0.25},
    )
    assert {row.state for row in study.trials} <= {"complete", "stopped"}
    assert study.best_trial.value > 0.9


def test_lanes_on_a_gpu_are_as_good_as_trials_one_at_a_time(tmp_path):
    options: dict[str, Any] = {
        "metric": {"name": "accuracy", "goal": "maximize"},
        "max_iter": 4,
        "run_cap": 8,
        "resources": {"gpus_per_worker": 1, "workers": 1},
    }
    alone = run(MLP, tmp_path / "alone", **options)
    lanes = run(MLP, tmp_path / "lanes", **merged(options, {"resources": {"trials_per_worker": 8, "fuse": "rounding"}}))
    assert max(row.lanes for row in lanes.trials) > 1
    assert lanes.best_trial.value == pytest.approx(alone.best_trial.value, abs=0.05)


@pytest.mark.parametrize("name", ["digits", "goals_digits", "pbt_digits", "fused_digits"])
def test_the_digits_own_sweeps_run_on_a_gpu(tmp_path, name):
    words = [str(ROOT / "configs" / f"{name}.yaml"), "--workers", "4", "--dir", str(tmp_path / "study")]
    words += ["--set", "resources.gpus_per_worker=0.25", "--set", "limits.max_time=25s"]
    if name == "fused_digits":
        words += ["--set", "resources.fuse=rounding", "--set", "resources.trials_per_worker=8"]
    command = [sys.executable, "-m", "hpsearch", "run", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode in (0, 3), ended.stdout + ended.stderr  # 3: its time is used up
    rows = load(tmp_path / "study").trials
    assert any(row.values for row in rows)
    assert not [row.failure for row in rows if row.state == "failed"], json.dumps(ended.stdout)
