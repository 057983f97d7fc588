"""Plain cross entropies of all lanes at once, each with the bits that it has alone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.elementwise import WHOLE_VECTORS
from hpsearch_trainers.lanes.lane_tensor import LaneTensor

__all__ = ["are_scores", "cross_entropies", "log_likelihoods", "mean_losses"]

_MEAN = 1
"""torch's number for a mean over rows."""
_nll_loss: Any = torch._C._nn.nll_loss_nd
"""That of `functional`, without its checks."""
_MOST_CLASSES = 16
"""Of more, a processor takes several of a row at once, and so sums them up in another order."""
_MOST_ROWS = 2**15
"""Of more, the two sums are taken in other orders."""


def are_scores(output: Any, targets: LaneTensor) -> bool:
    """Whether they are what `cross_entropies` takes, if the targets are classes."""
    of_floats = isinstance(output, LaneTensor) and output.dim() == 2 and output.dtype == torch.float32
    return of_floats and output.shape[:1] == targets.shape


def cross_entropies(scores: Tensor, classes: Tensor, loss_weight: float) -> tuple[Tensor, Tensor]:
    """Return the log-likelihood of each row's class, (lanes, rows), and the gradient of the scores.

    The cross entropies are what `mean_losses` makes of the first. The gradient of a mean is -share / rows at each row's
    class.

    Args:
        scores: (lanes, rows, classes).
        classes: (lanes, rows).
        loss_weight: By what each lane's cross entropy is multiplied before it is differentiated.
    """
    # As torch computes it: in double precision a quotient of two floats is rounded to the same float.
    row_gradient = -np.float32(loss_weight).item() / classes.shape[1]
    dim, numbers, targets = _laid_out(scores, classes)
    logarithms = torch.log_softmax(numbers, dim)
    upstream = torch.zeros_like(logarithms).scatter_(dim, targets, row_gradient)
    gradient = torch._log_softmax_backward_data(upstream, logarithms, dim, logarithms.dtype)
    if dim == 0:
        gradient = gradient[:, : classes.numel()].t().contiguous()
    return logarithms.gather(dim, targets).view(classes.shape), gradient.view(scores.shape)


def log_likelihoods(scores: Tensor, classes: Tensor) -> Tensor:
    """Return that of each row's class, (lanes, rows); arguments as of `cross_entropies`."""
    dim, numbers, targets = _laid_out(scores, classes)
    return torch.log_softmax(numbers, dim).gather(dim, targets).view(classes.shape)


def mean_losses(likelihoods: Tensor) -> Tensor:
    """Return cross entropies, (n,), from the logarithms of the likelihoods of their rows, (n, rows)."""
    rows = likelihoods.shape[1]
    return (_summed if 0 < rows <= _MOST_ROWS and _sums_agree(rows) else _by_torch)(likelihoods)


def _by_torch(likelihoods: Tensor) -> Tensor:
    first = torch.zeros(likelihoods.shape[1], dtype=torch.int64)
    return torch.stack([_nll_loss(scores, first, None, _MEAN) for scores in likelihoods.unsqueeze(2).unbind()])


def _summed(likelihoods: Tensor) -> Tensor:
    """Add up in the order of `nll_loss`: the sum of all rows but the first, as torch sums up a column, and the first.

    A column is one of as many as fill vectors, so that it doesn't matter which one.
    """
    columns = _columns(likelihoods)
    sums = columns[1:].sum(0).add_(columns[0])
    return torch.rsub(sums, 0).div_(len(columns))[: len(likelihoods)]


def _laid_out(scores: Tensor, classes: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return along which dimension the scores of a row's classes lie, the scores so laid out, and which are wanted.

    Where those of one class lie side by side, a processor takes a vector of rows at once. Of rows with fewer numbers
    than a vector has, it takes one at a time otherwise, which is the same but for the time: up to 20 times as long.
    """
    if 0 < scores.shape[2] <= _MOST_CLASSES and scores.numel() > 0 and _columns_agree(scores.shape[2]):
        return 0, _columns(scores.flatten(0, 1)), classes.reshape(1, -1)
    return 1, scores.flatten(0, 1), classes.reshape(-1, 1)


def _columns(rows: Tensor) -> Tensor:
    """Return rows as columns, and columns of zeros after them that fill up vectors."""
    over = -len(rows) % WHOLE_VECTORS
    if over == 0:
        return rows.t().contiguous()
    columns = rows.new_zeros(rows.shape[1], len(rows) + over)
    columns[:, : len(rows)] = rows.t()
    return columns


@functools.cache
def _columns_agree(classes: int) -> bool:
    """Try whether both ways have the same bits, for so many classes on this processor."""
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
    """Try whether both ways have the same bits, for so many rows on this processor."""
    generator = torch.Generator().manual_seed(rows)
    scales = torch.tensor([1e-6, 1.0, 1e3], dtype=torch.float32).view(3, 1)
    likelihoods = -torch.rand(3, rows, generator=generator, dtype=torch.float32) * scales
    return same_bits(_summed(likelihoods), _by_torch(likelihoods))
