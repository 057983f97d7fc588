"""Split a tensor into one part for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

Part = tuple[int, int]
"""The first element of a part, and the first after it."""


def split(numel: int, count: int) -> list[Part]:
    """Split `numel` elements into `count` contiguous parts, as `torch.tensor_split` does.

    The first `numel % count` parts are one element longer than the others: `split(5, 3)` is
    `[(0, 2), (2, 4), (4, 5)]`. If there are fewer elements than parts, the last parts are empty.

    Returns:
        (start, stop) of each part.
    """
    short, longer = divmod(numel, count)
    edges = [index * short + min(index, longer) for index in range(count + 1)]
    return list(pairwise(edges))


def parts_of(counts: Sequence[int], width: int) -> list[Part]:
    """Return successive parts with these counts of rows, each of `width` elements."""
    return list(pairwise(stop * width for stop in accumulate(counts, initial=0)))
