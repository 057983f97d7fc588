"""A model that each rank trains on its part of every batch.

With `join`, ranks may have different numbers of batches. Before each synchronized backward pass the ranks announce
whether they still have batches (`Shares`). A rank that has run out announces this, takes part in the reduction with
zeros, and repeats both until no rank has batches.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal, Self

import torch
from torch import nn

from hpsearch_comm.data_parallel.agreement import check_agreement, describe_tensors
from hpsearch_comm.data_parallel.broadcast import broadcast_optimizer_state, broadcast_tensors
from hpsearch_comm.data_parallel.reducer import GradientReducer
from hpsearch_comm.data_parallel.sync_batch_norm import SyncBatchNorm
from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group


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
        return  # all ranks ran to the end, so they are equal
    broadcast_tensors(chain(module.parameters(), module.buffers()), group, present[0])
    for optimizer in optimizers:
        broadcast_optimizer_state(optimizer, group, present[0])


class DataParallel(nn.Module):
    """Trains one model on several ranks: `loss.backward()` averages the gradients over them.

        model = DataParallel(model, group)
        optimizer = torch.optim.Adam(model.parameters())
        for inputs, targets in this_ranks_batches:
            optimizer.zero_grad()
            loss_function(model(inputs), targets).backward()
            optimizer.step()

    The constructor is a collective: parameters and buffers become rank 0's. Afterwards only gradients are averaged;
    running statistics of batch normalization differ between ranks unless `SyncBatchNorm` keeps them equal.

    After `backward()` each `parameter.grad` is the mean over the ranks, so clipping, unscaling and any optimizer work
    as on one rank. `zero_grad()` works with and without `set_to_none`. The gradient is a view of a bucket, which the
    next backward pass overwrites: clone it to keep it. Gradients accumulated before are part of the mean. A parameter
    that no rank used has no gradient. If only some ranks used it, its gradient is the mean over all ranks, with zeros
    for the others. Second derivatives with `backward(create_graph=True)` are not supported.

    Every rank must run the same number of synchronized backward passes, each through at least one parameter, and call
    no other operation of the group within them. If two models are trained concurrently, in an order that may differ
    between ranks, each needs a separate group: `group.duplicate()`.

    `state_dict()` has the inner module's keys after `module.`, as torch's DistributedDataParallel has.

    Args:
        module: The model, on its final device. Parameters that require no gradient now can't be trained later. Other
            parameters may be frozen later, on every rank.
        group: The ranks.
        bucket_mb: Size of a bucket of gradients in MiB.
        compression: "fp16" or "bf16" sends and rounds gradients in 16 bits; the maximum of fp16 is 65504. None sends
            gradients unchanged. Sparse gradients are never compressed.
        weighted: Whether the mean is weighted by the weights passed to `set_weight`.
        broadcast: Whether rank 0's parameters and buffers are sent. Use False if all ranks have loaded the same ones.
        overlap: Whether gradients are averaged during the backward pass. None decides by the expected gain: yes between
            hosts, on GPUs, and if the host has more cores than the ranks' backward passes use.

    Attributes:
        module: The model.
        group: The ranks.

    Raises:
        MismatchError: The models differ between ranks. The error names the first different parameter, on every rank.
        UsageError: An argument is invalid, or no parameter requires a gradient.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        *,
        bucket_mb: float = 25.0,
        compression: Literal["fp16", "bf16"] | None = None,
        weighted: bool = False,
        broadcast: bool = True,
        overlap: bool | None = None,
    ) -> None:
        super().__init__()
        parameters = list(module.named_parameters())
        if not any(parameter.requires_grad for _, parameter in parameters):
            raise UsageError("no parameter of the model needs a gradient: there is nothing to average")
        buffers = list(module.named_buffers())
        reducer = GradientReducer(
            parameters, group, bucket_mb=bucket_mb, compression=compression, weighted=weighted, overlap=overlap
        )
        settings = f"settings bucket_mb={bucket_mb}, compression={compression}, weighted={weighted}"
        lines = [f"{settings}, broadcast={broadcast}", *describe_tensors("parameter", parameters)]
        check_agreement(group, "the model", lines + describe_tensors("buffer", buffers))
        if broadcast:
            broadcast_tensors((tensor for _, tensor in parameters + buffers), group)
        self.module = module
        self.group = group
        self._reducer = reducer
        for layer in module.modules():
            if isinstance(layer, SyncBatchNorm):
                layer.exchange.share = reducer.coming_share
        self._parameter_ids = {id(parameter) for _, parameter in parameters}
        self._trained = [
            (layer._parameters, name, parameter)
            for layer in module.modules()
            for name, parameter in layer._parameters.items()
            if parameter is not None and parameter.requires_grad
        ]
        self._changed = False
        reducer.watch(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Check that no parameter was added or replaced, and call the module."""
        if self._changed or any(holder.get(name) is not parameter for holder, name, parameter in self._trained):
            self._check_parameters()
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, as for any module."""
        self._changed = True
        return super().train(mode)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank in the backward passes within, without averaging them.

        with model.no_sync():
            for part in parts[:-1]:
                loss(part).backward()
        loss(parts[-1]).backward()  # averages the accumulated gradients
        """
        before, self._reducer.enabled = self._reducer.enabled, False
        try:
            yield
        finally:
            self._reducer.enabled = before

    def set_weight(self, weight: float) -> None:
        """Set the weight of this rank's gradient in the next synchronized backward pass; a collective.

        If the loss is a mean over rows, and the weight is their number, the averaged gradient is that of the mean over
        the rows of all ranks. The numbers of rows may differ. With accumulation, count the rows of all parts.

        Args:
            weight: A number of at least 0. The gradients of a rank with weight 0 are ignored, even if they are NaN.

        Raises:
            UsageError: The model isn't weighted, the weight is invalid, or the last weight hasn't been used. (If all
                weights are 0, the backward pass raises the error.)
        """
        reducer = self._reducer
        if not reducer.weighted:
            raise UsageError("set_weight needs DataParallel(..., weighted=True)")
        try:
            value = float(weight)
        except (TypeError, ValueError):
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"a weight must be a finite number of 0 or more, got {weight!r}")
        if reducer.shares.announced:
            raise UsageError(
                "set_weight was called twice before a synchronised backward pass: call it once for each, with the "
                "rows of all accumulated parts"
            )
        if self.group.size > 1:
            reducer.shares.announce(value)

    @contextlib.contextmanager
    def join(self, *optimizers: torch.optim.Optimizer) -> Iterator[None]:
        """Allow ranks to have different numbers of batches.

            with model.join(optimizer):
                for inputs, targets in this_ranks_batches:
                    ...

        A rank at the end of the block contributes zeros to the other ranks' reductions until all ranks have reached the
        end. The mean is over the ranks that still have batches. Afterwards every rank has the parameters, buffers and
        optimizer state of the lowest rank that ran the last batch, and no gradients.

        Each synchronized backward pass needs an additional allreduce of two numbers per rank; with `weighted=True`,
        `set_weight` already does it. Other operations in the block, such as averaging a loss, are not supported: they
        would wait for ranks that have run out of batches.

        Args:
            optimizers: The optimizers that the block steps. Without them, a rank that ran out early continues with an
                older optimizer state.

        Raises:
            UsageError: The model has a SyncBatchNorm, whose operations in the forward pass are not supported here.
        """
        for name, layer in self.module.named_modules():
            if isinstance(layer, SyncBatchNorm):
                raise UsageError(
                    f"{name} is a SyncBatchNorm, whose ranks exchange statistics in the forward pass, so a rank that "
                    "has run out of batches can't leave the loop: give it empty batches (of 0 rows) instead of join()"
                )
        reducer = self._reducer
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
            _shadow(self.module, reducer, optimizers)
        finally:
            reducer.joining = False

    def __getstate__(self) -> dict[str, Any]:
        """Raise an error: the model can't be copied or pickled.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a DataParallel can't be copied or pickled, since it belongs to the ranks of its group: copy or save its "
            "module, or its state_dict()"
        )

    def _check_parameters(self) -> None:
        self._changed = False
        for name, parameter in self.module.named_parameters():
            # functional_call may replace a parameter with a tensor computed from it (no leaf), whose gradient flows
            # back to the parameter.
            if parameter.requires_grad and parameter.is_leaf and id(parameter) not in self._parameter_ids:
                raise UsageError(
                    f"parameter {name} was added to the model, or replaced, after DataParallel was made, so its "
                    "gradient wouldn't be averaged: wrap the model when it is complete"
                )
