"""The peer of the Trainer: the loop that one would write by hand for the same parts."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from hpsearch_trainers.parts import Parts


class PlainLoop:
    """Trains a model on one worker, epoch by epoch."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        assert isinstance(parts.optimizer, torch.optim.Optimizer)
        self._optimizer = parts.optimizer
        self._train, self._validation = _pair(parts.train), _pair(parts.validation)
        self._schedule = None
        if parts.schedule is not None:
            schedule, steps = parts.schedule, -(-len(self._train[1]) // parts.batch_size)
            self._schedule = LambdaLR(self._optimizer, lambda step: schedule(step / steps))

    def epoch(self) -> dict[str, float]:
        """Train on every row once, and validate."""
        parts, model, optimizer = self._parts, self._parts.model, self._optimizer
        inputs, targets = self._train
        model.train()
        total = torch.zeros(())
        for rows in torch.split(torch.randperm(len(targets)), parts.batch_size):
            loss = parts.loss(model(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if parts.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), parts.clip_norm)
            optimizer.step()
            if self._schedule is not None:
                self._schedule.step()
            total += loss.detach() * len(rows)
        return {"loss": float(total) / len(targets), **self._validate()}

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        parts, model = self._parts, self._parts.model
        model.eval()
        sums = torch.zeros(1 + len(parts.metrics))
        pieces = (torch.split(column, parts.validation_batch_size) for column in self._validation)
        for inputs, targets in zip(*pieces, strict=True):
            output = model(inputs)
            sums[0] += parts.loss(output, targets) * len(targets)
            for number, metric in enumerate(parts.metrics.values(), 1):
                sums[number] += metric(output, targets).sum()
        means = sums / len(self._validation[1])
        return dict(zip(("validation_loss", *parts.metrics), means.tolist(), strict=True))


def _pair(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = data
    return inputs, targets
