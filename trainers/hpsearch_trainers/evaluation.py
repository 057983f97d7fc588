"""Exact metrics of a data set that is divided among workers, from sums and counts over all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.batches import Batches
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.shards import rows_of_rank


def loss_of(loss: Callable[[Any, Any], Tensor], output: Any, targets: Any) -> Tensor:
    """Return the mean loss of a batch's rows.

    Raises:
        ConfigurationError: The loss isn't a tensor with one element.
    """
    result: Any = loss(output, targets)
    if not isinstance(result, Tensor):
        raise ConfigurationError(
            f"loss must give a tensor, which is differentiated, got {type(result).__name__}: leave .item(), float() "
            "and NumPy out"
        )
    if result.dim() > 0:
        raise ConfigurationError(
            f"loss must give one number, the mean over a batch's rows, got the shape {list(result.shape)}: "
            "end it with .mean(), or reduction='mean'"
        )
    return result


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Batches,
    parts: Parts,
    group: Group | None,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> dict[str, float]:
    """Return the mean of the loss and of each metric over all rows; a collective of the group.

    Args:
        model: The model; it is set to eval mode.
        data: The whole data set on every worker. Each worker evaluates its share.
        parts: Has the loss, the metrics, and the number of rows of a batch.
        group: The workers, or None for a single one.
        autocast: Returns the context manager of the forward pass.

    Raises:
        ConfigurationError: A metric returns something else.
    """
    rank, width = (group.rank, group.size) if group is not None else (0, 1)
    model.eval()
    totals = Totals(parts, data.device)
    part = rows_of_rank(data.rows, width, rank)  # contiguous, so rows are read in order
    order = data.order(0)
    own_rows = torch.arange(part.start, part.stop) if order is None else order[part.start : part.stop]
    batches = torch.split(own_rows, parts.validation_batch_size) if len(own_rows) else ()
    for rows, (inputs, targets) in zip(batches, data.read(batches), strict=True):
        with autocast():
            output = model(inputs)
        totals.add(output, targets, len(rows), autocast)
    return totals.means(data.rows, group)


@torch.no_grad()
def measured(
    model: nn.Module, measures: Mapping[str, Callable[[nn.Module], float]], group: Group | None
) -> dict[str, float]:
    """Return the mean of each measurement of a model over the workers; a collective of the group.

    Args:
        model: The model; it is set to eval mode.
        measures: The measurements, by name; see `Parts.measures`.
        group: The workers, or None for a single one.
    """
    model.eval()
    values = {name: float(measure(model)) for name, measure in measures.items()}
    if group is None:
        return values
    sums = {name: group.allreduce(torch.tensor(value).double(), op="sum") for name, value in values.items()}
    return {name: float(total) / group.size for name, total in sums.items()}


class Totals:
    """Sums the loss and the metrics of batches.

    Args:
        parts: Has the loss and the metrics.
        device: Device of the sums.
    """

    def __init__(self, parts: Parts, device: torch.device) -> None:
        self._loss = parts.loss
        self._metrics = parts.metrics
        self._sums = torch.zeros(1 + len(parts.metrics), dtype=torch.float64, device=device)
        self._of_loss, *self._of_metrics = self._sums.unbind()

    def add(
        self,
        output: Any,
        targets: Any,
        rows: int,
        autocast: Callable[[], AbstractContextManager[Any]],
        loss: Tensor | None = None,
    ) -> None:
        """Add a batch.

        Args:
            output: The model's output.
            targets: The batch's targets.
            rows: Number of rows.
            autocast: Returns the context manager for the loss.
            loss: The mean loss over the rows, if it is already computed.

        Raises:
            ConfigurationError: A metric returns neither a value for each row nor the mean over the rows.
        """
        if loss is None:
            with autocast():
                loss = self._loss(output, targets)
        self._of_loss.add_(loss, alpha=rows)
        for (name, metric), total in zip(self._metrics.items(), self._of_metrics, strict=True):
            _add(name, metric(output, targets), rows, total)

    def means(self, rows: int, group: Group | None) -> dict[str, float]:
        """Return the means over all rows of all workers; a collective of the group.

        Args:
            rows: Number of rows of all batches on all workers.
            group: The workers, or None for a single one.
        """
        totals = self._sums.cpu()
        if group is not None:
            group.allreduce(totals, op="sum")
        return dict(zip(("validation_loss", *self._metrics), (totals / rows).tolist(), strict=True))


def _add(name: str, result: Any, rows: int, total: Tensor) -> None:
    values = torch.as_tensor(result)
    if values.dim() == 0:
        total.add_(values, alpha=rows)
    elif values.shape[0] == rows and values.numel() == rows:
        total.add_(values.sum(dtype=total.dtype))
    else:
        raise ConfigurationError(
            f"metric {name} must give one value for each of a batch's {rows} rows, or their mean, got the shape "
            f"{list(values.shape)}"
        )
