"""A sampler that divides the rows of an epoch among the ranks, and can resume in the middle of an epoch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from hpsearch_comm.horovod.job import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides the rows of a dataset among the ranks. After a failure, it divides the remaining rows of the epoch.

    Make it part of a `TorchState`, call `record_batch` after every batch and `set_epoch` at the end of each epoch.

    Args:
        dataset: The dataset; only its length is used.
        shuffle: Whether rows are shuffled in each epoch.
        seed: Seed of the shuffles; the same on every rank.

    Attributes:
        epoch: The number of the epoch.
        processed_num: Rows of the epoch that have been recorded, summed over all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, with no rows recorded; call it at the end of the previous epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each rank has finished a batch of this many rows."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and its progress."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue an epoch from a saved state."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the remaining rows among the job's ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """Return this rank's rows. All ranks have equally many; if rows don't divide evenly, some are repeated."""
        everybodys = itertools.cycle(self.remaining_indices)
        mine = itertools.islice(everybodys, self.rank, None, self.num_replicas)
        return itertools.islice(mine, self.num_samples)

    def __len__(self) -> int:
        return self.num_samples
