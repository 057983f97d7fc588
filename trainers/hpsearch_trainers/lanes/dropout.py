"""Dropout of all lanes, each with a rate and a random generator of its own.

Alone, torch draws a layer's noise from the process's generator, which an epoch has seeded. A lane's generator is seeded
alike and draws as much in the same order: nothing where a rate is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, PerLane, rule

__all__ = ["RATED"]

RATED = (torch.nn.Dropout, torch.nn.Dropout2d)
"""Modules whose `p` may differ from lane to lane."""


def _dropped(x: Any, p: Any, training: bool, inplace: bool, shape_of: Callable[[Tensor], Tensor]) -> Any:
    if not isinstance(x, LaneTensor):
        return NotImplemented
    rates = p if isinstance(p, PerLane) else PerLane([p] * len(x.generators))
    if not all(0 <= rate <= 1 for rate in rates):
        return NotImplemented  # torch says so
    if not training or not any(rates) or x.numel() == 0:
        return x
    noise = shape_of(x.stack)
    for part, rate, generator in zip(noise.unbind(), rates, x.generators, strict=True):
        if 0 < rate < 1:
            part.bernoulli_(1 - rate, generator=generator)
        else:
            part.fill_(1 - rate)
    kept = torch.tensor([1 - rate if rate < 1 else 1.0 for rate in rates], dtype=noise.dtype)
    noise.div_(kept.view(-1, *(1 for _ in noise.shape[1:])))
    made = LaneTensor.of_stack(x.stack * noise, x.generators)
    return x.become(made) if inplace else made


@rule(functional.dropout)
def _dropout(_: Any, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return _dropped(x, p, training, inplace, torch.empty_like)


@rule(functional.dropout2d)
def _dropout2d(_: Any, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if x.dim() != 4:
        return NotImplemented
    return _dropped(x, p, training, inplace, lambda stack: stack.new_empty((*stack.shape[:3], 1, 1)))
