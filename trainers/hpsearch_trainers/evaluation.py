"""Exact metrics of a data set that is divided among workers: sums and counts are added up, never means of means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.batches import Batches
from hpsearch_trainers.shards import validation_rows

__all__ = ["evaluate"]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Batches,
    loss: Callable[[Any, Any], Tensor],
    metrics: Mapping[str, Callable[[Any, Any], Tensor]],
    batch_size: int,
    group: Group | None,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> dict[str, float]:
    """Give the mean of the loss and of each metric over all rows; a collective of the group.

    Args:
        model: Left in evaluation mode.
        data: All of it, on every worker, each of which takes its part.
        loss: The mean over the rows of a batch; given as `validation_loss`.
        metrics: By name: a value for each row, or their mean.
        batch_size: Rows at once.
        group: The workers, or None for one.
        autocast: Makes the context of the forward pass.

    Raises:
        ConfigurationError: A metric gives something else.
    """
    rank, width = (group.rank, group.size) if group is not None else (0, 1)
    model.eval()
    sums: dict[str, Tensor | float] = dict.fromkeys(["validation_loss", *metrics], 0.0)
    mine = torch.tensor(validation_rows(data.rows, width, rank), dtype=torch.int64)
    for inputs, targets in data.read(torch.split(mine, batch_size) if len(mine) else ()):
        with autocast():
            output = model(inputs)
            sums["validation_loss"] += loss(output, targets).double() * len(targets)
        for name, metric in metrics.items():
            sums[name] += _sum(name, metric(output, targets), len(targets))
    totals = torch.tensor([float(value) for value in sums.values()], dtype=torch.float64)
    if group is not None:
        group.allreduce(totals, op="sum")
    return dict(zip(sums, (totals / data.rows).tolist(), strict=True))


def _sum(name: str, values: Tensor, rows: int) -> Tensor:
    if values.dim() == 0:
        return values.double() * rows
    if values.shape[0] == rows and values.numel() == rows:
        return values.double().sum()
    raise ConfigurationError(
        f"metric {name} must give one value for each of a batch's {rows} rows, or their mean, got the shape "
        f"{list(values.shape)}"
    )
