"""What is taken of a model in one pass is what torch's own walks give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_trainers.lanes.models import modules_of, named_modules_of, set_training, tensors_of


class Shared(nn.Module):
    """Has a layer in two places, a tensor under two names, a buffer, and places that are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.inner = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3, affine=False), self.first)
        self.last = nn.Linear(3, 3)
        self.last.weight = self.first.weight
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("nothing", None)
        self.register_module("nobody", None)


class Frozen(nn.BatchNorm1d):
    """Stays in evaluation mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


class Noting(nn.Module):
    """Counts what is set on it."""

    def __init__(self) -> None:
        vars(self)["sets"] = 0
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["sets"] += 1
        super().__setattr__(name, value)


class Evaluated(nn.Module):
    """Does more when it is put into evaluation mode."""

    scale = 1

    def eval(self) -> Evaluated:
        self.scale = 2
        return super().eval()


def test_modules_places_and_tensors_are_torchs_in_its_order():
    model = Shared()
    assert list(map(id, modules_of(model))) == list(map(id, model.modules()))
    assert [*named_modules_of(model)] == [*model.named_modules(remove_duplicate=False)]
    theirs = [*model.parameters(), *model.buffers()]
    assert list(map(id, tensors_of(model))) == list(map(id, theirs))


@pytest.mark.parametrize("kind", [Frozen, nn.BatchNorm1d])
def test_the_mode_is_set_as_torch_sets_it(kind):
    ours, theirs = (nn.Sequential(nn.Linear(3, 3), nn.Sequential(kind(3))) for _ in range(2))
    for mode in (False, True, False):
        set_training(ours, mode)
        theirs.train(mode)
        assert [one.training for one in ours.modules()] == [one.training for one in theirs.modules()]


def test_a_model_is_told_of_its_mode_in_its_own_way():
    noting, model = Noting(), nn.ReLU()
    before = vars(noting)["sets"]
    set_training(nn.Sequential(noting), True)
    assert vars(noting)["sets"] == before + 1

    calls: list[bool] = []
    model.train = calls.append  # type: ignore[assignment, method-assign]
    set_training(model, False)
    assert (calls, model.training) == ([False], True)

    own = Evaluated()
    set_training(own, False)
    assert (own.scale, own.training) == (2, False)
