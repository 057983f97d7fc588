"""Whether lanes train as their trainers alone would, where their noise is another: tried with the same for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hpsearch_trainers.lanes.dropout import DROPOUT_FUNCTIONS, dropout_with
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.models import tensors_of
from hpsearch_trainers.lanes.noise import Noise
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.trainer import Trainer

__all__ = ["check_gradients"]

_ROUNDING = 1e-2
"""Of a model's largest gradient, by which two ways to compute them in single precision may differ."""


def check_gradients(trainers: Sequence[Trainer], pack: Pack) -> None:
    """Compare the loss and the gradients of a batch as lanes with those of the trainers' own models and losses.

    Alone, torch draws other noise than a pack does that is computed at once. So what drops out draws the pack's here.

    Args:
        trainers: Of the pack, which is computed at once. They stay as they are.
        pack: One that was found to be right.

    Raises:
        NotFusible: They differ.
        Exception: What a loss raises.
    """
    first = Lane(pack.trainers[0])
    rows = torch.arange(min(len(first.training[0]), first.trainer.parts.batch_size), device=first.trainer.device)
    with pack.restored():
        losses, gradients = pack.gradients(rows)
        together = {trainer: (losses[index], index) for index, trainer in enumerate(pack.trainers)}
    with pack.restored(training=True):
        for trainer in trainers:
            loss, index = together[trainer]
            ours = _flat(loss, [None if gradient is None else gradient[index] for gradient in gradients])
            if not _nearly_equal(_alone(trainer, rows, index), ours):
                raise NotFusible("its model or its loss gives other gradients as a lane than alone, from equal weights")


def _alone(trainer: Trainer, rows: Tensor, seed: int) -> Tensor:
    lane = Lane(trainer)
    trained = [tensor for tensor in tensors_of(trainer.model) if tensor.requires_grad]
    inputs, targets = (tensor.index_select(0, rows) for tensor in lane.training)
    with _SameNoise(seed, trainer.device), torch.enable_grad():
        with lane.autocast():
            loss = lane.loss(trainer.model(inputs), targets)
        gradients = torch.autograd.grad(loss, trained, allow_unused=True) if trained else ()
    return _flat(loss.detach(), gradients)


class _SameNoise(TorchFunctionMode):
    """Makes dropout functions sample what a pack samples for a lane.

    Args:
        seed: Of the lane's epoch, in its first pass.
        device: Where it is.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__()
        self._noise = Noise(1, device)
        self._noise.begin_epoch([seed])
        self._noise.begin_pass()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = dropout_with(self._noise, func) if func in DROPOUT_FUNCTIONS else func
        return call(*args, **(kwargs or {}))


def _flat(loss: Tensor, gradients: Sequence[Tensor | None]) -> Tensor:
    """Return all in a row: where there is no gradient of one, nothing, as if it were zero."""
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in (loss, *gradients) if tensor is not None])


def _nearly_equal(first: Tensor, second: Tensor) -> bool:
    """Whether losses, and gradients after them, differ by rounding alone; where one is no number, nothing is said."""
    if not bool(first.isfinite().all()):
        return True
    if first.shape != second.shape:
        return False
    largest = first[1:].abs().max().item() if len(first) > 1 else 0.0
    near = torch.allclose(first[:1], second[:1], _ROUNDING, _ROUNDING)
    return near and torch.allclose(first[1:], second[1:], 0.0, _ROUNDING * largest)
