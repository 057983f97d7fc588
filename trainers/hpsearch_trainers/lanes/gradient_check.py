"""Whether lanes train as their trainers alone would, where their noise is another: tried with the same for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hpsearch_trainers.lanes.dropout import DROPS, dropped_by
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
        together = {trainer: (losses[place], place) for place, trainer in enumerate(pack.trainers)}
    with pack.restored(training=True):
        for trainer in trainers:
            loss, place = together[trainer]
            ours = _flat(loss, [None if one is None else one[place] for one in gradients])
            if not _about_the_same(_alone(trainer, rows, place), ours):
                raise NotFusible("its model or its loss gives other gradients as a lane than alone, from equal weights")


def _alone(trainer: Trainer, rows: Tensor, seed: int) -> Tensor:
    lane = Lane(trainer)
    trained = [one for one in tensors_of(trainer.model) if one.requires_grad]
    inputs, targets = (one.index_select(0, rows) for one in lane.training)
    with _SameNoise(seed, trainer.device), torch.enable_grad():
        with lane.autocast():
            loss = lane.loss(trainer.model(inputs), targets)
        gradients = torch.autograd.grad(loss, trained, allow_unused=True) if trained else ()
    return _flat(loss.detach(), gradients)


class _SameNoise(TorchFunctionMode):
    """Lets functions that drop out draw what a pack does of a lane.

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
        call = dropped_by(self._noise, func) if func in DROPS else func
        return call(*args, **(kwargs or {}))


def _flat(loss: Tensor, gradients: Sequence[Tensor | None]) -> Tensor:
    """Return all in a row: where there is no gradient of one, nothing, as if it were zero."""
    return torch.cat([one.detach().reshape(-1).double() for one in (loss, *gradients) if one is not None])


def _about_the_same(one: Tensor, other: Tensor) -> bool:
    """Whether losses, and gradients after them, differ by rounding alone; where one is no number, nothing is said."""
    if not bool(one.isfinite().all()):
        return True
    if one.shape != other.shape:
        return False
    largest = one[1:].abs().max().item() if len(one) > 1 else 0.0
    near = torch.allclose(one[:1], other[:1], _ROUNDING, _ROUNDING)
    return near and torch.allclose(one[1:], other[1:], 0.0, _ROUNDING * largest)
