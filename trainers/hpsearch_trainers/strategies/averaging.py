"""Averages of the workers' weights and optimizer states.

Also the base class of strategies in which each worker takes local steps between two averages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from hpsearch_comm import Group, SyncBatchNorm
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.header import dtype_named
from hpsearch_trainers.optimizers import parameters_of
from hpsearch_trainers.strategies.common_state import broadcast_common_state
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Strategy, StrategyCapabilities, Trained


@torch.no_grad()
def average_tensors(
    tensors: Sequence[Tensor], shares: Sequence[float], group: Group, common: Sequence[Tensor] | None = None
) -> None:
    """Replace tensors by their weighted mean over all workers, equal bit for bit on each; a collective.

    Args:
        tensors: Floating-point or complex tensors, of the same shapes and dtypes on every worker.
        shares: This worker's weight for each tensor. The weights of all workers add up to 1.
        group: The workers.
        common: Reference tensors that are equal on all workers. If given, the differences to them are averaged, so a
            tensor that equals its reference on every worker stays unchanged, bit for bit.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(number)
    for numbers in kinds.values():
        views = [_real(tensors[number]) for number in numbers]
        bases = [0.0 if common is None else _real(common[number]) for number in numbers]
        # Equal infinities count as unchanged; their difference would be NaN.
        changes = [torch.where(view == base, 0.0, view - base) for view, base in zip(views, bases, strict=True)]
        weighted = [change.flatten() * shares[number] for change, number in zip(changes, numbers, strict=True)]
        means = torch.split(group.allreduce(torch.cat(weighted), op="sum"), [len(part) for part in weighted])
        for view, base, mean in zip(views, bases, means, strict=True):
            view.copy_(base + mean.view(view.shape))


