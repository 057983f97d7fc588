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

__all__ = ["are_scores", "cross_entropies"]

_MEAN = 1
"""torch's number for a mean over rows."""
_nll_loss: Any = torch._C._nn.nll_loss_nd
"""That of `functional`, without its checks."""
_MOST_CLASSES = 16
"""Of more, a processor takes several of a row at once, and so sums them up in another order."""


def are_scores(output: Any) -> bool:
    """Whether it is what `cross_entropies` takes."""
    return isinstance(output, LaneTensor) and output.dim() == 2 and output.dtype == torch.float32


def cross_entropies(scores: Tensor, classes: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Give the cross entropy of each lane, (lanes,), and the gradient of the scores.

    The mean is a sum whose order is torch's own affair, so it is taken by torch's own function, lane by lane; the
    gradient of that is -share / rows at each row's class, and no sum.

    Args:
        scores: (lanes, rows, classes).
        classes: (lanes, rows).
        share: By what each is multiplied before it is differentiated.
    """
    # As torch computes it: in double precision a quotient of two floats is rounded to the same float.
    each = -np.float32(share).item() / classes.shape[1]
    if 0 < scores.shape[2] <= _MOST_CLASSES and scores.numel() > 0 and _columns_agree(scores.shape[2]):
        return _by_columns(scores, classes, each)
    logarithms = torch.log_softmax(scores, 2)
    given = torch.zeros_like(logarithms).scatter_(2, classes.unsqueeze(2), each)
    coming = torch._log_softmax_backward_data(given, logarithms, 2, logarithms.dtype)
    pairs = zip(logarithms.unbind(), classes.unbind(), strict=True)
    return torch.stack([_nll_loss(ours, theirs, None, _MEAN) for ours, theirs in pairs]), coming


def _by_columns(scores: Tensor, classes: Tensor, each: float) -> tuple[Tensor, Tensor]:
    """Do what `cross_entropies` does on scores of which those of one class lie side by side.

    So a processor takes a vector of rows at once. Of rows with fewer numbers than a vector has, it takes one at a time
    otherwise, which is the same but for the time: up to 20 times as long.
    """
    wanted = classes.reshape(1, -1)
    logarithms = torch.log_softmax(_columns(scores), 0)
    chosen = logarithms.gather(0, wanted).view(*classes.shape, 1)
    given = torch.zeros_like(logarithms).scatter_(0, wanted, each)
    coming = torch._log_softmax_backward_data(given, logarithms, 0, logarithms.dtype)
    gradient = coming[:, : classes.numel()].t().contiguous().view(scores.shape)
    first = torch.zeros_like(classes[0])
    return torch.stack([_nll_loss(ours, first, None, _MEAN) for ours in chosen.unbind()]), gradient


def _columns(scores: Tensor) -> Tensor:
    """Give scores as (classes, rows of all lanes), and rows of zeros after them that fill up vectors."""
    rows = scores.flatten(0, 1)
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
    wanted = torch.randint(classes, (4 * rows, 1), generator=generator)
    ways = []
    for scores, dim in ((numbers.flatten(0, 1), 1), (_columns(numbers), 0)):
        logarithms = torch.log_softmax(scores, dim)
        given = torch.zeros_like(logarithms).scatter_(dim, wanted if dim else wanted.t(), -1 / rows)
        made = logarithms, torch._log_softmax_backward_data(given, logarithms, dim, logarithms.dtype)
        ways.append([one if dim else one.t() for one in made])
    return same_bits(*ways)
