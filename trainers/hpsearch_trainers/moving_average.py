"""An exponential moving average of a model's weights and buffers."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class MovingAverage(AveragedModel):
    """An exponential moving average: a ← w at the first update, then a ← decay a + (1 - decay) w.

    Buffers are averaged as well, because statistics must match the weights. These values are copied from the model
    instead: integers and booleans (torch's own average truncates them, which would corrupt an index), and values that
    are equal in both (the average of two infinities, as in a mask, would be NaN). Untrained parameters are treated like
    buffers.

    Args:
        model: The model, which is copied.
        decay: From 0 to below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, use_buffers=True)
        self._decay, self._model_weight = decay, 1 - decay
        self._of = _pieces_of(model)

    @property
    def model_weight(self) -> float:
        """The weight of the model in an update: 1 - decay."""
        return self._model_weight

    @torch.no_grad()
    def of(self, model: nn.Module) -> MovingAverage:
        """Return the average of a model that may have been replaced or have new layers. New parts start as a copy."""
        pieces = _pieces_of(model)
        if len(pieces) == len(self._of) and all(map(operator.is_, pieces, self._of)):
            return self
        result = MovingAverage(model, self._decay)
        averages = dict(zip(map(id, self._of), _pieces_of(self.module), strict=True))
        for piece, target in zip(pieces, _pieces_of(result.module), strict=True):
            if id(piece) in averages:
                _copy(averages[id(piece)], target)
                result.n_averaged.copy_(self.n_averaged)
        return result

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Update the average with the model's current values."""
        averages: list[Tensor] = [*self.module.parameters(), *self.module.buffers()]
        values: list[Tensor] = [*model.parameters(), *model.buffers()]
        if self.n_averaged == 0:
            torch._foreach_copy_(averages, values)
        else:
            pairs = list(zip(averages, values, strict=True))
            trained = [pair for pair in pairs if pair[1].requires_grad]
            if trained:
                torch._foreach_lerp_(
                    [average for average, _ in trained], [value for _, value in trained], self._model_weight
                )
            for average, value in pairs:
                if not value.requires_grad:
                    average.copy_(self._mixed(average, value))
        self.n_averaged += 1

    def _mixed(self, average: Tensor, value: Tensor) -> Tensor:
        if not (value.is_floating_point() or value.is_complex()):
            return value
        return torch.where(average == value, value, average.lerp(value, self._model_weight))


def _pieces_of(model: nn.Module) -> list[nn.Module | nn.Parameter]:
    return [*model.modules(), *model.parameters()]


def _copy(piece: nn.Module | nn.Parameter, into: nn.Module | nn.Parameter) -> None:
    """Copy a parameter, or a module's own buffers, if names and shapes are equal."""
    tensors, targets = (
        {"": module} if isinstance(module, nn.Parameter) else module._buffers for module in (piece, into)
    )
    for name, value in tensors.items():
        target = targets.get(name)
        if value is not None and target is not None and value.shape == target.shape:
            target.copy_(value)
