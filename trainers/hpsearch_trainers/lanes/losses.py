"""The loss of each lane, computed by the lane's own function or, for cross entropy, for all lanes at once.

Plain cross entropies equal those of each lane alone bit for bit. If kernel launches dominate, as on a GPU, they are
computed in one call and may differ by rounding, but don't depend on the lane's position or on other lanes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.lane_tensor import LaneTensor, split_lanes
from hpsearch_trainers.lanes.rules import WHOLE_VECTORS


def cross_entropies_at_once(scores: Tensor, classes: Tensor, loss_weight: float) -> tuple[Tensor, Tensor]:
    """Return the cross entropy of each lane, (lanes,), and the gradient of the scores.

    Args:
        scores: (lanes, rows, classes).
        classes: (lanes, rows).
        loss_weight: Factor of each lane's loss for the gradient.
    """
    logarithms = torch.log_softmax(scores, 2)
    # Not a scatter, because its order of writes isn't deterministic.
    is_target = torch.arange(scores.shape[2], device=scores.device) == classes.unsqueeze(2)
    upstream = is_target * (-loss_weight / classes.shape[1])
    gradient = torch._log_softmax_backward_data(upstream, logarithms, 2, logarithms.dtype)
    return _means(logarithms, classes), gradient


def means_at_once(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the cross entropy of each lane, (lanes,). For the arguments see `cross_entropies_at_once`."""
    return _means(torch.log_softmax(scores, 2), classes)


def _means(logarithms: Tensor, classes: Tensor) -> Tensor:
    return sums(logarithms.gather(2, classes.unsqueeze(2)).squeeze(2)).div_(-classes.shape[1])


def sums(numbers: Tensor) -> Tensor:
    """Return the sum of each lane's numbers, (lanes, n), added in the same order for all lanes.

    The order may depend on the memory alignment, so each lane's numbers are aligned to vectors.
    """
    return functional.pad(numbers, (0, -numbers.shape[1] % WHOLE_VECTORS)).sum(1)


_MEAN = 1
"""torch's code for the reduction "mean"."""
_nll_loss: Any = torch._C._nn.nll_loss_nd
"""`functional.nll_loss` without its checks."""
_MOST_CLASSES = 16
"""With more classes, the CPU kernel vectorizes over a row's classes, so it sums in another order."""
_MOST_ROWS = 2**15
"""With more rows, the two ways of summing have different orders."""


def are_scores(output: Any, targets: LaneTensor) -> bool:
    """Return whether an output is valid input of `cross_entropies`, provided that the targets are classes."""
    of_floats = isinstance(output, LaneTensor) and output.dim() == 2 and output.dtype == torch.float32
    return of_floats and output.shape[:1] == targets.shape


def cross_entropies(scores: Tensor, classes: Tensor, loss_weight: float) -> tuple[Tensor, Tensor]:
    """Return the log-likelihood of each row's class, (lanes, rows), and the gradient of the scores.

    `mean_losses` returns the cross entropies from the log-likelihoods. The gradient of the mean is -loss_weight / rows
    at each row's class.

    Args:
        scores: (lanes, rows, classes).
        classes: (lanes, rows).
        loss_weight: Factor of each lane's loss for the gradient.
    """
    # Equal to torch's result: a quotient in double precision is rounded to the same float.
    row_gradient = -np.float32(loss_weight).item() / classes.shape[1]
    dim, numbers, targets = _laid_out(scores, classes)
    logarithms = torch.log_softmax(numbers, dim)
    upstream = torch.zeros_like(logarithms).scatter_(dim, targets, row_gradient)
    gradient = torch._log_softmax_backward_data(upstream, logarithms, dim, logarithms.dtype)
    if dim == 0:
        gradient = gradient[:, : classes.numel()].t().contiguous()
    return logarithms.gather(dim, targets).view(classes.shape), gradient.view(scores.shape)


