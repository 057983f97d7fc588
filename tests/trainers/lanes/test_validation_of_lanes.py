"""Losses of the validation of lanes are those that each has alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import Fuser
from hpsearch_trainers.lanes.losses import Losses
from tests.trainers.lanes.networks import CLASSES, Drawn, assert_same, made

COMMON: dict[str, Any] = {"layers": ["relu"], "dropout": 0.1, "validation_batch_size": 10}


def lanes(**settings: Any) -> list[dict[str, Any]]:
    return [{**COMMON, **settings, "lr": 0.05 * (1 + lane)} for lane in range(3)]


def stepped_alike(kind: type[Drawn], settings: list[dict[str, Any]], epochs: int = 2) -> None:
    ours, theirs = made(kind, settings), made(kind, settings)
    fuser = Fuser(fewest=2)
    for _ in range(epochs):
        stepped = fuser.step(ours)
        assert [one.lanes for one in stepped] == [len(ours)] * len(ours)
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether losses of batches to validate on were computed for all lanes at once."""
    told: list[bool] = []

    def noted(self: Losses, output: Any, targets: Any) -> Any:
        losses = of_validation(self, output, targets)
        told.append(losses[0] is not None)
        return losses

    of_validation = Losses.of_validation
    monkeypatch.setattr(Losses, "of_validation", noted)
    return told


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("loss", "is_plain"),
    [
        (functional.cross_entropy, True),
        (nn.CrossEntropyLoss(), True),
        (nn.CrossEntropyLoss(label_smoothing=0.1), False),
        (lambda output, targets: output.square().mean(), False),
    ],
)
def test_plain_cross_entropies_are_computed_at_once_and_other_losses_by_each_lane(at_once, loss, is_plain):
    class Losing(Drawn):
        def build(self, params):
            return dataclasses.replace(super().build(params), loss=loss)  # type: ignore[no-untyped-call]

    stepped_alike(Losing, lanes())
    assert set(at_once) == {is_plain}


def test_rows_whose_targets_are_to_be_left_out_are(at_once):
    class Leaving(Drawn):
        """Some of its targets to validate on are those that torch leaves out."""

        def build(self, params):
            parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
            inputs, targets = parts.validation  # type: ignore[misc]
            some = torch.where(torch.arange(len(targets)) % 4 == 0, -100, targets)
            return dataclasses.replace(parts, validation=(inputs, some), loss=functional.cross_entropy)

    stepped_alike(Leaving, lanes())
    assert set(at_once) == {False}


class Doubling(nn.Module):
    """A module that returns each row twice in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else torch.cat([x, x])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda parts: {"model": nn.Sequential(parts.model, Doubling())}, "batch_size"),
        (lambda parts: {"validation": (parts.validation[0], parts.validation[1] + CLASSES)}, "out of bounds"),
    ],
)
def test_what_torch_refuses_fails_each_lane(change, told):
    class Wrong(Drawn):
        def build(self, params):
            parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
            changed = {"loss": functional.cross_entropy, "metrics": {}, **change(parts)}
            return dataclasses.replace(parts, **changed)

    settings = lanes()
    ours, theirs = made(Wrong, settings), made(Wrong, settings)
    for stepped, alone in zip(Fuser(fewest=2).step(ours), theirs, strict=True):
        with pytest.raises((ValueError, IndexError), match=told) as raised:
            alone.step()
        assert type(stepped.error) is type(raised.value)
        assert str(stepped.error) == str(raised.value)
