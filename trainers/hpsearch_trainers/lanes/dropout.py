"""Dropout for all lanes; each lane has its own rate and random generator.

For a trainer alone, torch draws a layer's noise from the process's generator, which is seeded for the epoch. A lane's
generator has the same seed and draws the same amount in the same order; it draws nothing if the rate is 0 or 1. If one
call draws for all lanes, the noise differs from that of the trainer alone: see `noise`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import Generators, LaneTensor, PerLane, rule
from hpsearch_trainers.lanes.noise import Noise
from hpsearch_trainers.lanes.recorder import as_one_call

DROPOUT_MODULES = (torch.nn.Dropout, torch.nn.Dropout2d)
"""Modules whose `p` may differ from lane to lane."""


_IMPOSSIBLE, _NONE, _SOME = range(3)
_MOST_RATES = 1024
"""Number of tuples of rates whose derived values are cached."""


def rate_kind(rates: PerLane) -> int:
    """Return the kind of computation for these rates. The rates themselves are read in each forward pass."""
    if not all(0 <= rate <= 1 for rate in rates):
        return _IMPOSSIBLE
    return _SOME if any(rates) else _NONE


def _drop(x: Any, p: Any, training: bool, inplace: bool, shape_of: Callable[[Tensor], Tensor]) -> Any:
    if not isinstance(x, LaneTensor):
        return NotImplemented
    rates = p if isinstance(p, PerLane) else PerLane([p] * len(x.generators))
    kind = rate_kind(rates)
    if kind == _IMPOSSIBLE:
        return NotImplemented  # torch raises the error
    if not training or x.numel() == 0:
        return x
    # Count the call for any rates, so that the next call's number doesn't depend on other lanes' rates.
    call = None if x.generators.noise is None else x.generators.noise.next_call()
    if kind == _NONE:
        return x
    if call is None:
        noise = as_one_call(_generator_noise, x.stack, shape_of, rates, x.generators)
    else:
        noise = as_one_call(_hashed_noise, x.stack, shape_of, rates, x.generators, call)
    result = LaneTensor.of_stack(x.stack * noise, x.generators)
    return x.become(result) if inplace else result


def _generator_noise(
    stack: Tensor, shape_of: Callable[[Tensor], Tensor], rates: PerLane, generators: Generators
) -> Tensor:
    """Draw the factors of a stack's elements: 0, or 1 / (1 - rate)."""
    noise = shape_of(stack)
    draw = _drawn_as_integers if _draws_doubles() else _drawn
    return draw(noise, rates, generators) * _scale(tuple(map(float, rates)), noise.dtype).view(_per_lane(noise))


@functools.lru_cache(_MOST_RATES)
def _scale(rates: Sequence[float], dtype: torch.dtype) -> Tensor:
    precision = torch.promote_types(dtype, torch.float32)  # as in torch's division
    keep_rates = torch.tensor([1 - rate if rate < 1 else 1.0 for rate in rates], dtype=precision)
    return (1 / keep_rates).to(dtype)


def _hashed_noise(
    stack: Tensor, shape_of: Callable[[Tensor], Tensor], rates: PerLane, generators: Generators, call: int
) -> Tensor:
    """Do the same as `_generator_noise`, but compute the random numbers of all lanes in one call by hashing."""
    assert generators.noise is not None
    shape = shape_of(stack).shape
    highest, scale = _thresholds(tuple(map(float, rates)), stack.dtype, stack.device)
    is_kept = generators.noise.numbers(call, math.prod(shape[1:])) <= highest
    return (is_kept * scale).view(shape)


