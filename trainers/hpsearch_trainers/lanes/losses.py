"""The loss of each lane, by its own function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.lane_tensor import LaneTensor, of_each, opened

__all__ = ["Losses"]


class Losses:
    """The losses that lanes are trained for.

    Attributes:
        plain: Whether all are plain cross entropies, of targets that are classes.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        targets = {id(lane.training[1]): lane.training[1] for lane in lanes}
        self._of_classes = lanes[0].trainer.parts.autocast is None and all(map(_are_classes, targets.values()))
        self._parameters = [parameter for lane in lanes for parameter in lane.model.parameters()]
        self.plain = self.are_plain()

    def are_plain(self) -> bool:
        """Look whether all are plain cross entropies now."""
        of_floats = not torch.is_autocast_enabled("cpu")
        return (
            of_floats and self._of_classes and all(_is_cross_entropy(lane.trainer.parts.loss) for lane in self._lanes)
        )

    def of_each(self, output: Any, targets: LaneTensor, share: float) -> Tensor:
        """Give each lane's mean loss of a batch's rows, (lanes,), and leave its gradients in the output.

        Args:
            output: Of the lanes' models, and of those in free places after them.
            targets: Of the batch, of each lane.
            share: By what each loss is multiplied before it is differentiated.

        Raises:
            ConfigurationError: A loss isn't one number.
            NotFusible: The output is of a kind that can't be taken apart, or is not all that has gradients.
        """
        with self._lanes[0].autocast():
            given = of_each(opened(output), len(targets.generators))
            of_all = zip(given, targets.slices, strict=True)
            losses = [lane.loss(one, wanted) for lane, (one, wanted) in zip(self._lanes, of_all, strict=False)]
        if any(isinstance(loss, LaneTensor) for loss in losses):
            raise NotFusible(f"its model gives a {type(output).__name__}, which isn't taken apart into lanes")
        together = torch.stack(losses)
        shares = together if share == 1 else together * share
        torch.autograd.backward(shares, torch.ones_like(shares))
        if any(parameter.grad is not None for parameter in self._parameters):
            raise NotFusible("its loss comes to its model's parameters by itself")
        return together.detach()


def _are_classes(targets: Tensor) -> bool:
    """Whether they are classes, and none is one of those that torch leaves out."""
    return targets.dim() == 1 and targets.dtype == torch.int64 and bool((targets >= 0).all())


def _is_cross_entropy(loss: Any) -> bool:
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.reduction == "mean" and loss.label_smoothing == 0
        return plain and loss.ignore_index < 0 and not loss._forward_hooks and not loss._forward_pre_hooks
    return loss is functional.cross_entropy
