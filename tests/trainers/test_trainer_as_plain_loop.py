"""Trainers of any make-up, on any widths, against a plain loop in float64 that knows nothing of workers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset

from hpsearch_comm import Group
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.schedules import cosine, polynomial, steps, warmup
from hpsearch_trainers.shards import epoch_order
from hpsearch_trainers.trainer import Trainer
from hpsearch_trainers.weight_decay import decay_groups
from tests.comm.thread_ranks import run_ranks
from tests.trainers.test_trainer import FakeTrial

SEED, LR = 7, 0.02

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], str]] = {
    "sgd": (lambda groups, lr: torch.optim.SGD(groups, lr=lr), "linear"),
    "nesterov": (lambda groups, lr: torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True), "linear"),
    "adamw": (lambda groups, lr: torch.optim.AdamW(groups, lr=lr, eps=1e-3), "sqrt"),
    "amsgrad": (
        lambda groups, lr: torch.optim.Adam(groups, lr=torch.tensor(lr, dtype=torch.float64), eps=1e-3, amsgrad=True),
        "sqrt",
    ),
    "rmsprop": (lambda groups, lr: torch.optim.RMSprop(groups, lr=lr, eps=1e-3, centered=True, momentum=0.5), "sqrt"),
    "adagrad": (lambda groups, lr: torch.optim.Adagrad(groups, lr=lr, eps=1e-3), "none"),
    "lars": (lambda groups, lr: LARS(groups, lr=lr, trust=0.1), "linear"),
    "lamb": (lambda groups, lr: LAMB(groups, lr=lr, eps=1e-3), "sqrt"),
}
SCHEDULES: dict[str, Callable[[float], float] | None] = {
    "none": None,
    "steps": steps([1, 2], 0.5),
    "cosine": cosine(5, 0.1),
    "polynomial": polynomial(6),
    "warmup": lambda epoch: warmup(1.5, 0.1)(epoch) * cosine(9)(epoch),
}


@dataclass(frozen=True)
class Setting:
    """What a trial is made of."""

    norm: str
    """`batch` normalizes by the rows of all workers."""
    optimizer: str
    schedule: str
    rows: int
    batch: int
    accumulate: int
    clip: float | None
    average: float | None
    frozen: str
    data: str
    per_worker: bool
    warmup: float
    largest: int | None
    segments: tuple[tuple[int, int, float | None], ...]
    """Of each: workers, epochs, and the rate of a fork that it begins with."""


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.sampled_from([None, None, LR / 2])), min_size=1, max_size=3
)
SETTINGS = st.builds(
    Setting,
    norm=st.sampled_from(["layer", "batch"]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    rows=st.integers(1, 14),
    batch=st.integers(3, 6),
    accumulate=st.integers(1, 3),
    clip=st.sampled_from([None, 0.5]),
    average=st.sampled_from([None, 0.7]),
    frozen=st.sampled_from(["none", "bias", "left out"]),
    data=st.sampled_from(["tensors", "pairs", "dicts"]),
    per_worker=st.booleans(),
    warmup=st.sampled_from([0.0, 1.5]),
    largest=st.sampled_from([None, 8]),
    segments=SEGMENTS.map(tuple),
)


def numbers(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(rows, 2, generator=generator, dtype=torch.float64)


class Rows(Dataset[Any]):
    """The same numbers, row by row."""

    def __init__(self, inputs: Tensor, targets: Tensor, *, named: bool) -> None:
        self.inputs, self.targets, self.named = inputs, targets, named

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> Any:
        inputs, targets = self.inputs[row].numpy(), self.targets[row]
        if not self.named:
            return inputs, targets
        return {"x": inputs, "number": row, "name": "row"}, (targets, {"twice": 2 * targets, "name": "row"}, 1.0)


class Network(nn.Module):
    """Two layers, of inputs by name or not."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.norm = nn.LayerNorm(4) if norm == "layer" else nn.BatchNorm1d(4)
        self.double()
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.linspace(-1, 1 + number / 5, parameter.numel()).view_as(parameter))

    def forward(self, inputs: Any) -> Any:
        return self.last(torch.tanh(self.norm(self.first(inputs["x"] if isinstance(inputs, Mapping) else inputs))))


def squares(output: Tensor, targets: Any) -> Tensor:
    return (output - (targets if isinstance(targets, Tensor) else targets[1]["twice"] / 2)).square().sum(1)


def groups_of(model: Network, frozen: str) -> list[dict[str, Any]]:
    """Return two groups of the trainable parameters, the second with a rate of its own."""
    model.first.bias.requires_grad_(frozen != "bias")
    decaying, plain = decay_groups(model, 0.01, biases=False)
    if frozen == "left out":  # it gets a gradient that nobody uses
        decaying["params"] = [p for p in decaying["params"] if p is not model.last.weight]
    return [decaying, plain]


class Fuzzed(Trainer):
    def build(self, params: Mapping[str, Any]) -> Parts:
        setting: Setting = params["setting"]
        model = Network(setting.norm)
        train, validation = numbers(setting.rows, 1), numbers(5, 2)
        named = setting.data == "dicts"
        return Parts(
            model,
            OPTIMIZERS[setting.optimizer][0](groups_of(model, setting.frozen), params["lr"]),
            lambda output, targets: squares(output, targets).mean(),
            train if setting.data == "tensors" else Rows(*train, named=named),
            validation if setting.data == "tensors" else Rows(*validation, named=named),
            {"far": lambda output, targets: (squares(output, targets) > 1).double()},
            setting.batch,
            2,
            schedule=SCHEDULES[setting.schedule],
            accumulate=setting.accumulate,
            clip_norm=setting.clip,
            average=setting.average,
            batch_norm="sync",
        )


