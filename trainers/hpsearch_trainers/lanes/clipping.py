"""Gradients of all lanes clipped at once, each lane's to a norm of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpsearch_trainers.lanes.algorithms import on_device
from hpsearch_trainers.lanes.at_once import sums
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.optimizers import parameters_of

__all__ = ["Clipping"]

_NEVER_ZERO = 1e-6
"""What torch adds to a norm before it divides by it."""


class Clipping:
    """Does, but for rounding, what `torch.nn.utils.clip_grad_norm_` does for the optimizer's parameters of each lane.

    Args:
        lanes: Lanes that have begun an epoch.
        device: Where they are trained.
    """

    def __init__(self, lanes: Sequence[Lane], device: torch.device) -> None:
        self._lanes = len(lanes)
        norms = [lane.trainer.parts.clip_norm for lane in lanes]
        self._clips = any(norm is not None for norm in norms)
        self._norms = on_device(torch.tensor([[0.0 if norm is None else norm] for norm in norms]), device)
        of_lanes = []
        for lane, norm in zip(lanes, norms, strict=True):
            stepped = {id(one) for one in parameters_of(lane.trainer.optimizer)}
            of_lanes.append([norm is not None and id(one) in stepped for one in lane.trained])
        of_stacks = [*zip(*of_lanes, strict=True)]
        self._all = [all(of_stack) for of_stack in of_stacks]
        """Of each stack, whether all lanes' parts of it are clipped."""
        which = torch.tensor(of_stacks, dtype=torch.bool).view(len(of_stacks), self._lanes, 1)
        self._which = on_device(which, device).unbind()

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        """Scale them in place.

        Args:
            gradients: (lanes or more, ...), of each stack; None where there is none.
        """
        present = [
            (one[: self._lanes].view(self._lanes, -1), which, of_all)
            for one, which, of_all in zip(gradients, self._which, self._all, strict=True)
            if one is not None
        ]
        if not self._clips or not present:
            return
        counted = [own if of_all else torch.where(which, own, 0) for own, which, of_all in present]
        norms = sums(torch.cat(counted, 1).square_()).sqrt_().unsqueeze(1)
        scale = (self._norms / (norms + _NEVER_ZERO)).clamp_(max=1.0)
        for own, which, of_all in present:
            own.mul_(scale if of_all else torch.where(which, scale, 1.0))
