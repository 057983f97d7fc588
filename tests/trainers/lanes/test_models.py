"""What is taken of a model in one pass is what torch's own walks give."""

from __future__ import annotations

import torch
from torch import nn

from hpsearch_trainers.lanes.models import modules_of, tensors_of


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


def test_modules_and_tensors_are_torchs_in_its_order():
    model = Shared()
    assert list(map(id, modules_of(model))) == list(map(id, model.modules()))
    theirs = [*model.parameters(), *model.buffers()]
    assert list(map(id, tensors_of(model))) == list(map(id, theirs))
