"""Population based training from end to end: the paper's toy, real training, and what a fork goes on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.trial import TrialState
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.hpsearch.support.merged import merged


class Toy(hpsearch.Steps):
    """Figure 2 of Jaderberg et al.: each trial sees one half of what it is judged by, and can climb there alone."""

    def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> Any:
        theta = np.array([0.9, 0.9]) if state is None else state
        gradient = -2 * np.array([params["h0"], params["h1"]]) * theta
        theta = theta + 0.01 * gradient + rng.normal(scale=1e-3, size=2)  # without noise the two would be equally good
        return theta, {"Q": float(1.2 - (theta**2).sum())}, 1.0


def toy(**changes: Any) -> hpsearch.Study:
    given: dict[str, Any] = {
        "parameters": {
            "parameters": {"h0": hpsearch.Uniform(0.0, 1.0), "h1": hpsearch.Uniform(0.0, 1.0)},
            "points_to_try": [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}],
        },
        "metric": {"name": "Q", "goal": "maximize"},
        "method": "pbt",
        "early_terminate": hpsearch.PBT(200, population=2, interval=4),
        "backend": "simulated",
        "resources": {"workers": 1},
        "directory": ":memory:",
        "observers": [],
        "progress": False,
    }
    return hpsearch.search(Toy, **merged(given, changes))


def test_a_population_reaches_what_its_members_alone_can_not():
    alone = toy(method="random", early_terminate=None, max_iter=200, run_cap=2)
    assert alone.best_value < 0.45
    together = toy()
    assert together.best_value > 1.15
    assert together.iterations == alone.iterations == 2 * 200


def test_with_a_worker_for_each_member_those_that_end_first_are_replaced_too():
    study = toy(resources={"workers": 6}, early_terminate=hpsearch.PBT(100, population=6, interval=5))
    assert len(study.trials) >= 6 + 10
    assert study.iterations == 600


def test_on_one_worker_and_simulated_the_table_is_the_same_each_time():
    for workers in (1, 3):
        one, other = (
            toy(resources={"workers": workers}, early_terminate=hpsearch.PBT(40, population=5)) for _ in range(2)
        )
        assert one.trials == other.trials
        assert any(row.parent is not None for row in one.trials)


class Net(Trainer):
    """Keeps what it trained with."""

    seen: list[dict[str, Any]]

    def __init__(self, trial: Any) -> None:
        self.number, self.parent, self.params = trial.number, trial.parent, trial.params
        super().__init__(trial)

    def build(self, params: Any) -> Parts:
        data = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        model = nn.Linear(4, 1)
        decay = params["weight_decay"]
        optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9, weight_decay=decay)
        targets = data.sum(1, keepdim=True)
        return Parts(
            model,
            optimizer,
            functional.mse_loss,
            train=(data, targets),
            validation=(data, targets),
            batch_size=32,
            schedule=lambda epoch: 0.5 ** int(epoch),
        )

    def step(self) -> dict[str, float]:
        before, epoch = self._weights(), self.epoch
        velocity = [dict(state)["momentum_buffer"].clone() for state in self.optimizer.state.values()]
        metrics = super().step()
        (group,) = self.optimizer.param_groups
        Net.seen.append(
            {
                "trial": self.number,
                "parent": self.parent,
                "epoch": epoch,
                "params": self.params,
                "lr": metrics["learning_rate"],
                "own lr": group["lr"],
                "weight_decay": group["weight_decay"],
                "before": before,
                "after": self._weights(),
                "velocity": velocity,
                "velocity after": [state["momentum_buffer"].clone() for state in self.optimizer.state.values()],
            }
        )
        return metrics

    def _weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def test_a_trainers_fork_has_its_parents_weights_and_velocities_and_rates_of_its_own_from_the_first_step(tmp_path):
    Net.seen = []
    study = hpsearch.search(
        Net,
        parameters={"lr": hpsearch.LogUniform(1e-4, 0.1), "weight_decay": hpsearch.LogUniform(1e-6, 0.1)},
        metric="validation_loss",
        method="pbt",
        early_terminate=hpsearch.PBT(6, population=4, interval=2),
        backend="inline",
        directory=tmp_path / "study",
        observers=[],
        progress=False,
    )
    first = [step for step in Net.seen if step["parent"] is not None]
    assert len({step["trial"] for step in first}) == sum(row.parent is not None for row in study.trials) >= 2
    for step in Net.seen:
        assert step["lr"] == pytest.approx(step["params"]["lr"] * 0.5 ** step["epoch"])
        assert step["own lr"] == step["params"]["lr"]
        assert step["weight_decay"] == step["params"]["weight_decay"]
    begun: set[int] = set()
    for step in first:
        if step["trial"] in begun:
            continue
        begun.add(step["trial"])
        (parent,) = [one for one in Net.seen if one["trial"] == step["parent"] and one["epoch"] == step["epoch"] - 1]
        assert all(map(torch.equal, step["before"], parent["after"]))
        assert all(map(torch.equal, step["velocity"], parent["velocity after"]))
        assert step["params"] != parent["params"]


def test_at_the_end_no_checkpoint_lies_there_but_the_bests(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            here = len(list(Path(tmp_path).rglob("state.pt")))
            assert here <= 2 * 4 + 1  # of each member, and of those that are being forked; and what is to be deleted
            trial.report({"loss": trial.params["x"] / iteration}, checkpoint={"iteration": iteration})

    study = hpsearch.search(
        train,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric="loss",
        method="pbt",
        early_terminate=hpsearch.PBT(12, population=4, interval=1),
        backend="inline",
        directory=tmp_path / "study",
        observers=[],
        progress=False,
    )
    assert list(study.directory.rglob("state.pt")) == [study.best_trial.checkpoint]
    assert {row.state for row in study.trials} == {TrialState.COMPLETE, TrialState.STOPPED}


def test_a_crashed_member_is_replaced_by_a_fork_and_one_that_always_crashes_ends(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            if trial.number == 1 or (always and iteration == 3):
                raise RuntimeError("out of memory")
            trial.report({"loss": trial.params["x"] / iteration}, checkpoint={})

    for always in (False, True):
        study = hpsearch.search(
            train,
            parameters={"x": hpsearch.Uniform(0.0, 1.0)},
            metric="loss",
            method="pbt",
            early_terminate=hpsearch.PBT(4, population=3, interval=1),
            limits={"max_failures": "none"},
            backend="inline",
            directory=tmp_path / f"{always}",
            observers=[],
            progress=False,
        )
        assert study.state == "finished"
        complete = sum(row.state is TrialState.COMPLETE for row in study.trials)
        assert complete == (0 if always else 3)
        assert len(study.trials) < 20


class Bowl(hpsearch.Curves):
    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        return hpsearch.Curve({"Q": [params["h0"]] * 9})


def test_curves_that_know_no_other_params_than_their_own_are_not_forked():
    with pytest.raises(SweepError, match=r"type pbt forks trials, .*but Bowl only knows .* from hpsearch\.Steps"):
        hpsearch.search(
            Bowl,
            parameters={"h0": hpsearch.Uniform(0.0, 1.0)},
            metric="Q",
            method="pbt",
            max_iter=9,
            backend="simulated",
            resources={"workers": 2},
            directory=":memory:",
        )
