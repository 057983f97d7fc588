"""A child of a trial that takes over what fits of its parent's weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_trainers.inheritance import inherit
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import CLASSES, FEATURES, FakeTrial, Small


class Child(FakeTrial):
    """A trial that starts at epoch 0 with its parent's checkpoint."""

    start = 0
    parent_checkpoint: Any = None


def child(state: dict[str, Any], group: Group | None = None, **params: Any) -> Child:
    trial = Child(params, group)
    trial.parent, trial.parent_checkpoint = 3, state
    return trial


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def parent(**params: Any) -> dict[str, Any]:
    trainer = Small(FakeTrial(params))
    trainer.step()
    return trainer.state_dict()


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_weights_of_the_same_name_and_shape_are_taken_over_and_no_others() -> None:
    torch.manual_seed(0)
    model, before = wider(), {name: value.clone() for name, value in wider().state_dict().items()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = parent()["model"]
    found = inherit(model, weights)
    assert not found.preserving
    assert found.taken == ("0.weight", "0.bias")
    assert found.left == ("2.weight", "2.bias", "4.weight", "4.bias")
    after = model.state_dict()
    assert all(torch.equal(after[name], weights[name]) for name in found.taken)
    assert all(torch.equal(after[name], before[name]) for name in found.left)


@pytest.mark.parametrize("params", [{}, {"model": "cnn"}, {"average": 0.9}])
def test_a_child_begins_with_its_parents_model_and_with_an_optimizer_of_its_own(params, capsys) -> None:
    state = parent(**params)
    trainer = Small(child(state, **params))
    assert trainer.epoch == 0
    assert equal(trainer.state_dict()["model"], state["model"])
    assert trainer.state_dict()["optimizer"]["state"] == {}
    if "average" in params:
        module = {name.removeprefix("module."): value for name, value in trainer.state_dict()["average"].items()}
        assert all(torch.equal(module[name], value) for name, value in state["model"].items())
    count = len(state["model"])
    told = f"inherited {count} of {count} weights and buffers, by name and shape; the rest and the optimizer begin anew"
    assert capsys.readouterr().out == f"{told}\n"
    better = trainer.step()["validation_loss"]
    assert better < Small(FakeTrial(params)).step()["validation_loss"]


def test_what_another_class_has_saved_is_left_alone(capsys) -> None:
    plain = Small(FakeTrial()).state_dict()["model"]
    assert equal(Small(child({"learned": [1]})).state_dict()["model"], plain)
    told = "inherited 0 of 0 weights and buffers, by name and shape; the rest and the optimizer begin anew"
    assert capsys.readouterr().out == f"{told}\n"


def test_a_fork_that_goes_on_takes_over_nothing_before_its_own_checkpoint() -> None:
    trial = child(parent())
    trial.start = 1
    assert equal(Small(trial).state_dict()["model"], Small(FakeTrial()).state_dict()["model"])


def test_all_workers_begin_alike_and_train_as_one_does() -> None:
    state = parent()
    alone = Small(child(state)).step()
    of_rank = run_ranks(2, lambda group: Small(child(state, group)).step())
    assert of_rank[0] == of_rank[1]
    assert of_rank[0]["loss"] == pytest.approx(alone["loss"], rel=1e-5)
