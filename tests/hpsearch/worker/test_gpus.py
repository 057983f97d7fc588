"""Trials see GPUs where their sweep asks for some, in whatever process they run, and each its share."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from hpsearch import TrainableError, search
from hpsearch.errors import HpsearchWarning
from hpsearch.sweep.file import sweep_from_mapping
from hpsearch.sweep.parallel import ON_THE_HOST
from hpsearch.worker.gpus import without_gpus
from hpsearch.worker.job import job_of
from hpsearch.worker.worker import Worker
from hpsearch_trainers.digits import MLP
from tests.hpsearch.support.merged import merged

SPACE = {"lr": {"min": 0.1, "max": 0.2}}
ONE: dict[str, Any] = {
    "parameters": SPACE,
    "metric": {"name": "value", "goal": "maximize"},
    "max_iter": 1,
    "run_cap": 1,
}


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch say that two GPUs are here, and make nothing on them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)


def looks(trial: Any) -> None:
    trial.report({"value": float(torch.cuda.is_available()) + torch.cuda.device_count()})


def asks(trial: Any) -> None:
    torch.ones(1, device="cuda")


def reads_environment(trial: Any) -> None:
    trial.report({"value": float(os.environ["CUDA_VISIBLE_DEVICES"] == "")})


def run(trainable: Any, tmp_path: Any, **options: Any) -> Any:
    study = search(trainable, **merged(ONE, options), backend="inline", directory=str(tmp_path / "study"))
    return study.trials[0]


def test_inline_trials_see_no_gpu_where_none_is_asked_for_and_later_ones_see_theirs(tmp_path, capsys, monkeypatch):
    assert run(looks, tmp_path / "without").value == 0.0
    assert "2 GPUs are here and none is used: set resources.gpus_per_worker" in "".join(capsys.readouterr())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert run(looks, tmp_path / "with", resources={"gpus_per_worker": 1}).value == 3.0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_what_inline_trials_start_sees_no_gpu_either(tmp_path):
    assert run(reads_environment, tmp_path).value == 1.0


def test_a_trial_without_a_gpu_that_asks_for_one_fails(tmp_path):
    with pytest.warns(HpsearchWarning, match="no trial has a value"):
        row = run(asks, tmp_path)
    assert "resources.gpus_per_worker is 0" in str(row.failure)


def test_a_trainable_that_cant_be_imported_leaves_gpus_in_sight(tmp_path):
    with pytest.raises(TrainableError):
        run("tests.hpsearch.worker.test_gpus:missing", tmp_path)
    assert torch.cuda.is_available()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_gpus_stay_hidden_until_the_last_one_who_hid_them_is_done():
    first, second = without_gpus(), without_gpus()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.cuda.is_available()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    second.__exit__(None, None, None)
    assert torch.cuda.is_available()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize("trainer", [MLP, functools.partial(MLP)])
def test_a_trainer_refuses_gpus_that_it_wouldnt_use(tmp_path, trainer):
    with pytest.raises(TrainableError, match="gpus_per_worker: 1 and workers_per_trial: 2"):
        run(trainer, tmp_path, resources={"gpus_per_worker": 2})


@pytest.mark.parametrize(
    ("more", "names"),
    [
        *(({"parallel": {"strategy": name}}, name) for name in sorted(ON_THE_HOST)),
        ({"parameters": {"parallel.strategy": {"values": ["allreduce", "hogwild", "tensor"]}}}, "hogwild or tensor"),
    ],
)
def test_a_trainer_refuses_a_gpu_where_a_strategy_trains_on_the_cpu(tmp_path, more, names):
    """Before a trial runs. A loop of one's own may use one."""
    given = ONE | {"method": "random", "resources": {"gpus_per_worker": 1, "workers_per_trial": 2}} | more
    job = job_of(
        sweep_from_mapping({"trainable": "hpsearch_trainers.digits:MLP"} | given), str(tmp_path), MLP, (), None
    )
    with pytest.raises(TrainableError, match=f"must be 0 for a Trainer where parallel.strategy may be {names}, which"):
        Worker(job, tmp_path)
    for other in (replace(job, trainable=looks), replace(job, gpus=0)):
        Worker(other, tmp_path).close()


def test_workers_that_share_a_gpu_have_a_part_of_its_memory_and_give_back_what_a_trial_had(tmp_path, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    run(looks, tmp_path / "share", resources={"gpus_per_worker": 0.25})
    assert asked == [0.25, "empty", "empty", 1.0]
    asked.clear()
    run(looks, tmp_path / "whole", resources={"gpus_per_worker": 1})
    assert asked == []


def test_a_sweep_on_gpus_says_before_it_runs_that_its_last_digits_may_differ(tmp_path, capsys):
    run(looks, tmp_path, resources={"gpus_per_worker": 1})
    assert "on a GPU the same trial may end with other last digits each time" in "".join(capsys.readouterr())
