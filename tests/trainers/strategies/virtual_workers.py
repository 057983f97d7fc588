"""Ways to train with several workers as their papers define them: plain loops in float64 that know of no ranks.

Each worker has a model and what an optimizer keeps for its parameters. SGD, Adam and means are written out.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.shards import epoch_order, rows_of_rank

MOMENTUM, BETAS, EPSILON, DECAY = 0.9, (0.9, 0.999), 1e-3, 0.01
SEED = 7


@dataclass(frozen=True)
class Setting:
    """What a trial is made of, whatever it is trained with."""

    rows: int
    batch: int
    hidden: int
    branch: bool
    """Some rows go through a layer that others pass by."""
    tied: bool
    frozen: bool
    optimizer: str
    """`sgd`, `momentum` or `adam`."""
    clip: float | None
    accumulate: int
    falls: bool
    """The rate falls with the epochs."""

    def rate(self, epoch: float) -> float:
        """Return the factor of the learning rate."""
        return 1.0 / (1.0 + epoch) if self.falls else 1.0


@dataclass(frozen=True)
class Segment:
    """Some epochs of a trial in one way."""

    strategy: str
    """`local_sgd`, `average_once`, `parameter_server`, or nothing for one worker."""
    workers: int
    epochs: int
    servers: int = 1
    period: int = 1
    momentum: str = "keep"
    lr: float | None = None
    """Of a fork that begins here; None where the trial goes on."""


@dataclass
class Worker:
    """What a worker has."""

    model: nn.Module
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the place of a parameter."""

    def parameters(self) -> list[Tensor]:
        """Return all parameters that may be trained."""
        return list(self.model.parameters())

    def gradients(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor | None], float]:
        """Return the gradients of the mean loss over some rows, None for parameters that no row uses; and that loss."""
        loss = functional.cross_entropy(self.model(inputs), targets)
        trained = [one for one in self.parameters() if one.requires_grad]
        found = iter(torch.autograd.grad(loss, trained, allow_unused=True))
        return [next(found) if one.requires_grad else None for one in self.parameters()], float(loss.detach())

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], rates: Sequence[float], kind: str) -> None:
        """Take the optimizer's step."""
        for place, (weight, gradient) in enumerate(zip(self.parameters(), gradients, strict=True)):
            if gradient is None:
                continue
            state = self.states.setdefault(place, {})
            if kind == "adam":
                _adam(weight, gradient, state, rates[place])
            else:
                change = gradient + DECAY * weight
                if kind == "momentum":
                    before = state.get("momentum_buffer")
                    change = state["momentum_buffer"] = change if before is None else MOMENTUM * before + change
                weight -= rates[place] * change


def _adam(weight: Tensor, gradient: Tensor, state: dict[str, Any], rate: float) -> None:
    state["step"] = step = state.get("step", 0) + 1
    for name, beta, value in (("exp_avg", BETAS[0], gradient), ("exp_avg_sq", BETAS[1], gradient**2)):
        state[name] = beta * state.get(name, torch.zeros_like(weight)) + (1 - beta) * value
    first, second = state["exp_avg"] / (1 - BETAS[0] ** step), state["exp_avg_sq"] / (1 - BETAS[1] ** step)
    weight -= rate * first / (second.sqrt() + EPSILON)


def clipped(gradients: Sequence[Tensor | None], limit: float | None) -> list[Tensor | None]:
    """Scale gradients down to a norm over all of them."""
    norm = float(torch.stack([one.norm() for one in gradients if one is not None]).norm())
    factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
    return [None if one is None else factor * one for one in gradients]


@torch.no_grad()
def mean_of_weights(workers: Sequence[Worker], rows: Sequence[int]) -> list[Tensor]:
    """Return the mean of the workers' values, weighted by their rows."""
    shares = torch.tensor(rows, dtype=torch.float64) / sum(rows)
    values = zip(*(worker.parameters() for worker in workers), strict=True)
    return [torch.stack(of_each, -1) @ shares for of_each in values]


