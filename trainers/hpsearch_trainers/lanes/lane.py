"""A trainer as a lane: what a pack takes of its epoch, and what the trainer keeps doing by itself.

This is the one place that knows a trainer from within.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_trainers.evaluation import Totals, loss_of
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.models import tensors_of
from hpsearch_trainers.lanes.optimizers import Stepper, stepper
from hpsearch_trainers.moving_average import MovingAverage
from hpsearch_trainers.shards import epoch_order
from hpsearch_trainers.trainer import Trainer


class Lane:
    """One trainer of a pack.

    Args:
        trainer: Of one worker, whose data are tensors.

    Attributes:
        trainer: The trainer.
        generator: What is random in its forward passes.
        trained: The parameters that are trained in the epoch that has begun.
        is_steady: Whether its rate is the same in each step of that epoch.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.generator = torch.Generator()
        self.trained: Sequence[Tensor] = ()
        self._step: Stepper | None = None
        self.is_steady = False

    @property
    def model(self) -> nn.Module:
        """What is trained."""
        return self.trainer.model

    @property
    def average(self) -> MovingAverage | None:
        """The moving average of the model, if there is one: then it is what is validated."""
        return self.trainer._average

    @property
    def has_tensor_data(self) -> bool:
        """Whether its data are tensors."""
        data = [self.trainer._train, self.trainer._validation]
        return all(batches is None or batches.tensors is not None for batches in data)

    @property
    def training(self) -> Sequence[Tensor]:
        """Inputs and targets to train on."""
        assert self.trainer._train.tensors is not None
        return self.trainer._train.tensors

    @property
    def validation(self) -> Sequence[Tensor] | None:
        """Inputs and targets to validate on."""
        data = self.trainer._validation
        return None if data is None else data.tensors

    def replace_data(self, by: Callable[[Tensor], Tensor]) -> None:
        """Put equal tensors into the place of those that the trainer has copied to its device."""
        for data in (self.trainer._train, self.trainer._validation):
            if data is not None:
                data.replace(by)

    @property
    def steps(self) -> int:
        """How many an epoch has."""
        return self.trainer._shard.steps

    def is_bound(self) -> bool:
        """Whether model, layers, optimizer and parameters are those that it is bound to train."""
        return self.trainer._strategy.is_bound(self.trainer._trained())

    def can_continue(self) -> bool:
        """Update what changed since its last epoch; return whether the lane is still bound to its parameters.

        If not, an epoch alone binds it, or raises.
        """
        self.trainer._refresh_bindings()
        return self.is_bound()

    def begin(self, *, clips: bool = True) -> Tensor:
        """Begin an epoch; return the order of its rows, (rows,).

        Args:
            clips: Its steps clip gradients, where it does; else they are given clipped.
        """
        trainer = self.trainer
        self.generator.manual_seed(trainer._epoch_seed())
        self.trained = [tensor for tensor in tensors_of(trainer.model) if tensor.requires_grad]
        self._step = stepper(trainer.optimizer, self.trained, trainer.parts.clip_norm if clips else None)
        self.is_steady = trainer._rate_is_steady
        return epoch_order(trainer._seed, trainer.epoch, trainer._shard.rows)

    def passes(self, step: int, orders: Tensor) -> list[Tensor]:
        """Return the rows of a step's backward passes.

        Args:
            step: Its number in the epoch.
            orders: (rows, lanes), of the whole epoch.
        """
        batch = self.trainer._shard.batch
        return self.trainer._passes(step, orders[step * batch : (step + 1) * batch])

    def start_step(self, step: int) -> None:
        """Begin a step of the epoch: set its rate; a schedule may look at the gradients of the step before."""
        if step == 0 or not self.is_steady:
            self.trainer._set_rate(self.trainer.epoch + step / self.trainer._shard.steps)

    def clear_step_gradients(self) -> None:
        """Drop the gradients of the step before."""
        for tensor in self.trained:
            tensor.grad = None

    def clear_gradients(self) -> None:
        """Clear the gradients of all of the model's tensors."""
        for tensor in tensors_of(self.model):
            tensor.grad = None

    def autocast(self) -> AbstractContextManager[Any]:
        """Make the context of the forward passes."""
        return self.trainer._autocast()

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch's rows.

        Raises:
            ConfigurationError: It isn't one number.
        """
        return loss_of(self.trainer.parts.loss, output, targets)

    def clip(self, gradients: Sequence[Tensor | None]) -> None:
        """Scale the gradient of each parameter, in place, where the trainer clips them."""
        if self.trainer.parts.clip_norm is not None:
            assert self._step is not None
            self._step.clip(gradients)

    def update(self, gradients: Sequence[Tensor | None]) -> None:
        """Take the optimizer's step, with the gradient of each parameter."""
        assert self._step is not None
        self._step(gradients)

    @property
    def releases_gradients(self) -> bool:
        """Whether a step's gradients are of no use behind it."""
        return self.is_steady and self._step is not None and self._step.releases_gradients

    def set_gradients(self, gradients: Sequence[Tensor | None], *, last: bool) -> None:
        """Set the parameters' gradients of a step, as if trained alone: a schedule or a measure may read them.

        Args:
            gradients: Of each; clipped, where the trainer clips them.
            last: They stay when the epoch has ended.
        """
        if last or not self.is_steady:
            for parameter, gradient in zip(self.trained, gradients, strict=True):
                parameter.grad = gradient.clone() if last and gradient is not None else gradient

    def end_steps(self) -> None:
        """Check that the steps were valid to the end.

        Raises:
            NotFusible: They may not have been.
        """
        assert self._step is not None
        try:
            self._step.end()
        except NotFusible as reason:
            raise NotFusible(str(reason), [self.trainer]) from None

    def totals(self) -> Totals:
        """Make what sums loss and metrics over the validation data."""
        return Totals(self.trainer.parts.loss, self.trainer.parts.metrics, self.trainer.device)

    def end(self, loss: float) -> dict[str, float]:
        """End the epoch's training; return what is told of it.

        Args:
            loss: Summed over its rows.
        """
        return self.trainer._end_epoch(loss, 0.0)

    def validation_metrics(self, validated: Totals | None) -> dict[str, float]:
        """Return what is told of its validation, and measured of its model, which is in evaluation mode.

        Args:
            validated: What was summed over the validation data.
        """
        metrics = {}
        if validated is not None and self.trainer._validation is not None:
            metrics = validated.means(self.trainer._validation.rows, None)
        return metrics | self.trainer._measured() if self.trainer.parts.measures else metrics