@functools.lru_cache(_MOST_RATES)
def _thresholds(rates: Sequence[float], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the largest 32-bit number that is kept at each rate, and the factor of kept elements; both (lanes, 1)."""
    highest = [max(round((1 - rate) * 2**32) - 2**31 - 1, -(2**31)) for rate in rates]
    precision = torch.promote_types(dtype, torch.float32)
    scale = torch.tensor([1 / (1 - rate) if rate < 1 else 0.0 for rate in rates], dtype=precision).to(dtype)
    of_lanes = torch.tensor(highest, dtype=torch.int32)
    return of_lanes.unsqueeze(1).to(device), scale.unsqueeze(1).to(device)


def _drawn(noise: Tensor, rates: PerLane, generators: Generators) -> Tensor:
    for lane_noise, rate, generator in zip(noise.unbind(), rates, generators, strict=True):
        if 0 < rate < 1:
            lane_noise.bernoulli_(1 - rate, generator=generator)
        else:
            lane_noise.fill_(1 - rate)
    return noise


def _drawn_as_integers(noise: Tensor, rates: PerLane, generators: Generators) -> Tensor:
    drawn = torch.empty_like(noise, dtype=torch.int64)
    for lane_draws, rate, generator in zip(drawn.unbind(), rates, generators, strict=True):
        if 0 < rate < 1:  # otherwise the result doesn't depend on the number
            lane_draws.random_(_LEAST, None, generator=generator)
    is_kept = _below(drawn, _bounds(tuple(map(float, rates))).view(_per_lane(noise)))
    return is_kept.view(torch.uint8)  # torch multiplies uint8 three times as fast as bool


def _per_lane(stack: Tensor) -> Sequence[int]:
    return (-1, *(1 for _ in stack.shape[1:]))


_LEAST = -(2**63)
_UNIFORM = 1 << 53
"""torch's uniform numbers in [0, 1) are multiples of 1 / _UNIFORM: the low 53 of a generator's 64 bits."""


def _below(drawn: Tensor, bound: Tensor | int) -> Tensor:
    return drawn.bitwise_and_(_UNIFORM - 1) < bound


def _bound(probability: float) -> int:
    """Return the bound below which an integer draw corresponds to a uniform number below a probability."""
    return math.ceil(probability * _UNIFORM)


@functools.lru_cache(_MOST_RATES)
def _bounds(rates: Sequence[float]) -> Tensor:
    return torch.tensor([_bound(1 - rate) for rate in rates])


@functools.cache
def _draws_doubles() -> bool:
    """Test whether `bernoulli_` compares uniform doubles with its probability, one after another.

    This is so except on Intel processors, where MKL draws. The same from integers takes two thirds of the time, because
    it avoids branches, of which the processor mispredicts half.
    """
    for probability, count in ((0.9, 1), (0.3, 15), (0.5, 64), (1 / 3, 1000), (0.999, 4099)):
        generator, torch_generator = torch.Generator().manual_seed(count), torch.Generator().manual_seed(count)
        drawn = torch.empty(count, dtype=torch.int64).random_(_LEAST, None, generator=generator)
        expected = torch.empty(count).bernoulli_(probability, generator=torch_generator)
        if not torch.equal(_below(drawn, _bound(probability)), expected.bool()):
            return False
        if not torch.equal(generator.get_state(), torch_generator.get_state()):
            return False
    return True


def dropout_with(noise: Noise, func: Any) -> Callable[..., Any]:
    """Return a version of a dropout function for one lane's tensor, with the noise that the lane has in a pack.

    Args:
        noise: The noise of one lane.
        func: One of `DROPOUT_FUNCTIONS`.
    """
    shape_of = DROPOUT_FUNCTIONS[func]

    def dropped(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or x.numel() == 0 or not 0 <= p <= 1 or (shape_of is _of_channels and x.dim() != 4):
            return func(x, p, training, inplace)
        generators = Generators([], noise=noise)
        factors = _hashed_noise(x.unsqueeze(0), shape_of, PerLane([p]), generators, noise.next_call())[0]
        return x.mul_(factors) if inplace else x * factors

    return dropped


@rule(functional.dropout)
def _dropout(_: Any, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return _drop(x, p, training, inplace, torch.empty_like)


@rule(functional.dropout2d)
def _dropout2d(_: Any, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if x.dim() != 4:
        return NotImplemented
    return _drop(x, p, training, inplace, _of_channels)


def _of_channels(stack: Tensor) -> Tensor:
    return stack.new_empty((*stack.shape[:3], 1, 1))


DROPOUT_FUNCTIONS: Mapping[Any, Callable[[Tensor], Tensor]] = {
    functional.dropout: torch.empty_like,
    functional.dropout2d: _of_channels,
}
"""The dropout functions with rules; each value returns a tensor with the shape of the noise."""
