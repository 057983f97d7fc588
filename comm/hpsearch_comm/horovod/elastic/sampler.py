"""Which rows each rank takes, in epochs that may restart in the middle."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from hpsearch_comm.horovod.job import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides the rows of a data set among the ranks, and the remaining ones of an epoch after a failure.

    Make it part of a `TorchState`, call `record_batch` after every batch and `set_epoch` at the end of each epoch.

    Args:
        dataset: Only its length is used.
        shuffle: Whether each epoch has its own order.
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
        """Start an epoch, with no row recorded; call it at the end of the epoch before."""
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
        """Return this rank's rows; all ranks have equally many, so that some come twice where they don't divide."""
        everybodys = itertools.cycle(self.remaining_indices)
        mine = itertools.islice(everybodys, self.rank, None, self.num_replicas)
        return itertools.islice(mine, self.num_samples)

    def __len__(self) -> int:
        return self.num_samples
