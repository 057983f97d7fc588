"""Lanes with other noise than alone: that they train alike is tried with the same noise for both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_trainers.lanes import Pack
from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rounded_rule
from hpsearch_trainers.lanes.probe import check_gradients
from hpsearch_trainers.trainer import Trainer
from tests.trainers.lanes.networks import LAYERS, Drawn, assert_same, made
from tests.trainers.lanes.ways import ALL_WAYS

LANES: list[dict[str, Any]] = [
    {"layers": ["gated", "counting", "batch norm"], "dropout": 0.3, "optimizer": "adam", "average": 0.5},
    {"layers": ["gated", "counting", "batch norm"], "dropout": 0.0, "optimizer": "adam", "average": 0.5},
]


def pack_of(trainers: list[Trainer]) -> Pack:
    return Pack(trainers, 4, {}, at_once=True)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("params", [{}, {"loss": "smoothed"}, {"loss": "margin"}, {"freeze": 0}, {"accumulate": 2}])
def test_those_that_train_alike_pass_and_are_as_they_were(params):
    lanes = [lane | params for lane in LANES]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    pack = pack_of(ours)
    check_gradients(ours, pack)
    assert_same((), (), ours, theirs)
    pack.step()
    other = pack_of(theirs)
    other.step()
    assert_same((), (), ours, theirs)
    check_gradients(ours, pack)
    assert_same((), (), ours, theirs)


def test_channels_that_are_dropped_are_the_same_for_both():
    ours = made(Drawn, [{"image": True, "layers": ["dropout", "relu", "dropout"]}] * 2)
    check_gradients(ours, pack_of(ours))


def test_what_has_no_number_says_nothing():
    ours = made(Drawn, [{"layers": []}] * 2)
    for one in ours[0].model.parameters():
        one.data.fill_(float("nan"))
    check_gradients(ours, pack_of(ours))


class Steep(nn.Module):
    """Has another derivative as a lane, see below."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.atan(x)


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.atan(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@ALL_WAYS
def test_one_that_trains_otherwise_is_found_where_noise_is_another_and_runs_alone(way, monkeypatch):
    from hpsearch_trainers.lanes import lane_tensor

    monkeypatch.setattr(lane_tensor, "_ROUNDED_RULES", dict(lane_tensor._ROUNDED_RULES))

    @rounded_rule(torch.atan)
    def _with_a_wrong_derivative(func: Any, x: LaneTensor) -> LaneTensor:
        return LaneTensor.of_stack(_Wrong.apply(x.stack), x.generators)  # type: ignore[no-untyped-call]

    monkeypatch.setitem(LAYERS, "steep", lambda _: Steep())
    lanes = [{"layers": ["steep"], "lr": lr} for lr in (0.1, 0.2)]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser = way(4)
    stepped = fuser.step(ours)
    if not fuser._at_once(ours[0].device):
        assert [one.alone_because for one in stepped] == [None] * 2, "as the noise is that of each alone"
        return
    for one in stepped:
        assert (
            one.alone_because == "its model or its loss gives other gradients as a lane than alone, from equal weights"
        )
    assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
