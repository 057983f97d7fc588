"""What packs compute for all lanes in one call where a call costs more than what it computes, as on a GPU.

Each lane's part depends neither on its place nor on the others. A sum over numbers that lie side by side may be taken
in an order that follows from where in memory they begin: so each lane's begin where vectors do.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.elementwise import WHOLE_VECTORS

__all__ = ["cross_entropies_at_once", "means_at_once", "sums"]


def cross_entropies_at_once(scores: Tensor, classes: Tensor, loss_weight: float) -> tuple[Tensor, Tensor]:
    """Return the cross entropy of each lane, (lanes,), and the gradient of the scores.

    Args:
        scores: (lanes, rows, classes).
        classes: (lanes, rows).
        loss_weight: By what each lane's is multiplied before it is differentiated.
    """
    logarithms = torch.log_softmax(scores, 2)
    # A scatter may write in any order.
    is_target = torch.arange(scores.shape[2], device=scores.device) == classes.unsqueeze(2)
    upstream = is_target * (-loss_weight / classes.shape[1])
    gradient = torch._log_softmax_backward_data(upstream, logarithms, 2, logarithms.dtype)
    return _means(logarithms, classes), gradient


def means_at_once(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the cross entropy of each lane, (lanes,); arguments as of `cross_entropies_at_once`."""
    return _means(torch.log_softmax(scores, 2), classes)


def _means(logarithms: Tensor, classes: Tensor) -> Tensor:
    return sums(logarithms.gather(2, classes.unsqueeze(2)).squeeze(2)).div_(-classes.shape[1])


def sums(numbers: Tensor) -> Tensor:
    """Add up each lane's numbers, (lanes, n)."""
    return functional.pad(numbers, (0, -numbers.shape[1] % WHOLE_VECTORS)).sum(1)