def mean_of_states(workers: Sequence[Worker], rows: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the mean optimizer state of each parameter, over the workers that have one; of step counts the largest."""
    found: dict[int, dict[str, Any]] = {}
    for place in sorted({place for worker in workers for place in worker.states}):
        holders = [number for number, worker in enumerate(workers) if worker.states.get(place)]
        states, counts = [workers[number].states[place] for number in holders], [rows[number] for number in holders]
        if not states:
            continue
        if sum(counts) == 0:
            counts = [1] * len(counts)
        found[place] = {
            name: max(state[name] for state in states)
            if name == "step"
            else sum(count * state[name] for state, count in zip(states, counts, strict=True)) / sum(counts)
            for name in states[0]
        }
    return found


def give(workers: Sequence[Worker], weights: Sequence[Tensor] | None, states: dict[int, dict[str, Any]] | None) -> None:
    """Let all workers have weights, and states."""
    for worker in workers:
        if weights is not None:
            with torch.no_grad():
                for mine, value in zip(worker.parameters(), weights, strict=True):
                    mine.copy_(value)
        if states is not None:
            worker.states = copy.deepcopy(states)


def run_segment(
    setting: Setting,
    segment: Segment,
    shown: Worker,
    apart: list[Worker],
    begun: int,
    lr: float,
    data: tuple[Tensor, Tensor],
) -> tuple[list[float], Worker, list[Worker]]:
    """Train.

    Args:
        setting: The trial's.
        segment: Which.
        shown: What a checkpoint has in the usual places.
        apart: What each worker of `average_once` goes on from; nothing where the segment before was another.
        begun: Epochs that are done.
        lr: The rate of weights; that of biases is half of it.
        data: Inputs and targets.

    Returns:
        The loss of each epoch, and both again.
    """
    trains_apart = segment.strategy == "average_once"
    workers = apart if trains_apart else []
    workers = workers or [copy.deepcopy(shown) for _ in range(segment.workers)]
    epoch_of = {"local_sgd": _local_sgd, "average_once": _apart}.get(segment.strategy, _synchronous)
    epochs = range(begun, begun + segment.epochs)
    losses = [epoch_of(setting, segment, workers, epoch, lr, data) for epoch in epochs]
    if not trains_apart:
        return losses, workers[0], []
    steps = _steps(setting, len(workers), epochs[-1])
    rows = [sum(map(len, parts)) for parts in zip(*steps, strict=True)]
    shown = copy.deepcopy(workers[0])
    give([shown], mean_of_weights(workers, rows), mean_of_states(workers, rows))
    return losses, shown, workers


def _steps(setting: Setting, workers: int, epoch: int) -> list[list[Tensor]]:
    """Return each worker's rows in each step."""
    batches = torch.split(epoch_order(SEED, epoch, setting.rows), setting.batch)
    parts = [[rows_of_rank(len(batch), workers, worker) for worker in range(workers)] for batch in batches]
    return [[batch[part.start : part.stop] for part in of] for batch, of in zip(batches, parts, strict=True)]


def _rates(setting: Setting, worker: Worker, lr: float, epoch: int, step: int, steps: int) -> list[float]:
    factor = lr * setting.rate(epoch + step / steps)
    return [factor if one.dim() > 1 else factor / 2 for one in worker.parameters()]


def _synchronous(
    setting: Setting, _segment: Segment, workers: list[Worker], epoch: int, lr: float, data: tuple[Tensor, Tensor]
) -> float:
    """The gradient of the whole batch, and one step with it."""
    total, steps = 0.0, _steps(setting, 1, epoch)
    for number, (rows,) in enumerate(steps):
        gradients, loss = workers[0].gradients(data[0][rows], data[1][rows])
        total += loss * len(rows)
        rates = _rates(setting, workers[0], lr, epoch, number, len(steps))
        workers[0].step(clipped(gradients, setting.clip), rates, setting.optimizer)
    return total / setting.rows


def _own_steps(
    setting: Setting,
    workers: list[Worker],
    parts: list[Tensor],
    rates: Sequence[float],
    data: tuple[Tensor, Tensor],
) -> float:
    """Let each worker take a step with its own rows; none where it has none."""
    total = 0.0
    for worker, rows in zip(workers, parts, strict=True):
        if len(rows) > 0:
            gradients, loss = worker.gradients(data[0][rows], data[1][rows])
            total += loss * len(rows)
            worker.step(clipped(gradients, setting.clip), rates, setting.optimizer)
    return total


def _local_sgd(
    setting: Setting, segment: Segment, workers: list[Worker], epoch: int, lr: float, data: tuple[Tensor, Tensor]
) -> float:
    """SparkNet's algorithm 2: weights become their mean each `period` steps, and at the end."""
    steps, total = _steps(setting, len(workers), epoch), 0.0
    seen, since = ([0] * len(workers) for _ in range(2))
    for number, parts in enumerate(steps):
        rates = _rates(setting, workers[0], lr, epoch, number, len(steps))
        total += _own_steps(setting, workers, parts, rates, data)
        seen = [count + len(rows) for count, rows in zip(seen, parts, strict=True)]
        since = [count + len(rows) for count, rows in zip(since, parts, strict=True)]
        if (number + 1) % segment.period == 0 or number + 1 == len(steps):
            states = mean_of_states(workers, since) if segment.momentum == "average" else None
            give(workers, mean_of_weights(workers, since), states)
            since = [0] * len(workers)
    if segment.momentum == "keep":
        give(workers, None, mean_of_states(workers, seen))
    return total / setting.rows


def _apart(
    setting: Setting, _segment: Segment, workers: list[Worker], epoch: int, lr: float, data: tuple[Tensor, Tensor]
) -> float:
    """Zinkevich's algorithm: nobody hears of anybody."""
    steps, total = _steps(setting, len(workers), epoch), 0.0
    for number, parts in enumerate(steps):
        rates = _rates(setting, workers[0], lr, epoch, number, len(steps))
        total += _own_steps(setting, workers, parts, rates, data)
    return total / setting.rows
