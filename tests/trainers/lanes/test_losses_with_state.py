"""A loss that keeps something from batch to batch is as if nothing had been tried with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts
from hpsearch_trainers.lanes import Fuser, NotFusible, Pack
from hpsearch_trainers.lanes.shape_key import describe
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


class WithClosures(Drawn):
    """Its loss and its metric count in all the places that a function has."""

    def build(self, params):
        parts = super().build(params)  # type: ignore[no-untyped-call]
        losses: list[float] = []
        table, scale, calls = {"rows": 0}, torch.ones(()), 0
        generator = torch.Generator().manual_seed(3)
        self.seen = 0

        def loss(output: Tensor, target: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            self.seen += 1
            scale.mul_(1.01)
            losses.append(1.0)
            noise = torch.rand((), generator=generator)
            return functional.cross_entropy(output, target) * scale * (calls + len(losses) + self.seen + noise)

        def rows(output: Tensor, target: Tensor) -> Tensor:
            table["rows"] += len(target)
            return torch.full((len(target),), float(table["rows"]))

        return Parts(parts.model, parts.optimizer, loss, parts.train, parts.validation, metrics={"rows": rows})


def test_functions_that_count_go_on_from_where_they_were():
    lanes = [{"lr": lr, "layers": ["relu"]} for lr in (0.001, 0.01, 0.003)]
    ours, theirs = made(WithClosures, lanes), made(WithClosures, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(3):
        told = [one.metrics for one in fuser.step(ours)]
        assert_same(told, [one.step() for one in theirs], ours, theirs)


class Own(nn.Module):
    """Has a function of its own making."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 3)
        self.change = lambda x: x * power


def test_functions_made_anew_are_compared_by_what_they_do():
    assert describe(Own(2)) == describe(Own(2)) != describe(Own(3))


def test_a_function_that_calls_itself_is_told_from_others():
    model = Own(2)

    def change(x: Tensor) -> Tensor:
        return x if x.dim() == 0 else change(x[0])

    model.change = change
    with pytest.raises(NotFusible, match="holds itself"):
        describe(model)


class WithEpochs(Drawn):
    """Its loss looks at the epoch, which in validation is the next one."""

    def build(self, params):
        parts = super().build(params)  # type: ignore[no-untyped-call]

        def loss(output: Tensor, target: Tensor) -> Tensor:
            return functional.cross_entropy(output, target) * (1 + 0.1 * self.epoch)

        return Parts(parts.model, parts.optimizer, loss, parts.train, parts.validation)


def test_a_loss_that_looks_at_the_epoch_sees_the_same_as_alone():
    lanes = [{"lr": lr, "layers": ["relu"]} for lr in (0.01, 0.1, 0.3)]
    ours, theirs = made(WithEpochs, lanes), made(WithEpochs, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(3):
        stepped = fuser.step(ours)
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
    assert {one.lanes for one in stepped} == {3}
