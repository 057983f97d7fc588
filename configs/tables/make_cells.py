"""Makes `cells.npz`: synthetic curves of all 4,096 cells of four nodes and four operations, on six tasks.

`python configs/tables/make_cells.py` takes some seconds, and makes the same file each time.
"""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

OPERATIONS = ("none", "skip", "conv1", "conv3")
SECONDS = {"none": 0.0, "skip": 0.1, "conv1": 0.5, "conv3": 1.0}
EDGES = ("0-1", "0-2", "1-2", "0-3", "1-3", "2-3")
PATHS = ((0, 2, 5), (0, 4), (1, 5), (3,))
"""Indices of the edges on each way from the input to the output."""
TASKS, EPOCHS = 6, 9


def all_cells() -> NDArray[np.int64]:
    """Return the index of the operation on each edge [cell, edge]."""
    return np.array(list(product(range(len(OPERATIONS)), repeat=len(EDGES))))


def curves(cells: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Return accuracies in percent [cell, epoch].

    The final accuracy saturates in the strength of the paths, and pairs of edges add or take away. Cells of stronger
    operations learn more slowly, so the first epochs mislead.
    """
    rng = np.random.default_rng(seed)
    edges = np.arange(len(EDGES))
    strength = np.concatenate([np.zeros((len(EDGES), 1)), rng.uniform(0.3, 1.0, (len(EDGES), 3))], axis=1)
    of_edges = strength[edges, cells]  # [cell, edge]
    paths = np.sum([of_edges[:, path].prod(axis=1) for path in map(list, PATHS)], axis=0)
    pairs = rng.normal(0, 0.8, (len(EDGES), len(EDGES), len(OPERATIONS), len(OPERATIONS)))
    terms = np.sum([pairs[a, b, cells[:, a], cells[:, b]] for a, b in combinations(edges, 2)], axis=0)
    gained = 75 * (1 - np.exp(-2 * paths)) + np.where(paths > 0, terms, 0.0)
    rate = rng.uniform(0.4, 0.8) / (0.5 + of_edges.mean(axis=1))
    learned = 1 - np.exp(-rate[:, None] * np.arange(1, EPOCHS + 1))
    return np.clip(10 + gained[:, None] * learned + rng.normal(0, 0.2, learned.shape), 0, 100)


def main() -> None:
    """Write the archive."""
    cells = all_cells()
    accuracy = np.stack([curves(cells, seed) for seed in range(TASKS)])
    np.savez_compressed(
        Path(__file__).parent / "cells.npz",
        cell=np.array(OPERATIONS)[cells],
        task=np.array([f"cell-{task}" for task in range(TASKS)]),
        accuracy=(accuracy * 10).round().astype(np.int16),  # a test set of 1,000 images
        seconds=np.tile(1 + np.array(list(SECONDS.values()))[cells].sum(axis=1), (TASKS, 1)),
    )


if __name__ == "__main__":
    main()
