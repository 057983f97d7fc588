"""How far the clocks of two hosts lie apart, so that a timeline can show their ranks side by side.

Ranks of one host share a monotonic clock; those of several hosts don't. Each round of an exchange that ends on no rank
before it began on every rank bounds the difference from both sides. With our stamps s (before) and e (after), rank 0's
S and E, and d = rank 0's clock - ours at the same instant:

    we began before rank 0 was done:   s + d < E     d < E - s
    rank 0 began before we were done:  S < e + d     d > S - e

The tightest bounds of all rounds leave an interval as wide as the quickest round; its middle is the answer. (The idea
of NTP, RFC 5905, with both directions in one exchange.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

_ROUNDS = 8


def compare_clocks(
    exchange: Callable[[Any], list[Any]], rank: int, now: Callable[[], int] = time.monotonic_ns
) -> tuple[int, int]:
    """Compare this rank's clock with that of rank 0. Every rank of the group calls it.

    Args:
        exchange: Gives each rank's value to every rank, by rank: a group's `gather_in`.
        rank: This rank.
        now: The clock.

    Returns:
        The nanoseconds to add to this rank's clock to have rank 0's; and what that showed when they began, the same
        number on every rank.
    """
    stamps: list[tuple[int, int]] = []
    for _ in range(_ROUNDS):
        begin = now()
        exchange(0)
        stamps.append((begin, now()))
    of_all = exchange(stamps)
    return offset_from(stamps, of_all[0]) if rank else 0, of_all[0][0][0]


def offset_from(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> int:
    """Return the middle of what the stamps (before, after) of common rounds leave possible, in their unit."""
    least = max(begin - our_end for (begin, _), (_, our_end) in zip(theirs, ours, strict=True))
    most = min(end - our_begin for (_, end), (our_begin, _) in zip(theirs, ours, strict=True))
    return (least + most) // 2
