"""Sampling near a value.

Numbers are sampled from a truncated normal around the value, on the unit scale of the distribution. Around a prior, the
standard deviation is that of Mallik et al., "PriorBand: Practical Hyperparameter Optimization in the Age of Deep
Learning", NeurIPS 2023.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from hpsearch.seeds import DRAW_BITS

__all__ = ["DEVIATION", "bits_near", "bits_of_mixture"]

DEVIATION = 0.25
"""Standard deviation around a prior."""

_PRECISION = 53
_LEAST = 2.0**-_PRECISION
"""Smallest probability mass: more than eight deviations out, where nothing is sampled."""
_STANDARD = NormalDist()


def bits_near(center: float, bits: int, deviation: float = DEVIATION) -> int:
    """Return the random bits of a draw near `center`.

    Args:
        center: Center of the draws on the unit scale, in [0, 1].
        bits: Uniform random bits. The result grows with them.
        deviation: Standard deviation of the normal, before it is truncated.
    """
    below, above = _STANDARD.cdf(-center / deviation), _STANDARD.cdf((1.0 - center) / deviation)
    low_bits = DRAW_BITS - _PRECISION
    mass = below + math.ldexp(bits >> low_bits, -_PRECISION) * (above - below)
    share = center + deviation * _STANDARD.inv_cdf(min(max(mass, _LEAST), 1.0 - _LEAST))
    first = min(max(int(math.ldexp(share, _PRECISION)), 0), (1 << _PRECISION) - 1)
    # The low bits are kept: without them a range of more than 2**53 integers would have gaps.
    return (first << low_bits) | (bits & ((1 << low_bits) - 1))


def bits_of_mixture(weight: int, total: int, bits: int) -> int | None:
    """Return None with probability `weight / total`, otherwise new uniform random bits."""
    limit = (weight << DRAW_BITS) // total
    return None if bits < limit else ((bits - limit) << DRAW_BITS) // ((1 << DRAW_BITS) - limit)
