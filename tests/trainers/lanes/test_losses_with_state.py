"""A loss that keeps something from batch to batch is as if nothing had been tried with it."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import Fuser, Pack
from tests.trainers.lanes.networks import Drawn, assert_same, made


class Growing(nn.Module):
    """Counts its batches, and weighs each more than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.batches += 1
        return functional.cross_entropy(output, target) * (1 + 0.01 * self.batches)


class WithGrowing(Drawn):
    def build(self, params):
        parts = super().build(params)  # type: ignore[no-untyped-call]
        return Parts(parts.model, parts.optimizer, Growing(), parts.train, parts.validation)


def test_a_loss_that_counts_goes_on_from_where_it_was():
    lanes = [{"lr": lr, "layers": ["relu"]} for lr in (0.01, 0.1, 0.3)]
    ours, theirs = made(WithGrowing, lanes), made(WithGrowing, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(3):
        told = [one.metrics for one in fuser.step(ours)]
        assert_same(told, [one.step() for one in theirs], ours, theirs)


def test_a_failed_epoch_takes_back_what_a_loss_has_counted():
    ours = made(WithGrowing, [{"lr": 0.1, "layers": ["relu"]}] * 2)

    class Broken(Growing):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            raise ArithmeticError

    ours[1].parts = Parts(ours[1].model, ours[1].optimizer, Broken(), ours[1].parts.train, ours[1].parts.validation)
    first = ours[0].parts.loss
    with pytest.raises(ArithmeticError):
        Pack(ours).step()
    assert isinstance(first, Growing)
    assert first.batches == 0
