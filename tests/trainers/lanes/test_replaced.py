"""What a user puts in place of something else between two epochs counts for lanes as it does alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_trainers import Parts, Trainer, schedules
from hpsearch_trainers.lanes import Fuser
from tests.trainers.lanes.networks import Drawn, assert_same, made

LANES = [{"lr": lr, "dropout": 0.5, "layers": ["batch norm"], "average": 0.9, "warmup": 3.5} for lr in (0.1, 0.2)]


def optimizer(trainer: Trainer) -> None:
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.05)


def model(trainer: Trainer) -> None:
    trainer.model = copy.deepcopy(trainer.model)
    optimizer(trainer)


def dropout(trainer: Trainer) -> None:
    trainer.model[2] = nn.Dropout(0.1)  # type: ignore[operator]


@pytest.mark.parametrize("replace", [optimizer, model, dropout], ids=["optimizer", "model", "dropout"])
def test_what_is_put_in_place_of_something_else_is_trained(replace: Callable[[Trainer], None]):
    ours, theirs = made(Drawn, LANES), made(Drawn, LANES)
    fuser = Fuser(fewest=2)
    for epoch in range(3):
        if epoch == 1:
            for trainer in (*ours, *theirs):
                replace(trainer)
        stepped = fuser.step(ours)
        assert [one.lanes for one in stepped] == [2 if epoch == 0 or (replace is dropout and epoch == 2) else 1] * 2
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)


class Shares(nn.Module):
    """Its two layers may have their weights in the same memory."""

    def __init__(self, shared: bool, used: bool) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, 3)
        self.used = used
        if shared:
            self.other.weight.data = self.one.weight.data

    def forward(self, x: Tensor) -> Any:
        x = self.one(x).relu()
        return self.last(self.other(x).relu() if self.used else x)


class Sharing(Drawn):
    def build(self, params):
        parts = super().build({"layers": []})  # type: ignore[no-untyped-call]
        model = Shares(params.get("shared", False), params.get("used", True))
        fused = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
        return Parts(
            model, fused, parts.loss, parts.train, parts.validation, batch_size=16, schedule=schedules.warmup(2)
        )


def test_tensors_in_the_same_memory_run_alone_and_say_why():
    lanes = [{"shared": shared} for shared in (False, False, True, True)]
    ours, theirs = made(Sharing, lanes), made(Sharing, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(2):
        stepped = fuser.step(ours)
        assert [one.lanes for one in stepped] == [2, 2, 1, 1]
        assert "in the same memory" in (stepped[2].alone_because or "")
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)


def test_an_optimizer_keeps_nothing_of_what_is_not_trained():
    ours, theirs = made(Sharing, [{"used": False}] * 2), made(Sharing, [{"used": False}] * 2)
    stepped = Fuser(fewest=2).step(ours)
    assert [one.lanes for one in stepped] == [2, 2]
    assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
