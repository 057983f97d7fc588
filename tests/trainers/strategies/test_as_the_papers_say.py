"""Trials of any make-up, trained in one way after another at any widths, beside plain loops of one process."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm import Group
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.comm.thread_ranks import run_ranks
from tests.trainers.strategies.virtual_workers import (
    BETAS,
    DECAY,
    EPSILON,
    MOMENTUM,
    SEED,
    Segment,
    Setting,
    Worker,
    run_segment,
)
from tests.trainers.test_trainer import FakeTrial

FEATURES, CLASSES, LR = 3, 2, 0.1


class Drawn(nn.Module):
    """A perceptron with a branch that some rows take, a layer that is used twice, and one that is frozen."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, setting.hidden)
        self.second = nn.Linear(setting.hidden, setting.hidden)
        self.branch = nn.Linear(FEATURES, CLASSES) if setting.branch else None
        self.last = nn.Linear(setting.hidden, CLASSES)
        self.twice = setting.tied
        self.double()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
        self.second.requires_grad_(not setting.frozen)

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.second(self.first(inputs).tanh()).tanh()
        if self.twice:
            hidden = self.second(hidden).tanh()
        output, taken = self.last(hidden), inputs[:, 0] > 1.0
        if self.branch is not None and taken.any():
            output = output + taken[:, None] * self.branch(inputs)
        return output


def data(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, (inputs.sum(1) > 0).long()


class Trial(Trainer):
    def build(self, params: Mapping[str, Any]) -> Parts:
        setting, lr = params["setting"], params["lr"]
        model = Drawn(setting)
        weights, biases = ([one for one in model.parameters() if (one.dim() > 1) is many] for many in (True, False))
        groups = [{"params": weights}, {"params": biases, "lr": lr / 2}]
        optimizer: torch.optim.Optimizer
        if setting.optimizer == "adam":
            optimizer = torch.optim.Adam(groups, lr=lr, betas=BETAS, eps=EPSILON)
        else:
            momentum = MOMENTUM if setting.optimizer == "momentum" else 0.0
            optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=DECAY)
        return Parts(
            model,
            optimizer,
            functional.cross_entropy,
            data(setting.rows),
            batch_size=setting.batch,
            clip_norm=setting.clip,
            accumulate=setting.accumulate,
            schedule=setting.rate if setting.falls else None,
        )


def on_ranks(setting: Setting, segment: Segment, state: Any, lr: float) -> tuple[list[float], Any]:
    """Train a segment; return the loss of each epoch, and the checkpoint."""

    def work(group: Group | None) -> tuple[list[float], Any]:
        options = {"servers": segment.servers, "period": segment.period, "momentum": segment.momentum}
        parallel = {"strategy": segment.strategy, **options} if segment.strategy else {}
        parent = None if segment.lr is None or state is None else 3
        params = {"setting": setting, "lr": lr}
        trainer = Trial(FakeTrial(params, group, seed=SEED, parent=parent, parallel=parallel))
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))
        losses = [trainer.step()["loss"] for _ in range(segment.epochs)]
        return losses, copy.deepcopy(trainer.state_dict())

    if not segment.strategy:
        return work(None)
    ranks = segment.workers + (segment.servers if segment.strategy == "parameter_server" else 0)
    found = run_ranks(ranks, work, timeout=60.0)
    assert all(losses == found[0][0] for losses, _ in found)
    return found[0]


def trains_as_the_papers_say(setting: Setting, segments: Sequence[Segment]) -> None:
    shown, begun, lr, state = Worker(Drawn(setting)), 0, LR, None
    apart: list[Worker] = []
    for segment in segments:
        lr = segment.lr if segment.lr is not None else lr
        losses, state = on_ranks(setting, segment, state, lr)
        expected, shown, apart = run_segment(setting, segment, shown, apart, begun, lr, data(setting.rows))
        begun += segment.epochs
        assert losses == pytest.approx(expected, rel=1e-6)
        assert_close(state, shown)
        for own, worker in zip(state.get("strategy", {}).get("workers", []), apart, strict=True):
            assert_close({"model": own["model"], "optimizer": {"state": own["optimizer"]}}, worker)


def assert_close(state: Any, worker: Worker) -> None:
    for name, value in worker.model.state_dict().items():
        assert torch.allclose(state["model"][name], value, rtol=1e-6, atol=1e-9), name
    parameters = worker.parameters()
    ordered = [place for many in (True, False) for place, one in enumerate(parameters) if (one.dim() > 1) is many]
    kept = state["optimizer"]["state"]
    for number, place in enumerate(ordered):
        wanted = worker.states.get(place, {})
        found = {name: value for name, value in kept.get(number, {}).items() if value is not None}
        assert found.keys() == wanted.keys(), (number, found, wanted)
        for name, value in wanted.items():
            assert torch.allclose(
                torch.as_tensor(found[name], dtype=torch.float64),
                torch.as_tensor(value, dtype=torch.float64),
                rtol=1e-6,
                atol=1e-9,
            ), (number, name)


@st.composite
def drawn_segments(draw: Any) -> list[Segment]:
    """Draw ways to train one after another; workers that train apart stay as many."""
    found: list[Segment] = []
    for number in range(draw(st.integers(1, 3))):
        strategy = draw(st.sampled_from(("local_sgd", "average_once", "parameter_server", "")))
        fewest = 1 if strategy == "parameter_server" else 2
        workers = draw(st.integers(fewest, 3)) if strategy else 1
        if found and strategy == found[-1].strategy == "average_once":
            workers = found[-1].workers
        found.append(
            Segment(
                strategy,
                workers,
                epochs=draw(st.integers(1, 2)),
                servers=draw(st.integers(1, 2)),
                period=draw(st.integers(1, 4)),
                momentum=draw(st.sampled_from(("keep", "average"))),
                lr=draw(st.sampled_from((None, 0.03, 0.2))) if number else None,
            )
        )
    return found


SETTINGS = st.builds(
    Setting,
    rows=st.integers(3, 24),
    batch=st.integers(3, 9),
    hidden=st.integers(1, 4),
    branch=st.booleans(),
    tied=st.booleans(),
    frozen=st.booleans(),
    optimizer=st.sampled_from(("sgd", "momentum", "adam")),
    clip=st.sampled_from((None, 0.1)),
    accumulate=st.integers(1, 2),
    falls=st.booleans(),
)


@settings(max_examples=8)
@given(SETTINGS, drawn_segments())
def test_some_trials_are_trained_as_the_papers_say(setting, segments):
    trains_as_the_papers_say(setting, segments)


@pytest.mark.exhaustive
@settings(max_examples=150)
@given(SETTINGS, drawn_segments())
def test_many_trials_are_trained_as_the_papers_say(setting, segments):
    trains_as_the_papers_say(setting, segments)
