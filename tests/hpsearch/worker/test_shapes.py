"""How many shapes trials have, as it is found by building them."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from hpsearch.errors import TrainableError
from hpsearch.objective import Metric, Objective
from hpsearch.trial import Trial
from hpsearch.worker.job import Job
from hpsearch.worker.shapes import Shapes, shapes_of
from tests.hpsearch.support import lane_trainables
from tests.hpsearch.support.lane_trainables import Small


def job_of(trainable: Any = Small, **changes: Any) -> Job:
    objective = Objective(Metric("right", "maximize"))
    return Job("", "s", trainable, (), objective, None, **({"threads": 1, "lanes": 4} | changes))


def trials_of(*params: dict[str, Any]) -> list[Trial]:
    common = {"fault": "", "hidden": 8, "dropout": 0.1, "lr": 0.1}
    return [Trial(number, common | own, number, "random") for number, own in enumerate(params)]


def test_trials_are_counted_by_shape_and_those_that_have_none_by_the_reason(capfd):
    before = torch.get_rng_state()
    found = shapes_of(
        job_of(),
        trials_of(
            *({"hidden": 8, "lr": 0.01 * number, "fault": "prints"} for number in range(1, 6)),
            *({"hidden": 16, "dropout": 0.2 * number} for number in range(2)),
            {"hidden": 3},
            *({"fault": fault} for fault in ("build", "build", "exit")),
        ),
        60.0,
    )
    assert found.trials == 11
    assert list(found.sizes) == [5, 2, 1]
    assert found.failed == {"ValueError: there is no such network": 2, "SystemExit: it leaves": 1}
    assert (dict(found.alone), found.why_none) == ({}, None)
    assert sorted({*found.tried} - {3}) == [2, 4]  # as many as a worker has lanes; 3 where two aren't quicker
    assert min(found.tried.values()) > 0
    assert capfd.readouterr().out == ""
    assert torch.equal(before, torch.get_rng_state()), "who asks finds its generators as they were"


def test_where_they_may_round_no_time_is_told():
    found = shapes_of(job_of(rounded=True), trials_of({}, {"dropout": 0.2}), 60.0)
    assert list(found.sizes) == [2]
    assert (dict(found.tried), dict(found.alone)) == ({}, {})
    drawing = shapes_of(job_of(rounded=True), trials_of(*({"fault": "draws"} for _ in range(2))), 60.0)
    assert list(drawing.alone.values()) == [2]


def test_a_shape_that_has_other_bits_together_is_none():
    found = shapes_of(job_of(), trials_of(*({"fault": "draws"} for _ in range(3)), {}, {}), 60.0)
    assert list(found.sizes) == [2]
    assert list(found.alone.values()) == [3]


def test_what_training_prints_and_changes_is_lost_as_well(capfd, monkeypatch):
    monkeypatch.delenv(lane_trainables.VARIABLE, raising=False)

    def loss(self: Any, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        print("it trains")
        os.environ[lane_trainables.VARIABLE] = "1"
        return torch.nn.functional.cross_entropy(output, targets)

    monkeypatch.setattr(Small, "_prints_loss", loss, raising=False)
    shapes_of(job_of(), trials_of({"fault": "prints"}, {"fault": "prints"}), 60.0)
    assert capfd.readouterr().out == ""
    assert lane_trainables.VARIABLE not in os.environ


def test_trials_that_cannot_train_are_counted_with_what_they_raise():
    found = shapes_of(job_of(), trials_of({"fault": "unknown"}, {"lr": -1.0}), 60.0)
    assert found.failed == {"ValueError: Invalid learning rate: -1.0": 1}
    assert list(found.sizes) == [1]


def test_no_more_are_built_when_the_time_is_over():
    assert shapes_of(job_of(), trials_of({}, {}, {}), 0.0).trials == 1


@pytest.mark.parametrize("trainable", [lane_trainables.function, Small])
def test_where_none_can_be_a_lane_it_says_why(trainable):
    threads = 2 if trainable is Small else 1
    found = shapes_of(job_of(trainable, threads=threads), trials_of({}), 60.0)
    assert found == Shapes(why_none=found.why_none)
    assert found.why_none


def test_what_cannot_be_imported_is_the_users_mistake():
    with pytest.raises(TrainableError, match="no_such_module"):
        shapes_of(job_of("no_such_module:Small"), trials_of({}), 60.0)


@pytest.mark.parametrize(("gpus", "seen"), [(0.0, ""), (0.5, "0")])
def test_a_gpu_is_seen_where_the_sweeps_workers_have_one(monkeypatch, gpus, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = []
    monkeypatch.setattr(Small, "build", lambda *_: found.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    shapes_of(job_of(gpus=gpus, rounded=True), trials_of({}), 60.0)
    assert found == [seen]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_environment_is_as_it_was(monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    shapes_of(job_of(mkl_cbwr="AUTO"), trials_of({"fault": "settings"}), 60.0)
    assert "MKL_CBWR" not in os.environ
    assert lane_trainables.VARIABLE not in os.environ
