"""What strategies have in common in which each worker steps by itself, with its own rows and its own optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from hpsearch_comm import Group, SyncBatchNorm, broadcast_parameters
from hpsearch_trainers.strategies.averaging import average_weights
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Strategy, Trained

__all__ = ["LocalSteps"]


class LocalSteps(Strategy):
    """Steps that no other worker hears of; a worker without rows takes none."""

    least: ClassVar[int] = 2
    exact: ClassVar[bool] = False
    rate_rule: ClassVar[str | None] = "none"
    refuses: ClassVar[Mapping[str, str]] = {
        **NO_FLOAT16,
        "batch_norm": "synchronized layers need all workers in each step, while statistics of local ones are averaged "
        "at an epoch's end: take batch_norm local",
    }
    group: Group

    def bind(self, trained: Trained) -> None:
        """Take what is trained; every worker begins with rank 0's.

        Raises:
            ConfigurationError: A layer of it needs all workers in each step.
            MismatchError: The workers have built different models.
        """
        super().bind(trained)
        if any(isinstance(layer, SyncBatchNorm) for layer in trained.model.modules()):
            self.refuse("batch_norm")
        broadcast_parameters([*trained.model.named_parameters(), *trained.model.named_buffers()], self.group)

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Begin an epoch."""
        super().start_epoch(trained, epoch)
        self._epoch_rows = 0

    def start_step(self, rows: int) -> None:
        """Begin a step with so many rows of this worker's own."""
        super().start_step(rows)
        self._step_rows = rows
        self._epoch_rows += rows

    def update(self) -> None:
        """Step, where there were rows: else not even momentum moves the weights."""
        if self._step_rows > 0:
            super().update()

    def _of_workers(self, rows: int) -> list[int]:
        """Return the rows of each worker; a collective."""
        return self.group.allgather(torch.tensor([rows], device="cpu")).tolist()

    def _average_moving_average(self, rows: list[int]) -> None:
        """Make the moving average that of the workers' mean, which it is as long as their shares stay; a collective."""
        if self.trained.average is not None:
            average_weights(self.trained.average.parameters(), rows, self.group)