def trained(setting: Setting) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Train segment by segment, each on its own width; the workers of each agree to the bit."""
    scaling = {
        "batch": "per_worker" if setting.per_worker else "global",
        "warmup_epochs": setting.warmup,
        "max_global_batch": setting.largest,
    }
    state: Any = None
    metrics: list[dict[str, float]] = []
    lr = LR
    for width, epochs, forked in setting.segments:
        lr = forked or lr
        parent = 0 if forked and state is not None else None

        def train(
            group: Group | None, lr: float = lr, parent: int | None = parent, state: Any = state, epochs: int = epochs
        ) -> tuple[list[dict[str, float]], Any]:
            trainer = Fuzzed(FakeTrial({"setting": setting, "lr": lr}, group, scaling, SEED, parent))
            if state is not None:
                trainer.load_state_dict(copy.deepcopy(state))
            found = [trainer.step() for _ in range(epochs)]
            return found, copy.deepcopy(trainer.state_dict())

        results = [train(None)] if width == 1 else run_ranks(width, train)
        for found, ended in results:
            assert found == results[0][0]
            assert all(torch.equal(value, results[0][1]["model"][name]) for name, value in ended["model"].items())
        metrics += results[0][0]
        state = results[0][1]
    return metrics, state["model"]


def plain(setting: Setting) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Do the same on whole batches, with the rates worked out by hand."""
    make, rule = OPTIMIZERS[setting.optimizer]
    power = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[rule]
    schedule = SCHEDULES[setting.schedule] or (lambda _: 1.0)
    model, average, found = Network(setting.norm), None, []
    optimizer = make(groups_of(model, setting.frozen), LR)
    trained_ones = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    inputs, targets = numbers(setting.rows, 1)
    began, start, goal, before, lr, epoch = 0.0, 1.0, 1.0, None, LR, 0
    for width, epochs, forked in setting.segments:
        lr = forked or lr
        batch = setting.batch * width if setting.per_worker else setting.batch
        batch = batch if setting.largest is None else min(batch, max(setting.largest, setting.batch))
        wanted = (batch / setting.batch) ** power
        if wanted != goal:
            done = 1.0 if setting.warmup == 0 else min((epoch - began) / setting.warmup, 1.0)
            began, start, goal = float(epoch), min(start + (goal - start) * done, wanted), wanted
        for _ in range(epochs):
            count, total = math.ceil(setting.rows / batch), 0.0
            for step, rows in enumerate(torch.split(epoch_order(SEED, epoch, setting.rows), batch)):
                moment = epoch + step / count
                done = 1.0 if setting.warmup == 0 else min((moment - began) / setting.warmup, 1.0)
                rate = lr * (start + (goal - start) * done) * schedule(moment)
                for group in optimizer.param_groups:
                    group["lr"] = torch.tensor(rate, dtype=torch.float64) if isinstance(group["lr"], Tensor) else rate
                if setting.optimizer == "lars" and before is not None:  # Goyal et al. 2017, remark 2
                    for kept in optimizer.state.values():
                        kept["momentum_buffer"] *= rate / before
                before = rate
                loss = squares(model.train()(inputs[rows]), targets[rows]).mean()
                model.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if setting.clip is not None:
                    norm = torch.stack([p.grad.square().sum() for p in trained_ones if p.grad is not None]).sum().sqrt()
                    for parameter in trained_ones:
                        if parameter.grad is not None:
                            parameter.grad *= min(1.0, setting.clip / (float(norm) + 1e-6))
                optimizer.step()
                total += float(loss.detach()) * len(rows)
                if setting.average is not None:
                    if average is None:
                        average = copy.deepcopy(model)
                    for one, other in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                        one.copy_(setting.average * one + (1 - setting.average) * other)
            epoch += 1
            more, wanted_there = numbers(5, 2)
            errors = squares((average or model).eval()(more), wanted_there).detach()
            found.append(
                {
                    "loss": total / setting.rows,
                    "learning_rate": rate,
                    "global_batch": batch,
                    "validation_loss": float(errors.mean()),
                    "far": float((errors > 1).double().mean()),
                }
            )
    return found, model.state_dict()


PLAIN = Setting("layer", "sgd", "none", 14, 6, 1, None, None, "none", "tensors", False, 0.0, None, ((1, 2, None),))


@settings(max_examples=25, deadline=None)
@example(replace(PLAIN, frozen="left out", clip=0.5))
@example(replace(PLAIN, data="dicts", accumulate=3, segments=((1, 1, None), (2, 1, None), (3, 1, LR / 2))))
@example(replace(PLAIN, norm="batch", average=0.7, segments=((3, 2, None), (2, 1, None))))
@given(SETTINGS)
def test_a_trainer_does_as_a_plain_loop(setting):
    if setting.norm == "batch":
        setting = replace(setting, accumulate=1)  # rows of a pass are normalized together, not those of a step
    try:
        expected, right = plain(setting)
    except ValueError:  # a batch of one row can't be normalized
        reject()
    found, weights = trained(setting)
    for epoch, values in zip(found, expected, strict=True):
        for name, value in values.items():
            assert epoch[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    for name, weight in right.items():
        assert torch.allclose(weights[name], weight, rtol=1e-6, atol=1e-9), name
