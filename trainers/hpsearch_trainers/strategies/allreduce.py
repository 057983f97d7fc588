"""Synchronous: gradients are averaged over all ranks while backward still runs, and each takes the same step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from hpsearch_comm import DataParallel
from hpsearch_trainers.strategies.strategy import Strategy, Trained

__all__ = ["Allreduce"]


class Allreduce(Strategy):
    """See `hpsearch_comm.DataParallel`; the mean is weighted by each rank's rows."""

    name: ClassVar[str] = "allreduce"
    least: ClassVar[int] = 2
    own_loop: ClassVar[bool] = True

    def bind(self, trained: Trained) -> None:
        """Average the model's gradients from now on."""
        super().bind(trained)
        assert self.group is not None
        self._averaging: DataParallel | None = None  # whose hooks go before others come
        self._needed = _gradients_needed(trained)
        self._averaging = DataParallel(trained.model, self.group, weighted=True)

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Begin an epoch; what needs a gradient now, and didn't, is averaged from here on."""
        super().start_epoch(trained, epoch)
        if self._needed != _gradients_needed(trained):
            self.bind(trained)

    def start_step(self, rows: int) -> None:
        """Begin a step in which this rank has so many rows."""
        super().start_step(rows)
        assert self._averaging is not None
        self._averaging.set_weight(rows)

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], share: float, *, last: bool) -> Tensor:
        """Compute a loss; the last one's gradients are averaged."""
        assert self._averaging is not None
        with contextlib.nullcontext() if last else self._averaging.no_sync():
            return super().backward(inputs, loss_of, share, last=last)


def _gradients_needed(trained: Trained) -> list[bool]:
    return [parameter.requires_grad for parameter in trained.model.parameters()]
