"""How a tensor is cut into one part for each rank."""

from __future__ import annotations

from itertools import pairwise


def split(numel: int, count: int) -> list[tuple[int, int]]:
    """Cut `numel` elements into `count` parts in a row, as even as `torch.tensor_split` makes them.

    The first `numel % count` parts are one element longer than the others; where there are fewer elements than parts,
    the last parts are empty: `split(5, 3)` is `[(0, 2), (2, 4), (4, 5)]`.

    Returns:
        (start, stop) of each part.
    """
    short, longer = divmod(numel, count)
    edges = [index * short + min(index, longer) for index in range(count + 1)]
    return list(pairwise(edges))
