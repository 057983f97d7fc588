"""Ranks of one host as threads of one process, which share a segment."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import chain, combinations
from typing import Any

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.collectives.shm import direct_allreduce
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import Signature
from hpsearch_comm.shm.shm_segment import ShmSegment

PATIENCE = 60.0
"""Seconds after which a test whose ranks wait for each other has failed."""


def socket_pairs(ranks: Sequence[int]) -> dict[int, dict[int, socket.socket]]:
    """Connect every rank with every other."""
    ends: dict[int, dict[int, socket.socket]] = {rank: {} for rank in ranks}
    for one, other in combinations(ranks, 2):
        ends[one][other], ends[other][one] = socket.socketpair()
    return ends


class ShmWorld:
    """Ranks 0 to `size` - 1, or those given. Use it as a context.

    Args:
        ranks: How many, or which.
    """

    def __init__(self, ranks: int | Sequence[int]) -> None:
        self.ranks = list(range(ranks)) if isinstance(ranks, int) else list(ranks)
        self.size = len(self.ranks)
        self.sequence = 0

    def __enter__(self) -> ShmWorld:
        self._stack = ExitStack()
        self.abort_states = {rank: self._stack.enter_context(closing(AbortState())) for rank in self.ranks}
        self._pool = self._stack.enter_context(ThreadPoolExecutor(self.size))
        ends = socket_pairs(self.ranks)
        for sock in chain.from_iterable(each.values() for each in ends.values()):
            self._stack.enter_context(sock)
        making = {
            rank: self._pool.submit(ShmSegment, rank, self.ranks, ends[rank], self.abort_states[rank], timeout=PATIENCE)
            for rank in self.ranks
        }
        self.segments = {rank: self._stack.enter_context(closing(shm.result())) for rank, shm in making.items()}
        del making
        return self

    def __exit__(self, *_: object) -> None:
        self.segments = {}
        self._stack.close()

    def operation(self, rank: int, timeout: float = PATIENCE, **fields: Any) -> Operation:
        """Return what a rank needs for one operation; fields of the signature may be set."""
        named: dict[str, Any] = {"sequence": self.sequence, "operation": "allreduce", "algorithm": "direct"}
        return Operation(rank, Signature(**(named | fields)).pack(), timeout, self.abort_states[rank])

    def outcomes(self, task: Callable[[int], Any]) -> dict[int, Any]:
        """Call `task` with every rank at once; return what came of it, an exception perhaps, by rank."""
        self.sequence += 1

        def outcome(rank: int) -> Any:
            try:
                return task(rank)
            except Exception as error:
                return error.with_traceback(None)

        return dict(zip(self.ranks, self._pool.map(outcome, self.ranks), strict=True))

    def run(self, task: Callable[[int], Any]) -> list[Any]:
        """Call `task` with every rank at once and return the results; a rank's error is raised."""
        outcomes = self.outcomes(task)
        for outcome in outcomes.values():
            if isinstance(outcome, Exception):
                raise outcome
        return list(outcomes.values())


def allreduce_directly(
    shm: ShmSegment, operation: Operation, tensor: torch.Tensor, reduction: Reduction, out: torch.Tensor
) -> None:
    """Reduce this rank's tensor as a group does, in the way that is chosen for its kind and length."""
    direct_allreduce.bind(shm, reduction, tensor.numel())(operation, tensor, out)


def reduced(tensors: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Reduce tensors in their order, the slow and obvious way."""
    if len(tensors) == 1:
        return tensors[0].clone()
    total = reduction.partial(tensors[0]).clone()
    for tensor in tensors[1:]:
        reduction.combine(total, reduction.partial(tensor))
    reduction.finish(total, len(tensors))
    return total.to(reduction.computed).view(reduction.dtype)


def some_values(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values that differ from rank to rank, and whose sums and products are rounded."""
    generator = torch.Generator().manual_seed(1000 * rank + numel)
    if dtype == torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return (4 * torch.rand(numel, generator=generator) - 2).to(dtype)
    nbytes = numel * dtype.itemsize
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator).view(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors are the same, NaN and the signs of zeros included."""
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
