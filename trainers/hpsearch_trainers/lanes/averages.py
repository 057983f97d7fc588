"""Moving averages of all lanes' models, which take them in at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpsearch_trainers.lanes.algorithms import on_device
from hpsearch_trainers.lanes.lane import Lane

__all__ = ["Averages"]


class Averages:
    """Does, but for rounding, what `MovingAverage.update_parameters` does for each lane.

    Args:
        lanes: Lanes with averages, which have begun an epoch.
        averages: The stacks of their averages' tensors, (lanes or more, ...): the parameters first, then the buffers.
        models: Those of their models, in the same order.
    """

    def __init__(self, lanes: Sequence[Lane], averages: Sequence[Tensor], models: Sequence[Tensor]) -> None:
        self._lanes = lanes
        self._steps = 0
        self._pairs = [
            (average.detach()[: len(lanes)], model.detach()[: len(lanes)])
            for average, model in zip(averages, models, strict=True)
        ]
        device = models[0].device if models else torch.device("cpu")
        self._weights = on_device(torch.tensor([lane.average_weight for lane in lanes]), device)
        is_first = [lane.is_first_average for lane in lanes]
        self._first = on_device(torch.tensor(is_first), device) if any(is_first) else None

    @torch.no_grad()
    def __call__(self) -> None:
        """Take the models in, as they are after a step."""
        first, self._first = self._first, None
        self._steps += 1
        for average, model in self._pairs:
            if not (model.is_floating_point() or model.is_complex()):
                average.copy_(model)
                continue
            dims = [-1, *(1 for _ in model.shape[1:])]
            mixed = torch.lerp(average, model, self._weights.to(model.dtype).view(dims))
            is_equal = average == model  # such as the infinities of a mask
            average.copy_(torch.where(is_equal if first is None else is_equal | first.view(dims), model, mixed))

    def end(self) -> None:
        """Add the steps of the epoch to each lane's average."""
        for lane in self._lanes:
            lane.count_averaged(self._steps)
