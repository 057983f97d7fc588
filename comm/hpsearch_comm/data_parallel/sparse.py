"""Averaging sparse gradients, as `torch.nn.Embedding(sparse=True)` has them: ranks have different rows, and gather all.

A rank sends its indices and its values. Row 0 of the indices is a header: 1 + the number of values that follow, or 0
where the rank has no gradient, so that the concatenation of all ranks' rows can be taken apart again.
"""

from __future__ import annotations

import torch

from hpsearch_comm.data_parallel.shares import Share
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle

__all__ = ["SparseGradient"]

_SHORT = (torch.float16, torch.bfloat16)


class SparseGradient:
    """The gradient of one parameter, on its way.

    Args:
        parameter: Whose gradient it is.
        dimensions: How many of its dimensions are sparse: 1 for an embedding.
        group: Whose ranks average it.
    """

    __slots__ = ("_dimensions", "_gathering", "_group", "_parameter")

    def __init__(self, parameter: torch.nn.Parameter, dimensions: int, group: Group) -> None:
        self._parameter = parameter
        self._dimensions = dimensions
        self._group = group
        self._gathering: list[Handle[torch.Tensor]] = []

    def send(self, share: Share) -> None:
        """Begin to gather; a collective.

        Args:
            share: How much it counts. 0 leaves it out.
        """
        gradient = self._parameter.grad if share.own else None
        header = torch.zeros(1, self._dimensions, dtype=torch.int64, device=self._parameter.device)
        if gradient is None:
            values = self._parameter.new_empty((0, *self._parameter.shape[self._dimensions :]))
            indices = header
        else:
            if gradient.layout is not torch.sparse_coo:
                gradient = gradient.to_sparse(self._dimensions)
            gradient = gradient.coalesce()
            values = gradient.values()
            header.fill_(1 + values.shape[0])
            indices = torch.cat((header, gradient.indices().t()))
        self._gathering = [self._group.allgather_async(mine) for mine in (indices, values.contiguous())]

    def finish(self, share: Share) -> None:
        """Wait for all ranks' values and give the parameter their mean, coalesced.

        Args:
            share: How much each rank's count.
        """
        rows, values = (gathering.wait() for gathering in self._gathering)
        self._gathering = []
        headers = rows[:, 0].cpu()
        keep = torch.ones(len(rows), dtype=torch.bool, device="cpu")
        counts: list[int] = []
        start = 0
        for _ in range(self._group.size):
            counts.append(int(headers[start]))
            keep[start] = False
            start += max(counts[-1], 1)
        if not any(counts):
            self._parameter.grad = None
            return
        wide = values.float() if values.dtype in _SHORT else values
        if not share.even:
            factors = [factor for factor, count in zip(share.of_all, counts, strict=True) for _ in range(count - 1)]
            wide *= torch.tensor(factors, dtype=wide.dtype, device=wide.device).view(-1, *[1] * (wide.dim() - 1))
        # Coalescing adds up the values of equal indices.
        total = torch.sparse_coo_tensor(
            rows[keep.to(rows.device)].t(),
            wide,
            self._parameter.shape,
            device=rows.device,
            check_invariants=False,
        ).coalesce()
        self._parameter.grad = (total / self._group.size).to(values.dtype)
