"""The loss of each lane, by its own function; plain cross entropies are computed for all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.lane_tensor import LaneTensor, of_each, opened

__all__ = ["losses_of"]

_MEAN = 1
"""torch's number for a mean over rows."""


def losses_of(lanes: Sequence[Lane], output: Any, targets: LaneTensor) -> Tensor:
    """Give each lane's mean loss of a batch's rows, (lanes,).

    Args:
        lanes: The lanes.
        output: Of their models.
        targets: Of the batch, of each lane.

    Raises:
        ConfigurationError: A loss isn't one number.
        NotFusible: The output is of a kind that can't be taken apart.
    """
    if _are_classes(output, targets) and all(_is_cross_entropy(lane.trainer.parts.loss) for lane in lanes):
        found: Tensor = _CrossEntropies.apply(output.stack, targets.stack)  # type: ignore[no-untyped-call]
        return found
    given = of_each(opened(output), len(lanes))
    losses = [lane.loss(one, wanted) for lane, one, wanted in zip(lanes, given, targets.slices, strict=True)]
    if any(isinstance(loss, LaneTensor) for loss in losses):
        raise NotFusible(f"its model gives a {type(output).__name__}, which isn't taken apart into lanes")
    return torch.stack(losses)


class _CrossEntropies(torch.autograd.Function):
    """The cross entropy of each lane, from scores (lanes, rows, classes) and classes (lanes, rows).

    Its value is a sum whose order is torch's own affair, so it is taken by torch's own function, lane by lane; the
    gradient of that is -1 / rows at each row's class, and no sum.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, classes: Tensor) -> Tensor:
        logarithms = torch.log_softmax(scores, 2)
        ctx.save_for_backward(logarithms, classes)
        loss: Any = torch._C._nn.nll_loss_nd  # functional's, without its checks
        pairs = zip(logarithms.unbind(), classes.unbind(), strict=True)
        return torch.stack([loss(ours, theirs, None, _MEAN) for ours, theirs in pairs])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logarithms, classes = ctx.saved_tensors
        rows = classes.shape[1]
        shares = (gradient / rows).neg().view(-1, 1, 1).expand(-1, rows, 1)
        given = torch.zeros_like(logarithms).scatter_(2, classes.unsqueeze(2), shares)
        return torch._log_softmax_backward_data(given, logarithms, 2, logarithms.dtype), None


def _are_classes(output: Any, targets: LaneTensor) -> bool:
    """Whether it is scores and classes of rows, and no class is one of those that torch leaves out."""
    return (
        isinstance(output, LaneTensor)
        and output.dim() == 2
        and output.dtype == torch.float32
        and targets.dim() == 1
        and targets.dtype == torch.int64
        and not torch.is_autocast_enabled("cpu")
        and bool((targets.stack >= 0).all())
    )


def _is_cross_entropy(loss: Any) -> bool:
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.reduction == "mean" and loss.label_smoothing == 0
        return plain and loss.ignore_index < 0 and not loss._forward_hooks and not loss._forward_pre_hooks
    return loss is functional.cross_entropy
