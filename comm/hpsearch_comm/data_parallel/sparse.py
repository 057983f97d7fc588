"""Averages sparse gradients, such as those of `torch.nn.Embedding(sparse=True)`, with allgather.

Each rank sends its indices and values. A rank that has a gradient, even one without rows, sends a row of -1 before its
indices. If no rank sends such a row, no rank has a gradient.
"""

from __future__ import annotations

import torch

from hpsearch_comm.data_parallel.shares import Share
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle

_SHORT = (torch.float16, torch.bfloat16)


class SparseGradient:
    """The reduction of one parameter's sparse gradient.

    Args:
        parameter: The parameter.
        dimensions: Number of sparse dimensions: 1 for an embedding.
        group: The ranks.
    """

    __slots__ = ("_dimensions", "_gathering", "_group", "_parameter")

    def __init__(self, parameter: torch.nn.Parameter, dimensions: int, group: Group) -> None:
        self._parameter = parameter
        self._dimensions = dimensions
        self._group = group
        self._gathering: list[Handle[torch.Tensor]] = []

    def send(self, share: Share) -> None:
        """Start to gather the ranks' indices and values; a collective.

        Args:
            share: The factor of this rank's gradient. With 0 the gradient is ignored.
        """
        gradient, dimensions = self._parameter.grad if share.own else None, self._dimensions
        if gradient is None:
            values = self._parameter.new_empty((0, *self._parameter.shape[dimensions:]))
            indices = torch.empty(0, dimensions, dtype=torch.int64, device=self._parameter.device)
        else:
            if gradient.layout is not torch.sparse_coo:
                gradient = gradient.to_sparse(dimensions)
            gradient = gradient.coalesce()
            values = gradient.values()
            indices = torch.cat((gradient.indices().new_full((1, dimensions), -1), gradient.indices().t()))
        if not share.even:  # in float32, because a 16-bit value could overflow
            values = (values.float() if values.dtype in _SHORT else values) * share.own
        self._gathering = [self._group.allgather_async(mine) for mine in (indices, values.contiguous())]

    def finish(self) -> None:
        """Wait for all ranks' values, and set the parameter's gradient to their mean, coalesced."""
        rows, values = (gathering.wait() for gathering in self._gathering)
        self._gathering = []
        is_index = rows[:, 0] >= 0
        if is_index.all():
            self._parameter.grad = None
            return
        # Coalescing adds up the values of equal indices.
        total = torch.sparse_coo_tensor(
            rows[is_index].t(),
            values.float() if values.dtype in _SHORT else values,
            self._parameter.shape,
            device=rows.device,
            check_invariants=False,
        ).coalesce()
        self._parameter.grad = (total / self._group.size).to(self._parameter.dtype)
