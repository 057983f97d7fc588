"""A pack has the bits of each of its trainers alone: drawn networks, settings and lanes against `Trainer.step`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import Fuser, NotFusible, Pack
from tests.trainers.lanes.networks import IMAGE_LAYERS, LAYERS, LOSSES, OPTIMIZERS, Drawn, assert_same, made


def check(lanes: list[dict[str, Any]], epochs: int = 4) -> None:
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    pack = Pack(ours)
    for _ in range(epochs):
        try:
            expected = [trainer.step() for trainer in theirs]
        except ValueError as error:  # a batch of one row can't be normalized
            with pytest.raises(ValueError, match=re.escape(str(error))):
                pack.step()
            return
        except RuntimeError:  # relu in place after relu in place has no gradient
            reject()
        try:
            metrics = pack.step()
        except NotFusible:  # in place behind a view
            reject()
        assert_same(metrics, expected, ours, theirs)


@st.composite
def packs(draw: st.DrawFn, /, layers: Any, **shared: Any) -> list[dict[str, Any]]:
    """Lanes that share their form, and differ in all that may differ."""
    common = shared | {
        "layers": draw(st.lists(st.sampled_from([*layers]), max_size=5)),
        "features": draw(st.integers(1, 12)),
        "hidden": draw(st.integers(1, 40)),
        "batch_size": draw(st.sampled_from([7, 16, 26, 53, 100])),
        "accumulate": draw(st.sampled_from([1, 1, 3])),
        "validation_batch_size": draw(st.sampled_from([5, 22, 64])),
        **draw(st.sampled_from([{}, {"average": 0.9}])),
        **draw(st.sampled_from([{}, {"freeze": 1}])),
    }
    optimizers = draw(st.lists(st.sampled_from([*OPTIMIZERS]), min_size=1, max_size=2))
    lane = st.fixed_dictionaries(
        {
            "lr": st.sampled_from([0.01, 0.1, 0.7]),
            "dropout": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
            "optimizer": st.sampled_from(optimizers),
            "loss": st.sampled_from([*LOSSES]),
        },
        optional={
            "clip_norm": st.sampled_from([0.1, 1.0]),
            "warmup": st.just(1.5),
            "own data": st.integers(5, 7),
            "betas": st.sampled_from([(0.5, 0.9), (0.8, 0.99), (0.95, 0.9999)]),
        },
    )
    return [common | settings for settings in draw(st.lists(lane, min_size=1, max_size=5))]


@given(packs(LAYERS))
@settings(max_examples=20)
def test_rows_of_features(lanes):
    check(lanes)


@pytest.mark.exhaustive
@given(packs(IMAGE_LAYERS, image=True))
@settings(max_examples=15)
def test_images(lanes):
    check(lanes, epochs=3)


@pytest.mark.exhaustive
@given(packs(LAYERS, precision="bf16"))
@settings(max_examples=15)
def test_in_bfloat16_those_are_fused_whose_bits_are_the_same_and_the_others_train_alone(lanes):
    """What rounds to eight bits depends on more than float32 does: a try decides, of each shape."""
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(3):
        try:
            expected = [trainer.step() for trainer in theirs]
        except (ValueError, RuntimeError):  # what has no gradient, or no mean, has none of these alone
            reject()
        assert_same([one.metrics for one in fuser.step(ours)], expected, ours, theirs)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("layers", [["relu"], ["exponential", "linear"], ["powers"]])
def test_lanes_of_adam_with_betas_of_their_own_are_fused(layers):
    betas = [(0.5, 0.9), (0.8, 0.99), (0.9, 0.999), (0.95, 0.9999)]
    lanes = [
        {"layers": layers, "optimizer": "adam", "lr": 0.1 * (1 + n), "betas": pair} for n, pair in enumerate(betas)
    ]
    check(lanes)
    trainers = made(Drawn, lanes)
    assert [(one.lanes, one.alone_because) for one in Fuser(fewest=2).step(trainers)] == [(4, None)] * 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("layers", [["relu"], ["exponential"], ["powers"]])
def test_lanes_in_bfloat16_are_fused_or_say_why_they_arent(layers):
    lanes = [{"layers": layers, "lr": 0.1 * (1 + n), "precision": "bf16"} for n in range(4)]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(3):
        stepped = fuser.step(ours)
        assert all(one.lanes == 4 or one.alone_because for one in stepped)
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)


class ByName(nn.Module):
    """Calls torch's functions with arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 12)
        self.last = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.linear(input=x, weight=self.layer.weight, bias=self.layer.bias)
        x = functional.dropout(input=functional.relu(input=x), p=0.25, training=self.training)
        x = torch.transpose(input=x.unsqueeze(dim=0), dim0=1, dim1=2).transpose(dim0=2, dim1=1).squeeze(dim=0)
        x = torch.mul(input=x, other=torch.sigmoid(input=x)).add(other=x)
        return functional.linear(x, weight=self.last.weight)


class WithNames(Drawn):
    def build(self, params):
        parts = super().build({"layers": [], "batch_size": 16})  # type: ignore[no-untyped-call]
        model = ByName()
        optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"])
        return Parts(model, optimizer, parts.loss, parts.train, parts.validation, batch_size=16)


def test_arguments_may_be_given_by_name():
    lanes = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]
    ours, theirs = made(WithNames, lanes), made(WithNames, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(2):
        stepped = fuser.step(ours)
        assert [(one.lanes, one.alone_because) for one in stepped] == [(3, None)] * 3
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
