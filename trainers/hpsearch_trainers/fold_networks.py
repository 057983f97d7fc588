"""Several networks in one model, each of which trains on rows of its own; and what their outputs are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FoldNetworks", "TargetScale", "fold_loss"]


class FoldNetworks(nn.Module):
    """Networks that are alike but for their weights. What goes in are numbers of rows, (batch, networks).

    Args:
        networks: They.
        inputs: All rows, which no state holds: (rows, ...).
        channels: Of images the mean and the scale of each channel, (2, channels); None of others.
        augment: What is done to a batch in training.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        inputs: Tensor,
        channels: Tensor | None,
        augment: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self._inputs = inputs
        self._channels = None if channels is None else channels[:, :, None, None]
        self._augment = augment

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Give each network's outputs, (batch, outputs), for the rows of its column."""
        return [
            network(self._augment(self._read(own))) for network, own in zip(self.networks, rows.unbind(1), strict=True)
        ]

    @torch.no_grad()
    def predict(self, number: int, rows: Tensor, batch: int = 1024) -> Tensor:
        """Give one network's outputs for some rows, in evaluation; (rows, outputs)."""
        self.eval()
        network = self.networks[number]
        return torch.cat([network(self._read(part)) for part in torch.split(rows, batch)])

    def _read(self, rows: Tensor) -> Tensor:
        chosen = self._inputs[rows].float()
        return chosen if self._channels is None else (chosen - self._channels[0]) / self._channels[1]


class TargetScale:
    """Mean and deviation of the numbers that each network trains on, in whose terms it is trained.

    Args:
        targets: All, (rows,).
        rows: Numbers of rows, (rows of an epoch, networks).
    """

    def __init__(self, targets: Tensor, rows: Tensor) -> None:
        own = targets.double()[rows]
        self.mean = own.mean(0)
        deviation = own.std(0, correction=0)
        self.deviation = torch.where(deviation > 0, deviation, 1.0)

    def scaled(self, number: int, targets: Tensor) -> Tensor:
        """Give numbers as network `number` is trained on them."""
        return ((targets.double() - self.mean[number]) / self.deviation[number]).float()

    def in_units(self, number: int, outputs: Tensor) -> Tensor:
        """Give what network `number` said, in the targets' unit; float64."""
        return outputs.double() * self.deviation[number] + self.mean[number]


def fold_loss(
    targets: Tensor, rows: Tensor, *, classes: int | None, weighted: bool, smoothing: float, absolute: bool
) -> Callable[[list[Tensor], Tensor], Tensor]:
    """Make the loss of all networks: its value is their mean, its gradient for each network that of its own loss.

    Args:
        targets: Of all rows.
        rows: Numbers of rows that each network trains on, (rows of an epoch, networks).
        classes: How many; None where targets are numbers.
        weighted: Give each class the same weight in all, by how often it is among a network's own rows.
        smoothing: Share of a target that is dealt out to all classes (Szegedy et al., CVPR 2016, section 7).
        absolute: Of numbers take the absolute error beyond a deviation (Huber 1964), not the squared one.
    """
    single: Callable[[int, Tensor, Tensor], Tensor]
    if classes is None:
        scale = TargetScale(targets, rows)
        error = functional.smooth_l1_loss if absolute else functional.mse_loss

        def single(number: int, outputs: Tensor, own: Tensor) -> Tensor:
            return error(outputs[:, 0], scale.scaled(number, targets[own]))

    else:
        weights: list[Tensor | None] = [None] * rows.shape[1]
        if weighted:
            counts = [torch.bincount(targets[own], minlength=classes) for own in rows.unbind(1)]
            weights = [count.sum() / (classes * count.clamp(min=1)).float() for count in counts]

        def single(number: int, outputs: Tensor, own: Tensor) -> Tensor:
            return functional.cross_entropy(outputs, targets[own], weights[number], label_smoothing=smoothing)

    def loss(outputs: list[Tensor], chosen: Tensor) -> Tensor:
        losses = torch.stack(
            [single(n, one, own) for n, (one, own) in enumerate(zip(outputs, chosen.unbind(1), strict=True))]
        )
        # A mean would divide every gradient by the number of networks; the last fit, of one network, has none such.
        return losses.sum() - (losses.sum() - losses.mean()).detach()

    return loss
