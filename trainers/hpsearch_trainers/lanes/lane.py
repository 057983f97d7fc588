"""A trainer as a lane of a pack.

Only this module uses a trainer's internals.
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
        trainer: A trainer on one worker, with data in tensors.

    Attributes:
        trainer: The trainer.
        generator: Random generator of its forward passes.
        trained: The parameters that are trained in the current epoch.
        is_steady: Whether the learning rate is the same in each step of the current epoch.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.generator = torch.Generator()
        self.trained: Sequence[Tensor] = ()
        self._step: Stepper | None = None
        self.is_steady = False

    @property
    def model(self) -> nn.Module:
        """The trainer's model."""
        return self.trainer.model

    @property
    def average(self) -> MovingAverage | None:
        """The moving average of the model, or None. If it exists, it is validated."""
        return self.trainer._average

    @property
    def has_tensor_data(self) -> bool:
        """Whether training and validation data are tensors."""
        data = [self.trainer._train, self.trainer._validation]
        return all(batches is None or batches.tensors is not None for batches in data)

    @property
    def training(self) -> Sequence[Tensor]:
        """Training inputs and targets."""
        assert self.trainer._train.tensors is not None
        return self.trainer._train.tensors

    @property
    def validation(self) -> Sequence[Tensor] | None:
        """Validation inputs and targets, or None."""
        data = self.trainer._validation
        return None if data is None else data.tensors

    def replace_data(self, by: Callable[[Tensor], Tensor]) -> None:
        """Replace the tensors that the trainer has copied to its device by equal ones."""
        for data in (self.trainer._train, self.trainer._validation):
            if data is not None:
                data.replace(by)

    @property
    def steps(self) -> int:
        """Number of steps of an epoch."""
        return self.trainer._shard.steps

    def is_bound(self) -> bool:
        """Whether model, layers, optimizer and parameters are those that the strategy was bound to."""
        return self.trainer._strategy.is_bound(self.trainer._trained())

    def can_continue(self) -> bool:
        """Update what changed since its last epoch; return whether the lane is still bound to its parameters.

        If not, an epoch alone binds it again or raises an error.
        """
        self.trainer._refresh_bindings()
        return self.is_bound()

    def begin(self, *, clips: bool = True) -> Tensor:
        """Start an epoch; return the order of its rows, (rows,).

        Args:
            clips: Whether this lane's steps clip gradients if the trainer does. If false, they receive clipped ones.
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
            step: Index of the step in the epoch.
            orders: Row order of the whole epoch for all lanes, (rows, lanes).
        """
        batch = self.trainer._shard.batch
        return self.trainer._passes(step, orders[step * batch : (step + 1) * batch])

    def start_step(self, step: int) -> None:
        """Start a step: set its learning rate. A schedule may read the gradients of the previous step."""
        if step == 0 or not self.is_steady:
            self.trainer._set_rate(self.trainer.epoch + step / self.trainer._shard.steps)

    def clear_step_gradients(self) -> None:
        """Clear the gradients of the previous step."""
        for tensor in self.trained:
            tensor.grad = None

    def clear_gradients(self) -> None:
        """Clear the gradients of all of the model's tensors."""
        for tensor in tensors_of(self.model):
            tensor.grad = None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context manager of the forward passes."""
        return self.trainer._autocast()

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch's rows.

        Raises:
            ConfigurationError: The loss isn't a single number.
        """
        return loss_of(self.trainer.parts.loss, output, targets)

    def clip(self, gradients: Sequence[Tensor | None]) -> None:
        """Clip the gradients in place if the trainer clips gradients."""
        if self.trainer.parts.clip_norm is not None:
            assert self._step is not None
            self._step.clip(gradients)

    def update(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step of the optimizer with the given gradients of the parameters."""
        assert self._step is not None
        self._step(gradients)

    @property
    def releases_gradients(self) -> bool:
        """Whether a step's gradients aren't needed after it, so their memory may be reused."""
        return self.is_steady and self._step is not None and self._step.releases_gradients

    def set_gradients(self, gradients: Sequence[Tensor | None], *, last: bool) -> None:
        """Set the parameters' gradients of a step like a trainer alone, because a schedule or a measure may read them.

        Args:
            gradients: Gradient of each parameter; clipped if the trainer clips them.
            last: Whether this is the epoch's last step, whose gradients are kept.
        """
        if last or not self.is_steady:
            for parameter, gradient in zip(self.trained, gradients, strict=True):
                parameter.grad = gradient.clone() if last and gradient is not None else gradient

    def end_steps(self) -> None:
        """Check that the assumptions of the steps still hold at the end of the epoch.

        Raises:
            NotFusible: They may not hold.
        """
        assert self._step is not None
        try:
            self._step.end()
        except NotFusible as reason:
            raise NotFusible(str(reason), [self.trainer]) from None

    def totals(self) -> Totals:
        """Return a new sum of loss and metrics over the validation data."""
        return Totals(self.trainer.parts, self.trainer.device)

    def end(self, loss: float) -> dict[str, float]:
        """End the training of an epoch; return its training metrics.

        Args:
            loss: Sum of the losses of all rows.
        """
        return self.trainer._end_epoch(loss, 0.0)

    def validation_metrics(self, validated: Totals | None) -> dict[str, float]:
        """Return the validation metrics and measures; the model must be in eval mode.

        Args:
            validated: Sums over the validation data, or None.
        """
        metrics = {}
        if validated is not None and self.trainer._validation is not None:
            metrics = validated.means(self.trainer._validation.rows, None)
        return metrics | self.trainer._measured() if self.trainer.parts.measures else metrics
