"""Which rows of a data set each worker trains on, in which order.

One shuffle for each epoch, divided among the workers (Goyal et al. 2017, remark 4): the order comes from the seed and
the epoch's number alone. It is cut into global batches, and each of these into a part for every worker. So a global
batch holds the same rows whatever the width; no row comes twice in an epoch, none is left out, and an epoch can be gone
on with from any of its steps at another width.

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
        seed: Any number; the trial's.
        epoch: Its number, from 0.
        rows: Of the data set.

    Returns:
        The numbers 0 to rows - 1, int64, shaped (rows,).
    """
    # Seeds that follow each other would give generators whose first numbers are alike.
    digest = hashlib.sha256(f"epoch {epoch} of {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randperm(rows, generator=generator)


def rows_of_rank(rows: int, width: int, rank: int) -> range:
    """Divide rows evenly among workers, the first of whom have one more where that leaves a rest; return one's run."""
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
    """Of an epoch."""
    batch: int
    """Rows of a global batch; an epoch's last one may be shorter."""
    seed: int
    """Of the order."""
    rank: int = 0
    """This worker."""
    width: int = 1
    """Number of workers."""
    order: Callable[[int], torch.Tensor] | None = None
    """Returns the row numbers of an epoch; None: all, shuffled."""

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
        """Return how many global batches an epoch has."""
        return -(-self.rows // self.batch)

    def epoch(self, number: int, start: int = 0) -> Iterator[torch.Tensor]:
        """Yield this worker's rows of each global batch of an epoch.

        Args:
            number: Of the epoch, from 0.
            start: Global batches that are done.

        Yields:
            Row numbers, int64 and 1-D; none where the last batch has fewer rows than there are workers.
        """
        order = self._order(number)
        for step in range(start, self.steps):
            part = self._part(step)
            first = step * self.batch
            yield order[first + part.start : first + part.stop]

    def all_parts(self, number: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each part of an epoch that has rows, of all workers: the number of its global batch, and its rows.

        Args:
            number: Of the epoch, from 0.
        """
        order = self._order(number)
        for step in range(self.steps):
            batch = order[step * self.batch : step * self.batch + self.rows_of(step)]
            for worker in range(min(self.width, len(batch))):
                part = rows_of_rank(len(batch), self.width, worker)
                yield step, batch[part.start : part.stop]

    def _order(self, number: int) -> torch.Tensor:
        return epoch_order(self.seed, number, self.rows) if self.order is None else self.order(number)

    def rows_of(self, step: int) -> int:
        """Return how many rows the global batch of a step has, over all workers."""
        return min(self.batch, self.rows - step * self.batch)

    def rows_here(self, step: int) -> int:
        """Return how many of them this worker has."""
        return len(self._part(step))

    def _part(self, step: int) -> range:
        return rows_of_rank(self.rows_of(step), self.width, self.rank)
