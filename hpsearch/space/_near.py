"""Draws from near a value.

Of numbers: a normal around it on the unit scale of the distribution's own draws, truncated to that scale. Around one
that is believed to be good its standard deviation is that of Mallik et al., "PriorBand: Practical Hyperparameter
Optimization in the Age of Deep Learning", NeurIPS 2023.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from hpsearch.seeds import DRAW_BITS

__all__ = ["DEVIATION", "bits_near", "bits_of_mixture"]

DEVIATION = 0.25
"""Standard deviation around a value that is believed to be good."""

_PRECISION = 53
_LEAST = 2.0**-_PRECISION
"""Of the mass: what lies beyond eight deviations, where nothing is drawn."""
_STANDARD = NormalDist()


def bits_near(center: float, bits: int, deviation: float = DEVIATION) -> int:
    """Give the bits of a draw near another one.

    Args:
        center: The share, in [0, 1], that the draws go around.
        bits: Random ones; more of them give no less.
        deviation: Standard deviation of the normal, before it is truncated.
    """
    below, above = _STANDARD.cdf(-center / deviation), _STANDARD.cdf((1.0 - center) / deviation)
    left = DRAW_BITS - _PRECISION
    mass = below + math.ldexp(bits >> left, -_PRECISION) * (above - below)
    share = center + deviation * _STANDARD.inv_cdf(min(max(mass, _LEAST), 1.0 - _LEAST))
    first = min(max(int(math.ldexp(share, _PRECISION)), 0), (1 << _PRECISION) - 1)
    # The rest stays as it is: without it a range of more than 2**53 integers would have gaps.
    return (first << left) | (bits & ((1 << left) - 1))


def bits_of_mixture(weight: int, total: int, bits: int) -> int | None:
    """Give None for `weight` of `total` of all bits, and for the others bits that are random again."""
    limit = (weight << DRAW_BITS) // total
    return None if bits < limit else ((bits - limit) << DRAW_BITS) // ((1 << DRAW_BITS) - limit)
