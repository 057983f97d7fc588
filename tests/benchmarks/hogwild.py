"""Workers that step into one copy of the weights, without locks and with them, beside allreduce, on 1 to 4 processes.

The sparse model is the one of Niu et al. 2011, section 6, on made data of the kind of theirs: logistic regression with
as many features as RCV1 has, of which each row has as many as a document there, drawn as words are, some often and most
rarely. The dense one is a perceptron, of which each step moves every weight. Each process has batches of its own size,
whatever the width; allreduce's rate grows with it (Goyal et al. 2017). An epoch sees all rows once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm import Group
from hpsearch_trainers.evaluation import evaluate
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.benchmarks.figures import Figure
from tests.benchmarks.plot import Line, draw
from tests.comm.process_ranks import ProcessRanks

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DENSE = "allreduce of dense gradients"
STRATEGIES = {"sparse": ("hogwild", "locked", "allreduce", DENSE), "dense": ("hogwild", "locked", "allreduce")}
"""By problem."""
WIDTHS = (1, 2, 3, 4)
EPOCHS = 4
FEATURES, PRESENT = 47_236, 75
"""Of RCV1: words, and how many of them a document has."""


class _Sparse(nn.Module):
    """Logistic regression on features that are there or not."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.weights = nn.EmbeddingBag(FEATURES, 1, mode="sum", sparse=sparse)
        nn.init.zeros_(self.weights.weight)

    def forward(self, inputs: Tensor) -> Any:
        return self.weights(inputs).squeeze(1) / PRESENT**0.5


class SparseRegression(Trainer):
    """The sparse problem."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        generator = torch.Generator().manual_seed(1)
        often = 1.0 / torch.arange(1.0, FEATURES + 1)  # as words are (Zipf)
        rows = 20_000
        inputs = torch.multinomial(often, rows * PRESENT, replacement=True, generator=generator).view(rows, PRESENT)
        truth = torch.randn(FEATURES, generator=generator)
        logits = truth[inputs].sum(1) / PRESENT**0.5
        targets = (logits + 0.5 * torch.randn(rows, generator=generator) > 0).float()
        model = _Sparse(params["sparse"])
        optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
        loss = functional.binary_cross_entropy_with_logits
        return Parts(model, optimizer, loss, train=(inputs, targets), batch_size=16)


class DensePerceptron(Trainer):
    """The dense problem."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        generator = torch.Generator().manual_seed(1)
        rows, features, classes = 8_000, 256, 10
        inputs = torch.randn(rows, features, generator=generator)
        teacher = nn.Linear(features, classes)
        nn.init.normal_(teacher.weight, generator=generator)
        targets = teacher(torch.tanh(inputs)).argmax(1)
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return Parts(model, optimizer, functional.cross_entropy, train=(inputs, targets), batch_size=16)


@dataclass(frozen=True, slots=True)
class _Trial:
    group: Group
    parallel: Mapping[str, Any]
    params: Mapping[str, Any]
    scaling: Mapping[str, Any] = field(default_factory=lambda: {"batch": "per_worker", "warmup_epochs": 0})
    seed: int = 7

    @property
    def world_size(self) -> int:
        return self.group.size


_PROBLEMS = {"sparse": SparseRegression, "dense": DensePerceptron}


def timed(group: Group, problem: str, strategy: str) -> tuple[float, float]:
    """Return the seconds of the fastest epoch after the first, and the final loss on all rows; called on a rank."""
    torch.set_num_threads(1)
    parallel = {"strategy": strategy.split()[0] if group.size > 1 else "allreduce"}
    trainer = _PROBLEMS[problem](_Trial(group, parallel, {"sparse": strategy != DENSE}))
    seconds = []
    for _ in range(EPOCHS):
        group.barrier()
        began = time.perf_counter()
        trainer.step()
        seconds.append(time.perf_counter() - began)
    found = evaluate(trainer.model, trainer._train, trainer.parts, trainer.group, trainer._autocast)
    return min(seconds[1:]), found["validation_loss"]


def measure(rounds: int) -> list[Figure]:
    """Time epochs of each strategy at each width, one after the other in each round, and draw both problems."""
    seconds: dict[tuple[str, str, int], list[float]] = {}
    losses: dict[tuple[str, str, int], list[float]] = {}
    turns = [
        (problem, strategy, width)
        for problem in _PROBLEMS
        for strategy in STRATEGIES[problem]
        for width in WIDTHS
        if width > 1 or strategy == "hogwild"  # one process is the same under each
    ]
    with ProcessRanks("tests.benchmarks.hogwild") as ranks:
        for _ in range(rounds):
            for turn in turns:
                problem, strategy, width = turn
                outcome = ranks.call(width, "timed", problem, strategy)[0]
                assert not outcome.error, outcome
                seconds.setdefault(turn, []).append(outcome.result[0])
                losses.setdefault(turn, []).append(outcome.result[1])
                print(*turn, *outcome.result, file=sys.stderr, flush=True)
    figures = []
    for problem, strategies in STRATEGIES.items():
        alone, lines = (problem, "hogwild", 1), []
        figures.append(Figure(f"{problem}, 1 process: epoch", "s", seconds[alone], ""))
        figures.append(Figure(f"{problem}, 1 process: loss", "", losses[alone], ""))
        for strategy in strategies:
            curves = [[1.0] for _ in range(rounds)]
            for width in WIDTHS[1:]:
                turn, name = (problem, strategy, width), f"{problem}, {width} processes, {strategy}"
                figures.append(Figure(f"{name}: epoch", "s", seconds[turn], "", "1 process", seconds[alone]))
                figures.append(Figure(f"{name}: loss", "", losses[turn], "", "1 process", losses[alone]))
                for curve, ours, theirs in zip(curves, seconds[turn], seconds[alone], strict=True):
                    curve.append(theirs / ours)
            lines.append(Line(strategy, curves))
        title = f"{problem.capitalize()} model: speed-up over one process, mean and range over {rounds} rounds"
        ticks = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4)
        (IMAGES / f"hogwild_{problem}.svg").write_text(draw(title, "processes", "times as fast", lines, ticks))
    return figures
