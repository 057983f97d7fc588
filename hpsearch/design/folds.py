"""Which rows validate: folds, and which rows each of several networks trains on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpsearch_comm.errors import ConfigurationError

__all__ = ["assign_folds", "even_batch", "training_rows"]


def assign_folds(inputs: NDArray[np.generic], targets: NDArray[np.generic], folds: int, seed: int) -> NDArray[np.int64]:
    """Assign rows to folds, stratified by class, or by size for numbers.

    Rows with equal inputs are in the same fold: else a network would be validated on its training rows.

    Args:
        inputs: (rows, ...).
        targets: (rows,), classes or numbers.
        folds: Number of folds, at least 2.
        seed: Seed of the assignment.

    Returns:
        The number of each row's fold, (rows,).

    Raises:
        ConfigurationError: There are more folds than distinct rows.
    """
    first: dict[bytes, int] = {}
    group = np.array([first.setdefault(row.tobytes(), len(first)) for row in np.ascontiguousarray(inputs)], np.int64)
    if folds < 2:
        raise ConfigurationError(f"folds must be at least 2, got {folds}")
    if len(first) < folds:
        raise ConfigurationError(f"there must be at least {folds} different rows for {folds} folds, got {len(first)}")
    _, places = np.unique(group, return_index=True)
    chance = np.random.default_rng(seed)
    order = np.lexsort((chance.random(len(places)), targets[places]))
    dealt = np.concatenate([chance.permutation(folds) for _ in range(-(-len(places) // folds))])[: len(places)]
    fold_of_group = np.empty(len(places), np.int64)
    fold_of_group[order] = dealt
    return fold_of_group[group]


def training_rows(folds: NDArray[np.int64], validated: int, seed: int) -> Tensor:
    """Return the rows that each network trains on in an epoch.

    Network i trains on no row of fold i. If folds are unequal, networks with fewer rows see some rows twice in an
    epoch, so that all take equally many steps.

    Args:
        folds: The number of each row's fold, (rows,).
        validated: Number of networks; 0: one, which trains on all rows.
        seed: Seed of the repeated rows.

    Returns:
        Numbers of rows, int64, (rows of an epoch, networks).

    Raises:
        ConfigurationError: A network would have no rows to train on.
    """
    chance = np.random.default_rng(seed)
    if validated == 0:
        return torch.arange(len(folds))[:, None]
    own = [np.flatnonzero(folds != number) for number in range(validated)]
    if min(len(rows) for rows in own) < 1:
        raise ConfigurationError("each network needs a row to train on, got a fold that holds all rows")
    most = max(len(rows) for rows in own)
    filled = [np.concatenate([rows, chance.choice(rows, most - len(rows))]) for rows in own]
    return torch.from_numpy(np.stack([chance.permutation(rows) for rows in filled], 1))


def even_batch(rows: int, wanted: int) -> int:
    """Return a batch size near the requested one whose last batch isn't only a row or two.

    Batch normalization can't train on one row, and poorly on a few.
    """
    batch = -(-rows // max(1, round(rows / wanted)))
    while batch < rows and 0 < rows % batch < min(8, batch):
        batch += 1
    return batch
