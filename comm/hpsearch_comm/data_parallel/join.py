"""Ranks with unequal numbers of batches: who has run out goes on taking part in what the others do together.

Before each synchronised backward pass the ranks tell each other that they are there (`Shares`). A rank that has run out
says that it isn't, takes part in the reduction with nothing to add, and asks again, until nobody is there any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import nn

from hpsearch_comm.data_parallel.broadcast import broadcast_optimizer_state, broadcast_tensors
from hpsearch_comm.data_parallel.reducer import GradientReducer
from hpsearch_comm.data_parallel.sync_batch_norm import SyncBatchNorm
from hpsearch_comm.errors import UsageError

__all__ = ["join"]


@contextlib.contextmanager
def join(module: nn.Module, reducer: GradientReducer, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Shadow the other ranks' backward passes after the block; `DataParallel.join` documents it."""
    for name, layer in module.named_modules():
        if isinstance(layer, SyncBatchNorm):
            raise UsageError(
                f"{name} is a SyncBatchNorm, whose ranks exchange statistics in the forward pass, so a rank that has "
                "run out of batches can't leave the loop: give it empty batches (of 0 rows) instead of join()"
            )
    if reducer.joining:
        raise UsageError("join() was called within join(): call it once around the loop")
    reducer.joining = True
    reducer.shares.present = list(range(reducer.group.size))
    try:
        yield
        if reducer.shares.announced:
            raise UsageError(
                "a rank left the block of join() between set_weight and its backward pass: the others count on it"
            )
        _shadow(module, reducer, optimizers)
    finally:
        reducer.joining = False


def _shadow(module: nn.Module, reducer: GradientReducer, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    group, shares = reducer.group, reducer.shares
    present = shares.present
    while True:
        shares.announce(0.0, present=False)
        shares.share()
        shares.spend()
        if not shares.present:
            break
        present = shares.present
        reducer.shadow()
    for parameter in module.parameters():
        parameter.grad = None
    if len(present) == group.size:
        return  # all went on to the end, and are alike
    broadcast_tensors(chain(module.parameters(), module.buffers()), group, present[0])
    for optimizer in optimizers:
        broadcast_optimizer_state(optimizer, group, present[0])