def average_weights(tensors: Iterable[Tensor], rows: Sequence[int], group: Group) -> None:
    """Replace tensors by their mean over all workers, weighted by rows; a collective.

    Tensors that are equal on all workers stay unchanged, bit for bit; for this, rank 0's tensors are broadcast first.
    Integer and boolean tensors are skipped.
    """
    averaged = [tensor.detach() for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    common = [tensor.clone() for tensor in averaged]
    broadcast_tensors(common, group)
    average_tensors(averaged, [rows[group.rank] / sum(rows)] * len(averaged), group, common)


def average_optimizer(optimizer: Optimizer, rows: Sequence[int], group: Group) -> None:
    """Make an optimizer's state equal on all workers; a collective.

    - Moments and velocities are averaged, weighted by rows, over the workers that have them. A worker has none if the
      parameter got no gradient there.
    - Integer counts become the maximum.
    - Other numbers are copied from the first worker that has them.
    - Group settings, and state that belongs to no parameter, are copied from rank 0, which has rows in every step.
    - Sparse tensors become dense.

    Args:
        optimizer: An optimizer of the same parameters on every worker.
        rows: Weight of each worker.
        group: The workers.

    Raises:
        ConfigurationError: The state has an entry that can't be averaged; raised on all workers.
    """
    parameters = parameters_of(optimizer)
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        # State of sparse gradients: the mean over the workers has ever more rows, so make it dense.
        state.update({name: value.to_dense() for name, value in state.items() if _is_sparse(value)})
    descriptions = [
        [index, str(name), *_describe(name, value)]
        for index, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
    ]
    merged = _merged(optimizer, group.allgather_object(descriptions))
    broadcast_common_state(optimizer, group, 0)
    tensors, shares = [], []
    for (index, name), (description, holders) in merged.items():
        state, (kind, *_, last) = optimizer.state[parameters[index]], description
        if kind == "mean":
            tensors.append(state.setdefault(name, _zeros(description, parameters[index])))
            shares.append(_weight(rows, holders, group.rank))
        elif kind == "count":
            state.setdefault(name, _zeros(description, parameters[index])).fill_(last)
        else:
            state[name] = last
    average_tensors(tensors, shares, group)


def _is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.sparse_coo


def _describe(name: Any, value: Any) -> list[Any]:
    """Return the kind of a state entry, and a description from which a similar entry can be created."""
    if isinstance(value, Tensor):
        layout = [str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type]
        # As in torch's own optimizers, `step` is a count in any dtype.
        counts = name == "step" or not (value.is_floating_point() or value.is_complex())
        if value.layout is torch.strided and not counts:
            return ["mean", *layout]
        if value.layout is torch.strided and value.numel() == 1:
            return ["count", *layout, value.item()]
        return ["none", f"{value.layout} tensor of {value.dtype}, {list(value.shape)}"]
    if value is None or isinstance(value, int | float | str):
        return ["number" if name == "step" or isinstance(value, int) else "plain", value]
    return ["none", type(value).__name__]


def _merged(
    optimizer: Optimizer, of_workers: Sequence[list[Any]]
) -> dict[tuple[int, str], tuple[list[Any], list[int]]]:
    """Return, for each entry by parameter index and name, its merged description and the workers that have it."""
    merged: dict[tuple[int, str], tuple[list[Any], list[int]]] = {}
    for worker, entries in enumerate(of_workers):
        for index, name, *description in entries:
            first, holders = merged.setdefault((index, name), (description, []))
            holders.append(worker)
            kind, *layout = description
            if kind == "none" or kind != first[0] or (kind in ("mean", "count") and layout[:2] != first[1:3]):
                raise ConfigurationError(
                    f"the state of an optimizer must consist of numbers and dense floating-point tensors, of the same "
                    f"shapes on every worker, to be averaged over them, got {layout[0]} as {name!r} of "
                    f"{type(optimizer).__name__} on worker {worker}: take another optimizer, or parallel.strategy "
                    "allreduce"
                )
            if kind in ("count", "number"):
                first[-1] = max(first[-1], description[-1])
    return merged


def _zeros(description: Sequence[Any], parameter: Tensor) -> Tensor:
    _, dtype, shape, device, *_ = description
    return torch.zeros(shape, dtype=dtype_named(dtype), device="cpu" if device == "cpu" else parameter.device)


def _weight(rows: Sequence[int], holders: Sequence[int], worker: int) -> float:
    total = sum(rows[holder] for holder in holders)
    return rows[worker] / total if total > 0 else 1 / len(holders)


def _real(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class LocalSteps(Strategy):
    """Base class of strategies with local steps. A worker without rows skips the step."""

    capabilities: ClassVar[StrategyCapabilities] = StrategyCapabilities(
        exact=False,
        rate_rule="none",
        refuses={
            **NO_FLOAT16,
            "batch_norm": "synchronized layers need all workers in each step, while statistics of local ones are "
            "averaged at an epoch's end: take batch_norm local",
        },
    )
    group: Group

    def prepare(self, trained: Trained) -> None:
        """Broadcast rank 0's weights and buffers.

        Raises:
            ConfigurationError: The model has synchronized batch normalization.
            MismatchError: The workers have built different models.
        """
        if any(isinstance(layer, SyncBatchNorm) for layer in trained.model.modules()):
            self.refuse("batch_norm")
        super().prepare(trained)

    def begin_epoch(self, epoch: int) -> None:
        """Start to count this worker's rows."""
        super().begin_epoch(epoch)
        self._epoch_rows = 0

    def step(self) -> None:
        """Step if this worker has rows. Otherwise the weights stay unchanged, also with momentum."""
        self._epoch_rows += self.rows
        if self.rows > 0:
            self.local_step()

    def _of_workers(self, rows: int) -> list[int]:
        """Return each worker's number of rows; a collective."""
        return self.group.allgather(torch.tensor([rows], device="cpu")).tolist()

    def _average_moving_average(self, rows: list[int]) -> None:
        """Average the workers' moving averages; a collective.

        If the workers' shares of rows are constant, the result is the moving average of their mean.
        """
        if self.trained.average is not None:
            average_weights(self.trained.average.parameters(), rows, self.group)
