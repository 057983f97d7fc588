"""What a loss or a schedule does to its trainer in the middle of an epoch, and finds there, is what it is alone."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.lanes import Fuser
from tests.trainers.lanes.networks import Drawn, assert_same, made

OTHERS = ["sgd", "adam", "adamw", "fused sgd", "rmsprop"]


class Meddling(Drawn):
    """Its loss or schedule calls `meddle`, of its params, in the middle of its third epoch, which no try comes to."""

    def build(self, params):
        parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
        layers, optimizer = [*parts.model.children()], parts.optimizer
        assert isinstance(optimizer, torch.optim.Optimizer)
        if params["meddle"] in (thaw, group):
            layers[0].requires_grad_(False)
            of_head = {*layers[-1].parameters()}
            for one in optimizer.param_groups if params["meddle"] is group else []:
                one["params"] = [parameter for parameter in one["params"] if parameter in of_head]
        given: dict[str, Any] = {params["by"]: getattr(self, params["by"])}
        return dataclasses.replace(parts, **given)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.epoch == 2 and self.model.training and len(targets) < self.parts.batch_size:
            self.params["meddle"](self)
        return functional.cross_entropy(output, targets)

    def schedule(self, epoch: float) -> float:
        if 2.5 <= epoch < 3:
            self.params["meddle"](self)
        return 1.0


def thaw(trainer: Any) -> None:
    trainer.model[0].requires_grad_(True)


def freeze(trainer: Any) -> None:
    trainer.model[0].weight.requires_grad_(False)


def rate_of_dropout(trainer: Any) -> None:
    trainer.model[2].p = 0.6


def mode(trainer: Any) -> None:
    trainer.model[2].eval()


def layer(trainer: Any) -> None:
    trainer.model[1] = nn.Tanh()


def hook_of_a_layer(trainer: Any) -> None:
    trainer.model[0].register_forward_hook(lambda *given: given[-1] * 0.5)


def hook_of_a_weight(trainer: Any) -> None:
    trainer.model[0].bias.register_hook(lambda gradient: gradient * 0.5)


def hook_of_the_optimizer(trainer: Any) -> None:
    trainer.optimizer.register_step_post_hook(lambda *_: trainer.model[0].bias.data.mul_(0.9))


def group(trainer: Any) -> None:
    if not trainer.model[0].weight.requires_grad:
        thaw(trainer)
        trainer.optimizer.add_param_group({"params": [*trainer.model[0].parameters()]})


def optimizer(trainer: Any) -> None:
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.3)


def momentum(trainer: Any) -> None:
    for group in trainer.optimizer.param_groups:
        if "momentum" in group:
            group["momentum"] = 0.0 if trainer.params["optimizer"] == "momentum" else 0.5


def rate_of_a_group(trainer: Any) -> None:
    groups = trainer.optimizer.param_groups
    groups[0] = {**groups[0], "lr": 0.02}


def written_to(trainer: Any) -> None:
    for state in trainer.optimizer.state.values():
        for name, value in state.items():
            if name != "step":
                value.mul_(0.5)


def dropped(trainer: Any) -> None:
    trainer.optimizer.state.clear()


def weights(trainer: Any) -> None:
    trainer.model[0].weight.data.mul_(0.9)


MEDDLE = [
    *(thaw, freeze, rate_of_dropout, mode, layer, hook_of_a_layer, hook_of_a_weight, hook_of_the_optimizer, group),
    *(optimizer, momentum, rate_of_a_group, written_to, dropped, weights),
]


def trained_alike(kind: type[Trainer], lanes: list[dict[str, Any]], epochs: int = 4) -> list[Any]:
    """Train for so many epochs, or until all fail, and compare."""
    ours, theirs = made(kind, lanes), made(kind, lanes)
    fuser = Fuser(fewest=2)
    for _ in range(epochs):
        stepped = fuser.step(ours)
        failed = [one.error for one in stepped if one.error is not None]
        if failed:
            assert len(failed) == len(ours)
            for error, trainer in zip(failed, theirs, strict=True):
                with pytest.raises(type(error), match=re.escape(str(error))):
                    trainer.step()
            break
        assert_same([one.metrics for one in stepped], [one.step() for one in theirs], ours, theirs)
    return stepped


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("meddle", MEDDLE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("by", ["loss", "schedule"])
@pytest.mark.parametrize(
    "optimizer", ["momentum", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in OTHERS)]
)
def test_what_is_changed_in_the_middle_of_an_epoch_counts_from_there_on(
    meddle: Callable[[Any], None], by: str, optimizer: str
):
    common = {"layers": ["relu"], "dropout": 0.1, "batch_size": 16, "by": by, "meddle": meddle, "optimizer": optimizer}
    trained_alike(Meddling, [{**common, "lr": 0.1 * (1 + lane)} for lane in range(2)])


def other_loss(trainer: Any) -> None:
    trainer.parts.loss.label_smoothing = 0.5


class MeddlingMetric(Drawn):
    """Its metric calls `meddle` at the second batch that it validates in its third epoch."""

    def build(self, params):
        parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
        self.seen = 0
        return dataclasses.replace(parts, loss=nn.CrossEntropyLoss(), metrics={"mean": self.mean})

    def mean(self, output: Tensor, targets: Tensor) -> Tensor:
        self.seen += 1
        if self.seen == 12:
            self.params["meddle"](self)
        return output.mean(1)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("meddle", [other_loss, rate_of_dropout, layer, weights, mode], ids=lambda one: one.__name__)
def test_what_is_changed_while_it_is_validated_counts_from_there_on(meddle: Callable[[Any], None]):
    common = {"layers": ["relu"], "dropout": 0.1, "validation_batch_size": 5, "meddle": meddle}
    trained_alike(MeddlingMetric, [{**common, "lr": 0.1 * (1 + lane)} for lane in range(2)])


def norm(tensors: Any) -> float:
    return sum(float(one.norm()) for one in tensors if one is not None)


class Looking(Drawn):
    """Its rate follows what it finds of the step before, and it measures the last gradients."""

    def build(self, params):
        parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
        measures = {"norm": lambda model: norm(one.grad for one in model.parameters())}
        if params.get("head alone"):
            assert isinstance(parts.optimizer, torch.optim.Optimizer)
            parts.optimizer.param_groups[0]["params"] = [*parts.model[-1].parameters()]  # type: ignore[index]
        return dataclasses.replace(parts, schedule=self.schedule if params["looks"] else None, measures=measures)

    def schedule(self, epoch: float) -> float:
        kept = [value for state in self.optimizer.state.values() for value in state.values()]
        return 1 / (1 + norm(one.grad for one in self.model.parameters()) + norm(kept))


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "fused sgd", "rmsprop"])
@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("head_alone", [False, True])
def test_gradients_and_what_the_optimizer_keeps_are_seen_as_alone(optimizer: str, looks: bool, head_alone: bool):
    common = {"layers": ["relu"], "looks": looks, "optimizer": optimizer, "accumulate": 2, "clip_norm": 0.5}
    common["head alone"] = head_alone
    stepped = trained_alike(Looking, [{**common, "lr": 0.1 * (1 + lane)} for lane in range(3)])
    assert [one.lanes for one in stepped] == [3] * 3


class Growing(Drawn):
    """Its rate is `rate` times its own from the last step of its fourth epoch on, which no try comes to."""

    def build(self, params):
        parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
        return dataclasses.replace(parts, schedule=lambda epoch: params["rate"] if epoch >= 3.5 else 1.0)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_a_rate_that_torch_refuses_fails_its_trial_alone(optimizer: str):
    common = {"layers": ["relu"], "optimizer": optimizer, "lr": 0.5}
    trainers = made(Growing, [{**common, "rate": rate} for rate in (1.0, 1e40, 1.0)])
    fuser = Fuser(fewest=2)
    *_, before, after = [fuser.step(trainers) for _ in range(4)]
    assert [(one.error, one.lanes) for one in before] == [(None, 3)] * 3
    assert ["overflow" in str(one.error) for one in after] == [False, True, False]


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("rate", [math.inf, math.nan, 0.0, -1.0])
def test_any_other_rate_is_what_it_is_alone(optimizer: str, rate: float):
    common = {"layers": ["relu"], "optimizer": optimizer, "lr": 0.5, "rate": rate}
    stepped = trained_alike(Growing, [common] * 2, epochs=4)
    assert [one.lanes for one in stepped] == [2] * 2


class Repeated(Drawn):
    """Its optimizer has a weight twice, as where a list is put together of layers that share it."""

    def build(self, params):
        parts: Parts = super().build(params)  # type: ignore[no-untyped-call]
        with pytest.warns(UserWarning, match="duplicate parameters"):
            own = params["kind"]([*parts.model.parameters(), next(parts.model.parameters())], **params["settings"])
        return dataclasses.replace(parts, optimizer=own)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
        (torch.optim.AdamW, {"lr": 0.01}),
    ],
)
def test_a_weight_that_its_optimizer_has_twice_is_stepped_twice(kind: Any, settings: dict[str, Any]):
    trained_alike(Repeated, [{"layers": ["relu"], "kind": kind, "settings": settings}] * 2)
