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

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, PerLane, rule
from hpsearch_trainers.lanes.recorder import as_one_call

__all__ = ["RATED", "way_of"]

RATED = (torch.nn.Dropout, torch.nn.Dropout2d)
"""Modules whose `p` may differ from lane to lane."""


_IMPOSSIBLE, _NONE, _SOME = range(3)


def way_of(rates: PerLane) -> int:
    """Give what decides how a layer with these rates is computed; all else of them is read when it is."""
    if not all(0 <= rate <= 1 for rate in rates):
        return _IMPOSSIBLE
    return _SOME if any(rates) else _NONE


def _dropped(x: Any, p: Any, training: bool, inplace: bool, shape_of: Callable[[Tensor], Tensor]) -> Any:
    if not isinstance(x, LaneTensor):
        return NotImplemented
    rates = p if isinstance(p, PerLane) else PerLane([p] * len(x.generators))
    way = way_of(rates)
    if way == _IMPOSSIBLE:
        return NotImplemented  # torch says so
    if not training or way == _NONE or x.numel() == 0:
        return x
    noise = as_one_call(_noise, x.stack, shape_of, rates, x.generators)
    made = LaneTensor.of_stack(x.stack * noise, x.generators)
    return x.become(made) if inplace else made


def _noise(stack: Tensor, shape_of: Callable[[Tensor], Tensor], rates: PerLane, generators: Generators) -> Tensor:
    """Draw by what the stack is multiplied: 0, or what keeps the mean."""
    noise = shape_of(stack)
    for part, rate, generator in zip(noise.unbind(), rates, generators, strict=True):
        if 0 < rate < 1:
            part.bernoulli_(1 - rate, generator=generator)
        else:
            part.fill_(1 - rate)
    kept = torch.tensor([1 - rate if rate < 1 else 1.0 for rate in rates], dtype=noise.dtype)
    return noise.div_(kept.view(-1, *(1 for _ in noise.shape[1:])))


@rule(functional.dropout)
def _dropout(_: Any, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return _dropped(x, p, training, inplace, torch.empty_like)


@rule(functional.dropout2d)
def _dropout2d(_: Any, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if x.dim() != 4:
        return NotImplemented
    return _dropped(x, p, training, inplace, _of_channels)


def _of_channels(stack: Tensor) -> Tensor:
    return stack.new_empty((*stack.shape[:3], 1, 1))
