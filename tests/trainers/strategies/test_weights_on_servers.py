"""Weights that servers hold are the optimizer's alone: whatever else changes them on a worker is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import CommError
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import MODELS, FakeTrial, Small


class Changing(nn.Linear):
    """Changes its weight in each fifth pass.

    Args:
        change: How.
    """

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__(8, 5)
        self.change, self.passes = change, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        if self.training and self.passes % 5 == 0:
            with torch.no_grad():
                self.change(self.weight)
        return super().forward(inputs)


def in_place(weight: Tensor) -> None:
    weight.div_(weight.norm())


def unseen(weight: Tensor) -> None:
    weight.data.mul_(0.9)


def anew(weight: Tensor) -> None:
    weight.data = weight.data.clamp(-0.01, 0.01)


def nothing(weight: Tensor) -> None:
    weight.data = weight.data.clone()


def said(parallel: dict[str, Any], change: Callable[[Any], Any], **params: Any) -> list[str]:
    """Train for an epoch; return what each rank says, and nothing for one that has ended it."""

    def work(group: Group) -> str:
        try:
            Small(FakeTrial({"model": "changing", **params}, group, parallel=parallel)).step()
        except CommError as error:
            group.close(error)
            return str(error)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "changing", lambda: nn.Sequential(nn.Linear(12, 8), Changing(change)))
        return run_ranks(3, work, timeout=30.0)


USES = [
    {"strategy": "parameter_server", "servers": 2},
    {"strategy": "downpour"},
    {"strategy": "downpour", "n_fetch": 6},  # of which the step of a fifth pass fetches nothing
]


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("parallel", USES, ids=lambda parallel: " ".join(map(str, parallel.values())))
@pytest.mark.parametrize("change", [in_place, unseen, anew])
def test_a_model_that_changes_them_is_refused(parallel, change):
    texts = said(parallel, change)
    assert any(f"{parallel['strategy']} weights that are trained must be changed by the" in text for text in texts)
    assert any("got a model or a loss that changes 1.weight while it is computed" in text for text in texts)
    assert all(texts)


@pytest.mark.parametrize("parallel", USES, ids=lambda parallel: " ".join(map(str, parallel.values())))
@pytest.mark.parametrize("lost", [False, True])
def test_weights_that_stay_what_they_are_aren_t(parallel, lost):
    """Nor those that are no numbers any more."""

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=float("nan") if lost else 0.05)

    assert said(parallel, nothing, optimizer=sgd, accumulate=2) == [""] * 3


class Thawing(nn.Linear):
    """Comes to be trained within an epoch."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.requires_grad_(True)
        return super().forward(inputs)


@pytest.mark.parametrize("parallel", USES, ids=lambda parallel: " ".join(map(str, parallel.values())))
def test_a_layer_that_is_thawed_within_an_epoch_is_refused(parallel, monkeypatch):
    monkeypatch.setitem(MODELS, "thawing", lambda: nn.Sequential(nn.Linear(12, 8), Thawing(8, 5).requires_grad_(False)))
    texts = said(parallel, nothing, model="thawing")
    assert any("layers must be thawed between two epochs, got 2 parameters that have come to" in text for text in texts)
    assert all(texts)
