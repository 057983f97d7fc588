"""The loss of each lane, by its own function or by what that comes to for all at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.lanes.at_once import means_at_once
from hpsearch_trainers.lanes.cross_entropy import are_scores, log_likelihoods, mean_losses
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.lane_tensor import LaneTensor, split_lanes

__all__ = ["LossSums", "Losses"]

_MOST_NUMBERS = 2**20
"""Of rows whose losses wait to be computed: of more, they would take memory for nothing."""


class Losses:
    """The losses that lanes are trained for.

    Attributes:
        plain: Whether all are plain cross entropies, of targets that are classes.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        of_floats = lanes[0].trainer.parts.autocast is None
        self._of_classes = of_floats and _are_classes([lane.training for lane in lanes])
        self._validated_of_classes = of_floats and _are_classes([lane.validation for lane in lanes])
        self._parameters = [(lane, parameter) for lane in lanes for parameter in lane.model.parameters()]
        self.plain = self.are_plain()

    def are_plain(self) -> bool:
        """Look whether all are plain cross entropies now."""
        of_floats = not torch.is_autocast_enabled(self._lanes[0].trainer.device.type)
        return (
            of_floats and self._of_classes and all(_is_cross_entropy(lane.trainer.parts.loss) for lane in self._lanes)
        )

    def lane_losses(self, output: Any, targets: LaneTensor, loss_weight: float) -> Tensor:
        """Return each lane's mean loss of a batch's rows, (lanes,), and leave its gradients in the output.

        Args:
            output: Of the lanes' models, and of those in free places after them.
            targets: Of the batch, of each lane.
            loss_weight: By what each loss is multiplied before it is differentiated.

        Raises:
            ConfigurationError: A loss isn't one number.
            NotFusible: The output is of a kind that can't be taken apart, or is not all that has gradients.
        """
        with self._lanes[0].autocast():
            lane_outputs = split_lanes(output, len(targets.generators))
            pairs = zip(lane_outputs, targets.slices, strict=True)
            losses = [lane.loss(*pair) for lane, pair in zip(self._lanes, pairs, strict=False)]
        if any(isinstance(loss, LaneTensor) for loss in losses):
            raise NotFusible(f"its model gives a {type(output).__name__}, which isn't taken apart into lanes")
        together = torch.stack(losses)
        weighted = together if loss_weight == 1 else together * loss_weight
        torch.autograd.backward(weighted, torch.ones_like(weighted))
        if reached := {id(lane): lane for lane, parameter in self._parameters if parameter.grad is not None}:
            trainers = [lane.trainer for lane in reached.values()]
            raise NotFusible("its loss comes to its model's parameters by itself", trainers)
        return together.detach()

    @torch.no_grad()
    def of_validation(self, output: Any, targets: LaneTensor) -> Sequence[Tensor | None]:
        """Return each lane's mean loss of a batch's rows to validate on; None where it is to be computed by itself."""
        if not (self.plain and self._validated_of_classes and are_scores(output, targets)):
            return [None] * len(self._lanes)
        mean = _exact_means if targets.generators.noise is None else means_at_once
        return mean(output.stack, targets.stack)[: len(self._lanes)].unbind()


class LossSums:
    """Adds up the losses of an epoch's rows, in the order of its passes, as each lane's alone are.

    Args:
        lanes: How many.
        device: Where the losses are.
    """

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._sums = torch.zeros(lanes, dtype=torch.float64, device=device)
        self._likelihoods: list[tuple[Tensor, int]] = []
        """Of passes whose losses are yet to be added: all are computed at once."""
        self._numbers = 0  # of these

    def add(self, losses: Tensor, rows: int) -> None:
        """Take in a pass over so many rows.

        Args:
            losses: The mean of each lane, (lanes or more,), or of plain cross entropies the logarithm of each row's
                likelihood, (lanes or more, rows).
            rows: How many.
        """
        if losses.dim() == 2:
            self._likelihoods.append((losses, rows))
            self._numbers += losses.numel()
            if self._numbers > _MOST_NUMBERS:
                self._flush()
        else:
            self._flush()
            self._sums.add_(losses[: len(self._sums)], alpha=rows)

    def totals(self) -> list[float]:
        """Return each lane's sum."""
        self._flush()
        return self._sums.tolist()

    def _flush(self) -> None:
        pending, self._likelihoods, self._numbers = self._likelihoods, [], 0
        for rows, passes in itertools.groupby(pending, lambda item: item[1]):
            of_passes = torch.stack([likelihoods[: len(self._sums)] for likelihoods, _ in passes])
            for losses in mean_losses(of_passes.flatten(0, 1)).view(-1, len(self._sums)):
                self._sums.add_(losses, alpha=rows)


def _are_classes(data: Sequence[Sequence[Tensor] | None]) -> bool:
    """Whether the targets are classes, and none is one of those that torch leaves out."""
    different = {id(tensors[1]): tensors[1] for tensors in data if tensors is not None}.values()
    return all(
        targets.dim() == 1 and targets.dtype == torch.int64 and bool((targets >= 0).all()) for targets in different
    )


def _exact_means(scores: Tensor, classes: Tensor) -> Tensor:
    return mean_losses(log_likelihoods(scores, classes))


def _is_cross_entropy(loss: Any) -> bool:
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.reduction == "mean" and loss.label_smoothing == 0
        return plain and loss.ignore_index < 0 and not loss._forward_hooks and not loss._forward_pre_hooks
    return loss is functional.cross_entropy
