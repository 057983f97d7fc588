"""Which rows each rank takes, where an epoch may be begun anew in its middle."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from hpsearch_comm.horovod.job import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides the rows of a data set among the ranks, and those that are left of an epoch after a failure.

    Make it part of a `TorchState`, call `record_batch` behind every batch and `set_epoch` at the end of each epoch.

    Args:
        dataset: Its length counts.
        shuffle: Whether each epoch has an order of its own.
        seed: Of the orders; the same on every rank.

    Attributes:
        epoch: The number of the epoch.
        processed_num: Rows of it that all ranks have recorded together.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, of which no row is recorded yet; at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Take note that each rank is done with a batch of so many rows."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Give the epoch, and how far it is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on as far as an epoch was."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the rows that are left among the job's ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """Give this rank's rows; all ranks have equally many, so that some come twice where they don't divide."""
        everybodys = itertools.cycle(self.remaining_indices)
        mine = itertools.islice(everybodys, self.rank, None, self.num_replicas)
        return itertools.islice(mine, self.num_samples)

    def __len__(self) -> int:
        return self.num_samples
