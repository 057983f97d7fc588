"""A counter-based random number generator that draws noise for all lanes in one call.

Number n of a lane's noise is number n of a SplitMix64 stream (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom
Number Generators", OOPSLA). SplitMix64 adds a constant for each number and mixes the sum, so any number can be computed
without the earlier ones. The stream's seed is that of the lane's epoch. Each pass of the epoch, and each call within a
pass, has its own part of the stream. So a lane's noise depends only on the seed, the epoch, the pass, the call and the
element. It doesn't depend on other lanes, the lane's position, or earlier tries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MIXES = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_OF_A_CALL = 32
"""Bits for the index of a word within a call. A word yields two numbers."""
_OF_A_PASS = 12
"""Bits for the index of a call. The remaining 20 of 64 bits are the pass, so noise repeats after 2**20 passes."""


class Noise:
    """Draws random numbers for all lanes within an epoch.

    Args:
        lanes: Number of lanes, including free places.
        device: Device of the numbers.
    """

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._keys = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._pass = self._call = 0

    def begin_epoch(self, seeds: Sequence[int]) -> None:
        """Start or restart an epoch.

        Args:
            seeds: Seed of each lane's epoch, from 0 to 2**63 - 1.
        """
        self._keys = torch.tensor(seeds, dtype=torch.int64).to(self._keys.device)
        self._pass = -1

    def begin_pass(self) -> None:
        """Start the next pass of the epoch."""
        self._pass += 1
        self._call = 0

    def next_call(self) -> int:
        """Return the index of the next call in the pass."""
        self._call += 1
        return self._call - 1

    def numbers(self, call: int, count: int) -> Tensor:
        """Return uniformly distributed int32 numbers, (lanes, count).

        Args:
            call: Index of the call in the pass.
            count: Count of numbers per lane, at least 1.
        """
        before = (self._pass << _OF_A_PASS) + call << _OF_A_CALL
        words = torch.arange(1, (count + 1) // 2 + 1, device=self._keys.device).mul_(_signed(_GAMMA))
        mixed = words + self._keys.add(_signed(before * _GAMMA)).unsqueeze(1)
        for shift, factor in _MIXES:
            mixed.bitwise_xor_(_shifted(mixed, shift)).mul_(_signed(factor))
        mixed.bitwise_xor_(_shifted(mixed, _LAST_SHIFT))
        return mixed.view(torch.int32)[:, :count]


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift words right logically. torch's shift of signed integers is arithmetic."""
    return (words >> bits).bitwise_and_((1 << 64 - bits) - 1)


def _signed(number: int) -> int:
    """Return the low 64 bits of a number as a signed integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
