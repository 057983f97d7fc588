"""Noise of all lanes in one call: hashed from what it is for, where torch's generators would be asked one by one.

Number n of a lane's noise is number n of a stream of SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable
Pseudorandom Number Generators", OOPSLA): its generator adds a constant for each number and mixes the sum, so that any
number can be had without those before it. The stream's seed is that of the lane's epoch. Passes of the epoch, and calls
within a pass, have parts of it of their own. So a lane's noise follows from its seed, the epoch, the pass, the call and
the element: not from the other lanes, not from its place, and not from how often something was tried before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MIXES = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_OF_A_CALL = 32
"""Bits of the number of one of a call's words, each of which makes two numbers."""
_OF_A_PASS = 12
"""Bits of a call's number. What is left of 64 is for the pass: after a million of an epoch the noise repeats."""


class Noise:
    """Draws numbers for all lanes, in an epoch that has begun.

    Args:
        lanes: How many, with free places.
        device: Where they are wanted.
    """

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._keys = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._pass = self._call = 0

    def begin_epoch(self, seeds: Sequence[int]) -> None:
        """Begin an epoch, or begin it again.

        Args:
            seeds: Of each lane's epoch, from 0 to 2**63 - 1.
        """
        self._keys = torch.tensor(seeds, dtype=torch.int64).to(self._keys.device)
        self._pass = -1

    def begin_pass(self) -> None:
        """Begin the next pass of the epoch."""
        self._pass += 1
        self._call = 0

    def next_call(self) -> int:
        """Return the number of a pass's next call."""
        self._call += 1
        return self._call - 1

    def numbers(self, call: int, count: int) -> Tensor:
        """Return equally likely numbers, int32 and (lanes, count).

        Args:
            call: Its number in the pass.
            count: Of one lane, at least 1.
        """
        before = (self._pass << _OF_A_PASS) + call << _OF_A_CALL
        words = torch.arange(1, (count + 1) // 2 + 1, device=self._keys.device).mul_(_signed(_GAMMA))
        mixed = words + self._keys.add(_signed(before * _GAMMA)).unsqueeze(1)
        for shift, factor in _MIXES:
            mixed.bitwise_xor_(_shifted(mixed, shift)).mul_(_signed(factor))
        mixed.bitwise_xor_(_shifted(mixed, _LAST_SHIFT))
        return mixed.view(torch.int32)[:, :count]


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift words to the right, with zeros from the left: torch's shift of a number with a sign repeats that."""
    return (words >> bits).bitwise_and_((1 << 64 - bits) - 1)


def _signed(number: int) -> int:
    """Return the number of 64 bits with a sign that has a number's last bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
