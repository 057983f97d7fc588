"""Trainables whose networks are shown, and what the validated network gave, beside the trial's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpsearch.trainable.running_trial import RunningTrial
from hpsearch_trainers.architectures import architecture_of, network
from hpsearch_trainers.digits import digits
from hpsearch_trainers.digits_network import CellNetwork, ChainNetwork, MeasuredChain, Perceptron
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.comm.thread_ranks import run_ranks

ROWS = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(7))
STACK = {
    "cells": {
        "cell": {
            "2": [{"from": 0, "operation": "sep_3x3"}, {"from": 1, "operation": "conv_1x1"}],
            "3": [{"from": 1, "operation": "skip"}, {"from": 2, "operation": "avg_3x3"}],
        },
        "stages": 2,
        "repeats": 2,
        "channels": 3,
    }
}


def keep_outputs(model: nn.Module, trial: Any, epoch: int) -> None:
    """Write what a network gives in evaluation mode."""
    was = model.training
    with torch.no_grad():
        torch.save(model.eval()(ROWS), trial.directory / f"outputs{epoch}.pt")
    model.train(was)


class Probed(Trainer):
    """Keeps what the validated network gives after each epoch, and reports what is best at the first one."""

    def __init__(self, trial: Any) -> None:
        super().__init__(trial)
        self.trial = trial

    def step(self) -> dict[str, float]:
        metrics = super().step()
        keep_outputs(self.model if self._average is None else self._average.module, self.trial, self.epoch)
        return {**metrics, "falling": -float(self.epoch)}


class Chain(Probed, ChainNetwork): ...


class Cell(Probed, CellNetwork): ...


class Dense(Probed, Perceptron): ...


class Measured(Probed, MeasuredChain): ...


class Few(Trainer):
    """Trains a network on few rows."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        return network(params["layers"], head=["adaptive_pool", "flatten"], path="layers")

    def build(self, params: Mapping[str, Any]) -> Parts:
        model, data = self.network(params), digits()
        made = torch.optim.Adam(model.parameters(), lr=params.get("lr", 0.01))
        return Parts(
            model,
            made,
            functional.cross_entropy,
            train=(data.images[:150], data.labels[:150]),
            validation=(data.validation_images[:50], data.validation_labels[:50]),
            average=params.get("average"),
            batch_norm=params.get("batch_norm", "local"),
        )


class Stack(Probed, Few):
    """A stack of cells."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        return network(STACK, stem="conv", path="cells")


class Averaged(Probed, Few):
    """A moving average is validated."""


class Plain(Probed, Few):
    """A model of one's own."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def synchronized(trial: RunningTrial) -> None:
    """Two workers whose batch normalization is one."""

    class Given:
        params: Mapping[str, Any] = {**trial.params, "batch_norm": "sync"}
        seed = 3

        def __init__(self, group: Any) -> None:
            self.group = group

    def train(group: Any) -> Any:
        trainer = Few(Given(group))
        loss = trainer.step()["validation_loss"]
        return loss, trainer.state_dict(), trainer.model

    for iteration in trial.iterations():
        loss, state, model = run_ranks(2, train)[0]
        keep_outputs(model, trial, iteration)
        trial.report({"validation_loss": loss, "falling": 0.0}, checkpoint=lambda state=state: state)


def function(trial: RunningTrial) -> None:
    """A loop of one's own, which says what its network is."""
    model = network(trial.params["layers"])
    for iteration in trial.iterations():
        model(ROWS)  # statistics
        keep_outputs(model, trial, iteration)
        state = {"model": model.state_dict(), "architecture": architecture_of(model)}
        trial.report({"falling": -iteration}, checkpoint=lambda state=state: state)


def weights_alone(trial: RunningTrial) -> None:
    """A loop of one's own, which says nothing."""
    model = nn.Linear(3, 2)
    for iteration in trial.iterations():
        trial.report({"falling": -iteration}, checkpoint=lambda: {"model": model.state_dict()})


def misnamed(trial: RunningTrial) -> None:
    """Says something else."""
    for iteration in trial.iterations():
        trial.report({"falling": -iteration}, checkpoint={"model": {}, "architecture": "resnet"})


def wrong_weights(trial: RunningTrial) -> None:
    """Has weights of another network than it says."""
    for iteration in trial.iterations():
        state = {"model": network(["conv"]).state_dict(), "architecture": architecture_of(network(["separable"]))}
        trial.report({"falling": -iteration}, checkpoint=state)


def no_checkpoint(trial: RunningTrial) -> None:
    """Saves nothing."""
    for iteration in trial.iterations():
        trial.report({"falling": -iteration})
