"""The rows of a data set that each worker trains on, and their order.

Each epoch has one shuffle, divided among the workers (Goyal et al. 2017, remark 4). The order depends only on the seed
and the epoch. It is cut into global batches, and each global batch into one part for every worker. So a global batch
has the same rows for any number of workers, and every row occurs exactly once in an epoch. An epoch can resume at any
step with another number of workers.

    order of epoch 3       [ 7 2 9 | 0 5 4 | 8 1 6 | 3 ]        10 rows in global batches of 3
    worker 0 of 2            7 2     0 5     8 1     3          parts differ by one row at most
    worker 1 of 2                9       4       6   -
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from hpsearch_comm.errors import ConfigurationError


def epoch_order(seed: int, epoch: int, rows: int) -> torch.Tensor:
    """Shuffle the rows for an epoch.

    Args:
        seed: Seed of the trial; any integer.
        epoch: Index of the epoch, from 0.
        rows: Number of rows of the data set.

    Returns:
        A permutation of 0 to rows - 1, int64, of shape (rows,).
    """
    # Hash the seed, because generators with consecutive seeds have similar first numbers.
    digest = hashlib.sha256(f"epoch {epoch} of {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randperm(rows, generator=generator)


def rows_of_rank(rows: int, width: int, rank: int) -> range:
    """Return a rank's range if rows are divided evenly; the first ranks get one row more if there is a remainder."""
    base, extra = divmod(rows, width)
    start = rank * base + min(rank, extra)
    return range(start, start + base + (rank < extra))


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part of a data set.

    Raises:
        ConfigurationError: There are no rows, or more workers than a global batch has rows.
    """

    rows: int
    """Number of rows of an epoch."""
    batch: int
    """Rows of a global batch; the last batch of an epoch may be smaller."""
    seed: int
    """Seed of the order."""
    rank: int = 0
    """Rank of this worker."""
    width: int = 1
    """Number of workers."""
    order: Callable[[int], torch.Tensor] | None = None
    """Returns the row numbers of an epoch. None: all rows, shuffled."""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigurationError(f"training data must have at least one row, got {self.rows}")
        if not 0 <= self.rank < self.width <= self.batch:
            raise ConfigurationError(
                f"a global batch must have a row for each worker, and ranks go from 0 to the width less 1, got batch "
                f"{self.batch}, width {self.width}, rank {self.rank}"
            )

    @property
    def steps(self) -> int:
        """Return the number of global batches of an epoch."""
        return -(-self.rows // self.batch)

    def epoch(self, number: int, start: int = 0) -> Iterator[torch.Tensor]:
        """Yield this worker's rows of each global batch of an epoch.

        Args:
            number: Index of the epoch, from 0.
            start: Number of global batches to skip.

        Yields:
            Row numbers, int64 and 1-D. They may be empty if the last batch has fewer rows than there are workers.
        """
        for batch in torch.split(self._order(number), self.batch)[start:]:
            if self.width == 1:
                yield batch
            else:
                part = rows_of_rank(len(batch), self.width, self.rank)
                yield batch[part.start : part.stop]

    def all_parts(self, number: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield all workers' parts of an epoch, except empty ones: the index of the global batch, and the part's rows.

        Args:
            number: Index of the epoch, from 0.
        """
        for step, batch in enumerate(torch.split(self._order(number), self.batch)):
            for worker in range(min(self.width, len(batch))):
                part = rows_of_rank(len(batch), self.width, worker)
                yield step, batch[part.start : part.stop]

    def _order(self, number: int) -> torch.Tensor:
        return epoch_order(self.seed, number, self.rows) if self.order is None else self.order(number)

    def rows_of(self, step: int) -> int:
        """Return the number of rows of a step's global batch."""
        return min(self.batch, self.rows - step * self.batch)
