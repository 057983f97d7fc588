"""The offset between the clocks of two hosts, which puts the ranks of a trace on one time axis.

Ranks on one host share a monotonic clock; ranks on different hosts don't. An exchange ends on no rank before it has
begun on every rank. So each round of an exchange bounds the offset from both sides. With our timestamps s (before) and
e (after), rank 0's S and E, and d = rank 0's clock - ours at the same instant:

    we began before rank 0 was done:   s + d < E     d < E - s
    rank 0 began before we were done:  S < e + d     d > S - e

Fast rounds give tight bounds. The middle of the interval that all rounds leave is the estimate. (This is the idea of
NTP, RFC 5905, with both directions in one exchange.)
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
        exchange: A function that returns the values of all ranks, by rank, such as a group's `gather_in`.
        rank: This rank.
        now: The clock, in nanoseconds.

    Returns:
        The nanoseconds to add to this rank's clock to get rank 0's clock; and the start of the comparison on rank 0's
        clock, the same number on every rank.
    """
    stamps: list[tuple[int, int]] = []
    for _ in range(_ROUNDS):
        begin = now()
        exchange(0)
        stamps.append((begin, now()))
    of_all = exchange(stamps)
    return offset_from(stamps, of_all[0]) if rank else 0, of_all[0][0][0]


def offset_from(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> int:
    """Return the middle of the interval of possible offsets, from (before, after) timestamps of common rounds."""
    least = max(begin - our_end for (begin, _), (_, our_end) in zip(theirs, ours, strict=True))
    most = min(end - our_begin for (_, end), (our_begin, _) in zip(theirs, ours, strict=True))
    return (least + most) // 2
