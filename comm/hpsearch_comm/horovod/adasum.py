"""Adasum, which adds gradients as far as they point in different directions, and averages them as far as they agree.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, equation 4: two gradients a and b become

    (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b

and those of several ranks are combined in a tree of pairs: neighbours first, then pairs of pairs. Before step d of it,
2ᵈ ranks hold the same partial result; each rank sends its own to the one at the distance 2ᵈ and combines the two, in
the order of ranks, so that all get the same bits.
"""

from __future__ import annotations

import torch

from hpsearch_comm.group import Group
from hpsearch_comm.operations.contiguous import flat

__all__ = ["adasum", "combine"]


def adasum(group: Group, tensor: torch.Tensor) -> torch.Tensor:
    """Return the Adasum of the ranks' tensors; a collective.

    Args:
        group: Of a power of two ranks.
        tensor: Of floats; short ones are combined in float32, and rounded once.
    """
    mine = flat(tensor).to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
    theirs = torch.empty_like(mine)
    distance = 1
    while distance < group.size:
        partner = group.rank ^ distance
        sending = group.send_async(mine, partner)
        group.recv(theirs, partner)
        sending.wait()
        mine = combine(mine, theirs) if group.rank < partner else combine(theirs, mine)
        distance *= 2
    return mine.to(tensor.dtype).view(tensor.shape)


def combine(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Combine two gradients (equation 4). One that is zero changes nothing."""
    a, b = first.to(torch.float64), second.to(torch.float64)
    product, first_square, second_square = a.dot(b), a.dot(a), b.dot(b)
    first_share = 1.0 - float(product / (2 * first_square)) if first_square > 0 else 1.0
    second_share = 1.0 - float(product / (2 * second_square)) if second_square > 0 else 1.0
    return first_share * first + second_share * second
