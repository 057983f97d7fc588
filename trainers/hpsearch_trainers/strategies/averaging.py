"""The mean of what workers have become: of their weights, and of the states of their optimizers.

And what strategies have in common in which each worker steps by itself between two means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from hpsearch_comm import Group, SyncBatchNorm, broadcast_parameters
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.header import dtype_named
from hpsearch_trainers.optimizers import parameters_of
from hpsearch_trainers.strategies.common_state import broadcast_common_state
from hpsearch_trainers.strategies.strategy import NO_FLOAT16, Strategy, Trained


@torch.no_grad()
def average_tensors(
    tensors: Sequence[Tensor], shares: Sequence[float], group: Group, common: Sequence[Tensor] | None = None
) -> None:
    """Replace tensors by their weighted mean over all workers, the same bits on each; a collective.

    Args:
        tensors: Of the same shapes and dtypes on every worker, floating-point or complex.
        shares: This worker's of each of them; over all workers they add up to 1.
        group: The workers.
        common: Values that all workers have alike: the mean is taken of the differences to them, so that a tensor that
            is still what it was on every worker stays so, to the bit.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(number)
    for numbers in kinds.values():
        views = [_real(tensors[number]) for number in numbers]
        bases = [0.0 if common is None else _real(common[number]) for number in numbers]
        # Where both are the same infinity, nothing has changed either.
        changes = [torch.where(view == base, 0.0, view - base) for view, base in zip(views, bases, strict=True)]
        weighted = [change.flatten() * shares[number] for change, number in zip(changes, numbers, strict=True)]
        means = torch.split(group.allreduce(torch.cat(weighted), op="sum"), [len(part) for part in weighted])
        for view, base, mean in zip(views, bases, means, strict=True):
            view.copy_(base + mean.view(view.shape))


def average_weights(tensors: Iterable[Tensor], rows: Sequence[int], group: Group) -> None:
    """Replace tensors by their mean over all workers, weighted by rows; a collective.

    What is equal everywhere stays so, to the bit, and rank 0's tensors travel for that. What has no mean is left out.
    """
    averaged = [tensor.detach() for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    common = [tensor.clone() for tensor in averaged]
    broadcast_tensors(common, group)
    average_tensors(averaged, [rows[group.rank] / sum(rows)] * len(averaged), group, common)


def average_optimizer(optimizer: Optimizer, rows: Sequence[int], group: Group) -> None:
    """Make an optimizer's state one over all workers; a collective.

    Moments and velocities become their mean, weighted by rows, over the workers that have them: where a parameter got
    a gradient on some alone, they count. Counts stay whole, and become the largest. Other numbers become those of the
    first worker that has them; the groups' settings, and what is kept for no parameter, rank 0's, which has rows in
    every step. What is sparse becomes dense.

    Args:
        optimizer: Of the same parameters on every worker.
        rows: What each worker counts.
        group: The workers.

    Raises:
        ConfigurationError: It keeps what has no mean; raised on all workers.
    """
    parameters = parameters_of(optimizer)
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        # Rows of sparse gradients, which the mean over workers has more and more of.
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
    """Return the kind of an entry, and what makes one like it."""
    if isinstance(value, Tensor):
        layout = [str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type]
        # As torch's own optimizers do: `step` is a count, in whatever dtype.
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
    """Give, by place and name, what an entry is to be made like, and which workers have it."""
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
    """Steps that no other worker hears of; a worker without rows takes none."""

    least: ClassVar[int] = 2
    exact: ClassVar[bool] = False
    rate_rule: ClassVar[str | None] = "none"
    refuses: ClassVar[Mapping[str, str]] = {
        **NO_FLOAT16,
        "batch_norm": "synchronized layers need all workers in each step, while statistics of local ones are averaged "
        "at an epoch's end: take batch_norm local",
    }
    group: Group

    def bind(self, trained: Trained) -> None:
        """Take what is trained; every worker begins with rank 0's.

        Raises:
            ConfigurationError: A layer of it needs all workers in each step.
            MismatchError: The workers have built different models.
        """
        super().bind(trained)
        if any(isinstance(layer, SyncBatchNorm) for layer in trained.model.modules()):
            self.refuse("batch_norm")
        broadcast_parameters([*trained.model.named_parameters(), *trained.model.named_buffers()], self.group)

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Begin an epoch."""
        super().start_epoch(trained, epoch)
        self._epoch_rows = 0

    def start_step(self, rows: int) -> None:
        """Begin a step with so many rows of this worker's own."""
        super().start_step(rows)
        self._step_rows = rows
        self._epoch_rows += rows

    def update(self) -> None:
        """Step, where there were rows: else not even momentum moves the weights."""
        if self._step_rows > 0:
            super().update()

    def _of_workers(self, rows: int) -> list[int]:
        """Return the rows of each worker; a collective."""
        return self.group.allgather(torch.tensor([rows], device="cpu")).tolist()

    def _average_moving_average(self, rows: list[int]) -> None:
        """Make the moving average that of the workers' mean, which it is as long as their shares stay; a collective."""
        if self.trained.average is not None:
            average_weights(self.trained.average.parameters(), rows, self.group)
