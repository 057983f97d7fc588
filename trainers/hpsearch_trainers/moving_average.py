"""An exponential moving average of a model's weights, and of its buffers."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class MovingAverage(AveragedModel):
    """Begins with the model as it is at the first update; then a ← decay a + (1 - decay) w.

    Buffers too, since statistics belong to the weights that they were taken with. But integers and booleans have no
    average (torch's own cuts it, and an index becomes another one): they are the model's, and so is what is equal in
    both, such as the infinities of a mask, whose average would be no number. Parameters that aren't trained are like
    buffers.

    Args:
        model: Is copied.
        decay: From 0 to below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, use_buffers=True)
        self._decay, self._model_weight = decay, 1 - decay
        self._of = _pieces_of(model)

    @property
    def model_weight(self) -> float:
        """How much of the model an update takes in."""
        return self._model_weight

    @torch.no_grad()
    def of(self, model: nn.Module) -> MovingAverage:
        """Return that of a model that may be another one by now, or have other layers: what is new begins as it is."""
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
        """Take in the model as it is now."""
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
    """Copy a parameter, or the buffers of a module's own, as far as they are alike."""
    tensors, targets = (
        {"": module} if isinstance(module, nn.Parameter) else module._buffers for module in (piece, into)
    )
    for name, value in tensors.items():
        target = targets.get(name)
        if value is not None and target is not None and value.shape == target.shape:
            target.copy_(value)
