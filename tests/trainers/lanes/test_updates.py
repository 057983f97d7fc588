"""Packs whose optimizers step together for as long as that is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.lanes import Fuser
from hpsearch_trainers.lanes.stacked_steps import StackedSteps
from tests.trainers.lanes.networks import Drawn, assert_same, made

KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@pytest.fixture
def together(monkeypatch):
    """How often optimizers have stepped together."""
    calls: list[int] = []
    step = StackedSteps.__call__

    def counted(steps: StackedSteps, gradients: Sequence[Tensor | None]) -> None:
        calls.append(len(gradients))
        step(steps, gradients)

    monkeypatch.setattr(StackedSteps, "__call__", counted)
    return calls


class TwoHeads(Trainer):
    """Its loss is of the first head alone where a batch has few rows."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        model = _Heads()
        generator = torch.Generator().manual_seed(0)
        data = torch.randn(37, 5, generator=generator), torch.randint(3, (37,), generator=generator)
        optimizer = KINDS[params["optimizer"]](model.parameters(), params["lr"])
        return Parts(model, optimizer, of_heads, data, data, batch_size=16)


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.other = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = torch.relu(self.body(x))
        return self.one(inner), self.other(inner)


def of_heads(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    one, other = output
    loss = functional.cross_entropy(one, targets)
    return loss if len(targets) < 16 else loss + functional.cross_entropy(other, targets)


def check(ours: list[Trainer], theirs: list[Trainer], epochs: int = 3) -> None:
    fuser = Fuser(fewest=2)
    for _ in range(epochs):
        stepped = fuser.step(ours)
        assert [one.lanes for one in stepped] == [len(ours)] * len(ours)
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_plain_optimizers_step_together_but_for_those_first_steps_that_make_their_state(optimizer, together):
    lanes = [
        {"layers": ["relu"], "optimizer": optimizer, "lr": 0.1 * (1 + lane), "clip_norm": 0.5} for lane in range(3)
    ]
    check(made(Drawn, lanes), made(Drawn, lanes))
    assert together


def test_lanes_with_optimizers_of_several_kinds_step_with_their_like(together):
    kinds = ["adam", "rmsprop", "sgd", "fused sgd", "adam", "sgd"]
    lanes = [{"layers": ["relu"], "optimizer": kind, "lr": 0.05 * (1 + lane)} for lane, kind in enumerate(kinds)]
    check(made(Drawn, lanes), made(Drawn, lanes))
    assert together


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("optimizer", ["nesterov", "fused adam", "fused adamw", "adam as adamw"])
def test_fused_optimizers_have_the_bits_of_their_own_steps(optimizer):
    betas = [(0.5, 0.9), (0.8, 0.99), (0.95, 0.9999)]
    lanes = [{"layers": ["relu"], "optimizer": optimizer, "lr": 0.1 * (1 + n), "betas": b} for n, b in enumerate(betas)]
    check(made(Drawn, lanes), made(Drawn, lanes))


@pytest.mark.parametrize("optimizer", KINDS)
def test_a_parameter_without_a_gradient_in_some_steps_is_left_alone_in_these(optimizer):
    lanes = [{"optimizer": optimizer, "lr": 0.1 * (1 + lane)} for lane in range(3)]
    check(made(TwoHeads, lanes), made(TwoHeads, lanes))


class Meddling(Drawn):
    """Its loss turns the momentum off in the middle of its third epoch, which no try comes to."""

    def build(self, params):
        parts: Parts = Drawn.build(self, params)  # type: ignore[no-untyped-call]
        return dataclasses.replace(parts, loss=self.loss)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.epoch == 2 and self.model.training and len(targets) < self.parts.batch_size:
            for group in self.optimizer.param_groups:
                group["momentum"] = 0.0
        return functional.cross_entropy(output, targets)


def test_a_loss_that_makes_another_optimizer_of_it_within_an_epoch_trains_alone(together):
    common = {"layers": ["relu"], "optimizer": "momentum", "batch_size": 16}
    lanes = [{**common, "lr": 0.1 * (1 + lane)} for lane in range(2)]
    ours, theirs = made(Meddling, lanes), made(Meddling, lanes)
    fuser = Fuser(fewest=2)
    for reason in (None, None, "its optimizer's settings change within an epoch"):
        stepped = fuser.step(ours)
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
        assert [one.alone_because for one in stepped] == [reason] * 2
    assert together
