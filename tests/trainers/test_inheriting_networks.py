"""A trial whose network is its parent's, grown: what it begins with, on one worker and on several."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.architectures import network
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import CLASSES, FEATURES, FakeTrial, correct, data
from tests.trainers.test_trainer_inheritance import child, equal

NARROW: Any = [{"conv": {"channels": 4}}, "pool"]
GROWN: Any = [{"conv": {"channels": 6}}, {"conv": {"channels": 9, "kernel": 5}}, "pool"]
OTHER: Any = ["tanh", {"conv": {"channels": 3}}]


class Images(Trainer):
    """The rows of the trainer's tests, as images of 3 x 4 pixels."""

    def build(self, params: Any) -> Parts:
        model = network(params["layers"], (1, 3, 4), CLASSES)
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            nn.functional.cross_entropy,
            train=images(*data(96)),
            validation=images(*data(50, 2)),
            metrics={"accuracy": correct},
            average=params.get("average"),
            batch_norm=params.get("batch_norm", "local"),
        )


def images(rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    assert rows.shape[1] == FEATURES
    return rows.reshape(-1, 1, 3, 4), targets


def parent(**params: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the parent's validation metrics and its state."""
    torch.manual_seed(0)
    trainer = Images(FakeTrial({"layers": NARROW, **params}))
    trainer.step()
    return trainer.validate(), copy.deepcopy(trainer.state_dict())


@pytest.mark.parametrize("params", [{}, {"average": 0.9}])
def test_a_child_validates_as_its_parent_did_before_it_trains(params, capsys) -> None:
    measured, state = parent(**params)
    trainer = Images(child(state, layers=GROWN, **params))
    assert trainer.validate() == pytest.approx(measured, rel=1e-5)
    told = "inherited 5 layers: 3 with units repeated, 2 put in so that they change nothing; outputs are the parent's"
    assert capsys.readouterr().out == f"{told}; the rest and the optimizer begin anew\n"
    assert trainer.epoch == 0
    losses = [trainer.step()["loss"] for _ in range(3)]
    assert losses[-1] < losses[0]


def test_an_average_goes_on_where_outputs_are_the_parents_and_begins_anew_else(capsys) -> None:
    _, state = parent(average=0.9)
    grown, other = (Images(child(state, layers=layers, average=0.9)) for layers in (GROWN, OTHER))
    averages = [trainer.state_dict()["average"] for trainer in (grown, other)]
    assert int(averages[0]["n_averaged"]) == int(state["average"]["n_averaged"]) > 0
    assert int(averages[1]["n_averaged"]) == 0
    assert "outputs differ from the parent's: body.0 (Tanh) is new" in capsys.readouterr().out
    model = other.state_dict()["model"]
    assert equal({name: averages[1][f"module.{name}"] for name in model}, model)


def test_a_child_without_an_average_begins_with_its_parents_model() -> None:
    _, state = parent(average=0.9)
    plain = Images(FakeTrial({"layers": NARROW}))
    plain.model.load_state_dict(state["model"])
    assert Images(child(state, layers=GROWN)).validate() == pytest.approx(plain.validate(), rel=1e-5)


@pytest.mark.parametrize("batch_norm", ["local", "sync"])
def test_all_workers_draw_the_same_child_which_is_that_of_one(batch_norm) -> None:
    measured, state = parent()

    def begun(group: Group | None) -> tuple[dict[str, Tensor], dict[str, float]]:
        trainer = Images(child(state, group, layers=GROWN, batch_norm=batch_norm))
        return copy.deepcopy(trainer.state_dict()["model"]), trainer.validate()

    alone, _ = begun(None)
    for weights, validated in run_ranks(2, begun):
        assert equal(weights, alone)
        assert validated == pytest.approx(measured, rel=1e-5)


def test_a_parent_of_an_older_version_has_no_architecture_and_gives_what_fits(capsys) -> None:
    _, state = parent()
    del state["architecture"]
    trainer = Images(child(state, layers=NARROW))
    assert equal(trainer.state_dict()["model"], state["model"])
    told = "inherited 8 of 8 weights and buffers, by name and shape (the parent's architecture isn't known)"
    assert capsys.readouterr().out.startswith(told)


def test_a_child_of_a_parent_that_diverged_begins_anew(capsys) -> None:
    _, state = parent()
    state["model"]["body.0.0.weight"].fill_(float("nan"))
    trainer = Images(child(state, layers=GROWN))
    assert trainer.validate()["validation_loss"] < 10
    assert "isn't a number: nothing of it is taken over" in capsys.readouterr().out
