"""Split a tensor into one part for each rank."""

from __future__ import annotations

from itertools import pairwise


def split(numel: int, count: int) -> list[tuple[int, int]]:
    """Split `numel` elements into `count` contiguous parts, as `torch.tensor_split` does.

    The first `numel % count` parts are one element longer than the others: `split(5, 3)` is
    `[(0, 2), (2, 4), (4, 5)]`. If there are fewer elements than parts, the last parts are empty.

    Returns:
        (start, stop) of each part.
    """
    short, longer = divmod(numel, count)
    edges = [index * short + min(index, longer) for index in range(count + 1)]
    return list(pairwise(edges))
