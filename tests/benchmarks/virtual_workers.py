"""Workers that train apart, as one computation: each parameter of theirs is a tensor with a first dimension of workers.

So there may be more of them than this machine has cores for. They do what the strategies `local_sgd` and `average_once`
do on as many ranks: each has its part of every epoch's rows, a step of SGD with its own velocity, and now and then all
have their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.digits import digits
from hpsearch_trainers.shards import Shard


def _weights(widths: Sequence[int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for inside, outside in pairwise(widths):
        limit = inside**-0.5  # as nn.Linear has them
        made.append(torch.empty(inside, outside).uniform_(-limit, limit, generator=generator))
        made.append(torch.empty(1, outside).uniform_(-limit, limit, generator=generator))
    return made


class VirtualWorkers:
    """Train perceptrons on scikit-learn's digits, from a common start.

    Args:
        count: How many.
        widths: Numbers of units, from the inputs to the classes; two for logistic regression.
        batch: Rows of each worker's steps.
        lr: Constant.
        momentum: Of each worker.
        seed: Of the start and the order of rows.
    """

    def __init__(
        self, count: int, widths: Sequence[int], *, batch: int, lr: float, momentum: float = 0.0, seed: int
    ) -> None:
        data = digits()
        self._inputs, self._classes = data.images.flatten(1), data.labels
        self._held_out, self._held_out_classes = data.validation_images.flatten(1), data.validation_labels
        start = _weights(widths, seed)
        self._weights = [one.expand(count, *one.shape).clone().requires_grad_() for one in start]
        self._velocities = [torch.zeros_like(one) for one in self._weights]
        self._count, self._lr, self._momentum = count, lr, momentum
        self._rows = self._parts(count, batch, seed)

    def _parts(self, count: int, batch: int, seed: int) -> Iterator[Tensor]:
        """Yield the rows of each step, as (worker, row)."""
        shards = [Shard(len(self._classes), batch * count, seed, worker, count) for worker in range(count)]
        epoch = 0
        while True:
            steps = list(zip(*(shard.epoch(epoch) for shard in shards), strict=True))
            yield from (torch.stack(step) for step in steps if all(len(rows) == batch for rows in step))
            epoch += 1

    def step(self) -> None:
        """Let each take one."""
        rows = next(self._rows)
        output = _output(self._weights, self._inputs[rows])
        loss = functional.cross_entropy(output.flatten(0, 1), self._classes[rows].flatten(), reduction="sum")
        gradients = torch.autograd.grad(loss / rows.shape[1], self._weights)
        with torch.no_grad():
            torch._foreach_mul_(self._velocities, self._momentum)
            torch._foreach_add_(self._velocities, gradients)
            torch._foreach_add_(self._weights, self._velocities, alpha=-self._lr)

    @torch.no_grad()
    def mean(self) -> list[Tensor]:
        """Return the mean of the workers' weights."""
        return [weight.mean(0, keepdim=True) for weight in self._weights]

    @torch.no_grad()
    def average(self) -> None:
        """Let all have the mean of their weights; velocities stay."""
        for weight, mean in zip(self._weights, self.mean(), strict=True):
            weight.copy_(mean.expand_as(weight))

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the accuracy of the workers' mean weights on the validation rows."""
        output = _output(self.mean(), self._held_out[None])[0]
        return float((output.argmax(1) == self._held_out_classes).float().mean())

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss of the workers' mean weights on all training rows."""
        return float(functional.cross_entropy(_output(self.mean(), self._inputs[None])[0], self._classes))


def _output(weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
    for place in range(0, len(weights), 2):
        inputs = torch.baddbmm(weights[place + 1], inputs, weights[place])
        if place + 2 < len(weights):
            inputs = inputs.relu()
    return inputs