def log_likelihoods(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the log-likelihood of each row's class, (lanes, rows). For the arguments see `cross_entropies`."""
    dim, numbers, targets = _laid_out(scores, classes)
    return torch.log_softmax(numbers, dim).gather(dim, targets).view(classes.shape)


def mean_losses(likelihoods: Tensor) -> Tensor:
    """Return cross entropies, (n,), from the log-likelihoods of their rows, (n, rows)."""
    rows = likelihoods.shape[1]
    return (_summed if 0 < rows <= _MOST_ROWS and _sums_agree(rows) else _by_torch)(likelihoods)


def _by_torch(likelihoods: Tensor) -> Tensor:
    first = torch.zeros(likelihoods.shape[1], dtype=torch.int64)
    return torch.stack([_nll_loss(scores, first, None, _MEAN) for scores in likelihoods.unsqueeze(2).unbind()])


def _summed(likelihoods: Tensor) -> Tensor:
    """Sum log-likelihoods in the order of `nll_loss`: torch's column sum of all rows but the first, plus the first.

    Columns are padded to whole vectors, so that the order is the same for each column.
    """
    columns = _columns(likelihoods)
    sums = columns[1:].sum(0).add_(columns[0])
    return torch.rsub(sums, 0).div_(len(columns))[: len(likelihoods)]


def _laid_out(scores: Tensor, classes: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return the dimension of the classes, the scores with this layout, and the classes as indices.

    If the scores of a class are contiguous, the CPU kernel processes a vector of rows at once. Otherwise it processes
    rows with fewer classes than a vector one at a time. The result is the same, but takes up to 20 times as long.
    """
    if 0 < scores.shape[2] <= _MOST_CLASSES and scores.numel() > 0 and _columns_agree(scores.shape[2]):
        return 0, _columns(scores.flatten(0, 1)), classes.reshape(1, -1)
    return 1, scores.flatten(0, 1), classes.reshape(-1, 1)


def _columns(rows: Tensor) -> Tensor:
    """Return the transposed rows, padded with columns of zeros to whole vectors."""
    over = -len(rows) % WHOLE_VECTORS
    if over == 0:
        return rows.t().contiguous()
    columns = rows.new_zeros(rows.shape[1], len(rows) + over)
    columns[:, : len(rows)] = rows.t()
    return columns


@functools.cache
def _columns_agree(classes: int) -> bool:
    """Test whether both layouts give equal bits for this number of classes on this processor."""
    rows = 4 * WHOLE_VECTORS
    generator = torch.Generator().manual_seed(classes)
    scales = torch.tensor([0.01, 1.0, 10.0, 100.0], dtype=torch.float32).view(4, 1, 1)
    numbers = torch.randn(4, rows, classes, generator=generator, dtype=torch.float32) * scales
    targets = torch.randint(classes, (4 * rows, 1), generator=generator)
    results = []
    for scores, dim in ((numbers.flatten(0, 1), 1), (_columns(numbers.flatten(0, 1)), 0)):
        logarithms = torch.log_softmax(scores, dim)
        upstream = torch.zeros_like(logarithms).scatter_(dim, targets if dim else targets.t(), -1 / rows)
        outputs = logarithms, torch._log_softmax_backward_data(upstream, logarithms, dim, logarithms.dtype)
        results.append([output if dim else output.t() for output in outputs])
    return same_bits(*results)


@functools.cache
def _sums_agree(rows: int) -> bool:
    """Test whether both ways of summing give equal bits for this number of rows on this processor."""
    generator = torch.Generator().manual_seed(rows)
    scales = torch.tensor([1e-6, 1.0, 1e3], dtype=torch.float32).view(3, 1)
    likelihoods = -torch.rand(3, rows, generator=generator, dtype=torch.float32) * scales
    return same_bits(_summed(likelihoods), _by_torch(likelihoods))


_MOST_NUMBERS = 2**20
"""Maximum number of rows whose losses are deferred, to limit memory."""


class Losses:
    """The training losses of the lanes.

    Attributes:
        plain: Whether all losses are plain cross entropies with class targets.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        of_floats = lanes[0].trainer.parts.autocast is None
        self._of_classes = of_floats and _are_classes([lane.training for lane in lanes])
        self._validated_of_classes = of_floats and _are_classes([lane.validation for lane in lanes])
        self._parameters = [(lane, parameter) for lane in lanes for parameter in lane.model.parameters()]
        self.plain = self.are_plain()

    def are_plain(self) -> bool:
        """Return whether all losses are plain cross entropies at the moment."""
        of_floats = not torch.is_autocast_enabled(self._lanes[0].trainer.device.type)
        return (
            of_floats and self._of_classes and all(_is_cross_entropy(lane.trainer.parts.loss) for lane in self._lanes)
        )

    def lane_losses(self, output: Any, targets: LaneTensor, loss_weight: float) -> Tensor:
        """Return each lane's mean loss of a batch's rows, (lanes,), and set the gradients of the output.

        Args:
            output: Output of the lanes' models, followed by that of free places.
            targets: Targets of the batch for each lane.
            loss_weight: Factor of each loss for the gradient.

        Raises:
            ConfigurationError: A loss isn't a single number.
            NotFusible: The output can't be split into lanes, or a loss depends on other tensors with gradients.
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
        """Return each lane's mean loss of a validation batch; None if the lane's own function must compute it."""
        if not (self.plain and self._validated_of_classes and are_scores(output, targets)):
            return [None] * len(self._lanes)
        mean = _exact_means if targets.generators.noise is None else means_at_once
        return mean(output.stack, targets.stack)[: len(self._lanes)].unbind()


class LossSums:
    """Sums the losses of an epoch's rows in the order of its passes, like a trainer alone.

    Args:
        lanes: Number of lanes.
        device: Device of the losses.
    """

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._sums = torch.zeros(lanes, dtype=torch.float64, device=device)
        self._likelihoods: list[tuple[Tensor, int]] = []
        """Log-likelihoods and rows of passes whose losses aren't added yet; all are computed at once."""
        self._numbers = 0  # number of these log-likelihoods

    def add(self, losses: Tensor, rows: int) -> None:
        """Add the losses of a pass.

        Args:
            losses: Mean loss of each lane, (lanes or more,); for plain cross entropies, the log-likelihood of each row,
                (lanes or more, rows).
            rows: Number of rows of the pass.
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
    """Return whether the targets are classes, without torch's `ignore_index`."""
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
