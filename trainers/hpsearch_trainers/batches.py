"""From row numbers to batches on the device, read ahead of the training."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.parts import Data

__all__ = ["Batches"]

_AHEAD = 2
"""Batches that are ready before they are asked for."""


class Batches:
    """Reads batches of a data set.

    Of tensors the rows are gathered in this thread: that costs less than handing them over would. Of other data sets a
    thread reads ahead, or processes do.

    Args:
        data: Pairs of input and target.
        device: Where batches go.
        loaders: Processes that read, but no more than torch has threads here; 0 for a thread.

    Attributes:
        device: Where batches go.
        waited: Seconds for which the training has waited for data so far.

    Raises:
        ConfigurationError: The data has no length, or its tensors have different ones.
    """

    def __init__(self, data: Data, device: torch.device, loaders: int = 0) -> None:
        self.waited = 0.0
        self.device = device
        self._loaders = loaders
        self._tensors: Sequence[Tensor] | None = None
        self._data: Any = data
        if isinstance(data, TensorDataset):
            self._tensors = [tensor.to(device) for tensor in data.tensors]
        elif not isinstance(data, Dataset):
            self._tensors = [tensor.to(device) for tensor in data]
        self.rows = self._count()

    def read(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        """Give the batch of each set of row numbers.

        Args:
            indices: int64, 1-D; an empty one gives a batch without rows.

        Yields:
            A pair of input and target, or whatever the data set's rows are made of.
        """
        if self._tensors is not None:
            for rows in indices:
                chosen = rows.to(self.device, non_blocking=True)
                yield tuple(tensor.index_select(0, chosen) for tensor in self._tensors)
            return
        source = self._in_processes(indices) if self._loaders else _ahead(self._fetch, indices)
        with closing(source) as batches:
            while True:
                began = time.perf_counter()
                batch = next(batches, None)
                self.waited += time.perf_counter() - began
                if batch is None:
                    return
                yield _to(batch, self.device)

    def _count(self) -> int:
        if self._tensors is None:
            try:
                return len(self._data)
            except TypeError:
                raise ConfigurationError(
                    f"a data set must know its length and give any row by number, got {type(self._data).__name__}: "
                    "use a map-style data set"
                ) from None
        lengths = [len(tensor) for tensor in self._tensors]
        if not lengths or len(set(lengths)) > 1:
            raise ConfigurationError(f"tensors of a data set must be equally long, got {lengths or 'none'}")
        return lengths[0]

    def _fetch(self, rows: Tensor) -> Any:
        if len(rows) == 0:
            return _slice(default_collate([self._data[0]]))
        return default_collate([self._data[row] for row in rows.tolist()])

    def _in_processes(self, indices: Iterable[Tensor]) -> Generator[Any, None, None]:
        chosen = [rows.tolist() for rows in indices]
        full = [rows for rows in chosen if rows]
        yield from DataLoader(
            self._data,
            batch_sampler=full,
            num_workers=min(self._loaders, torch.get_num_threads()),
            prefetch_factor=_AHEAD,
            pin_memory=self.device.type == "cuda",
        )
        for _ in chosen[len(full) :]:
            yield self._fetch(torch.empty(0, dtype=torch.int64))


def _ahead(fetch: Callable[[Tensor], Any], indices: Iterable[Tensor]) -> Generator[Any, None, None]:
    """Fetch in a thread, some batches ahead; what it raises is raised here."""
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def work() -> None:
        try:
            for rows in indices:
                ready.put((fetch(rows), None))
                if stopped.is_set():
                    return
            ready.put((None, None))
        except BaseException as error:
            ready.put((None, error))

    thread = threading.Thread(target=work, name="hpsearch-batches", daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                raise error
            if batch is None:
                return
            yield batch
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # room for what the thread is about to put
                ready.get_nowait()
        thread.join()


def _to(batch: Any, device: torch.device) -> Any:
    return _map(batch, lambda tensor: tensor.to(device, non_blocking=True))


def _slice(batch: Any) -> Any:
    return _map(batch, lambda tensor: tensor[:0])


def _map(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor of a batch."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: _map(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_map(value, change) for value in batch)
    return batch
