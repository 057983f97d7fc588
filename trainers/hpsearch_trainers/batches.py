"""Batches on the device, read by row number."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import operator
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    get_worker_info,
)
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.parts import Data

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio. Multiples of it modulo 2**64 are far apart for neighbouring row numbers."""
_AGAIN = 1 << 40
"""Offset added to a row's number for each earlier occurrence of the row in the epoch."""
_AGAIN_SEED = 0xD1342543DE82EF95
"""Offset added to the row's seed for each earlier occurrence. Its lower half matters: torch's CPU generator uses only
32 bits of a seed."""


class SeededRows(Dataset[Any]):
    """A data set that seeds Python's, NumPy's and torch's generators before it returns a row of another data set.

    So the random augmentation of a row doesn't depend on the number of workers or of loader processes.

    Args:
        data: A map-style data set.
        seed: Seed of this epoch of this trial, equal on every worker.

    Attributes:
        data: The argument.
    """

    def __init__(self, data: Any, seed: int) -> None:
        self.data = data
        self._seed = seed

    def __getitem__(self, row: int) -> Any:
        """Return a row by its number, or by a number of `distinct_rows`. Doesn't restore the generators."""
        number = (row + _AGAIN // 2) % _AGAIN - _AGAIN // 2
        times = (row - number) // _AGAIN
        _seed((self._seed + (number + 1) * _GOLDEN + times * _AGAIN_SEED) % 2**63)
        return self.data[number]


def distinct_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return row numbers without duplicates, so that a row that occurs twice gets another seed each time.

    Args:
        rows: Row numbers of an epoch, int64, from -2**39 to below 2**39.
    """
    ordered, positions = rows.sort(stable=True)
    times = torch.arange(len(rows)) - torch.searchsorted(ordered, ordered)
    return rows.index_add(0, positions, times * _AGAIN)


def seed_generators_of(owner: object, seed: int) -> None:
    """Seed the generators among an object's attributes, and among those of its samplers."""
    for value in getattr(owner, "__dict__", {}).values():
        if isinstance(value, torch.Generator):
            value.manual_seed(seed)
        elif isinstance(value, random.Random):
            value.seed(seed)
        elif isinstance(value, Sampler):
            seed_generators_of(value, seed)
        elif isinstance(value, np.random.RandomState):
            value.seed(seed % 2**32)
        elif isinstance(value, np.random.Generator):
            bit_generator: Any = value.bit_generator
            bit_generator.state = type(bit_generator)(seed).state


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, and restore their states afterwards."""
    with preserve_generators():
        _seed(seed)
        yield


@contextlib.contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the states of the global generators of Python, NumPy and torch afterwards."""
    python_state, numpy_state, torch_state = (
        random.getstate(),
        np.random.get_state(),
        torch.default_generator.get_state(),
    )
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.default_generator.set_state(torch_state)


_AHEAD = 2
"""Number of batches that each loader process prefetches."""


class Batches:
    """Reads batches of a data set.

    Tensors are kept on the device and indexed, which is faster than loading them in other processes. Other data sets
    are prefetched by loader processes. The randomness of a row doesn't depend on the process that reads it.

    Args:
        data: Pairs of input and target, or a DataLoader of them.
        device: The device that batches are moved to.
        loaders: Number of loader processes, at most torch's number of threads; 0: this process reads. None: torch's
            number of threads if the device is a GPU, else 0, because loaders would compete with the training for cores.

    Attributes:
        device: The device that batches are moved to.
        waited: Seconds that the training has waited for data so far.
        tensors: Inputs and targets of all rows, on the device; None if the data set returns rows one by one.
        rows: Number of rows of an epoch.

    Raises:
        ConfigurationError: The data is neither a pair of tensors nor a map-style data set, or its tensors have
            different lengths.
    """

    def __init__(self, data: Data, device: torch.device, loaders: int | None = None) -> None:
        self.waited = 0.0
        self.device = device
        most = torch.get_num_threads()
        self._loaders = min(most, loaders) if loaders is not None else most if device.type == "cuda" else 0
        self.tensors: Sequence[Tensor] | None = None
        self._loader: DataLoader[Any] | None = None
        self._collate: Callable[[list[Any]], Any] = _collate
        if isinstance(data, DataLoader):
            self._loader, data = data, data.dataset
            if loaders is None:
                self._loaders = min(most, self._loader.num_workers)
            if self._loader.collate_fn is not default_collate:
                self._collate = functools.partial(_collated_by, self._loader.collate_fn)
        self._data: Any = data
        of_tensors = _has_rows_of_tensors(data) or (self._loader is None and not isinstance(data, Dataset))
        if of_tensors and self._collate is _collate:
            pair = _pair(data.tensors if isinstance(data, TensorDataset) else data)
            self.tensors = [tensor.to(device) for tensor in pair]
            self._copied = [moved is not tensor for moved, tensor in zip(self.tensors, pair, strict=True)]
        self.rows = self._count()
        if self._loader is not None:
            self.rows = _length_of(self._loader.sampler)
            if self._loader.drop_last:
                assert self._loader.batch_size is not None
                self.rows = in_whole_batches(self.rows, self._loader.batch_size)

    @property
    def ordered(self) -> bool:
        """Whether a DataLoader's sampler determines the rows of an epoch and their order."""
        return self._loader is not None and not (_shuffles_all(self._loader.sampler) and not self._loader.drop_last)

    def order(self, seed: int, epoch: int = 0) -> Tensor | None:
        """Return the row numbers of an epoch for `read` if a DataLoader's sampler determines them, else None.

        Args:
            seed: Seed of the sampler for this epoch, equal on every worker.
            epoch: The epoch, passed to the sampler's `set_epoch` if it has this method.

        Raises:
            ConfigurationError: The sampler yields fewer rows than its length, or items that are not integers.
        """
        if not self.ordered:
            return None
        assert self._loader is not None
        sampler: Any = self._loader.sampler
        if type(sampler) is SequentialSampler:
            return torch.arange(self.rows)
        with seeded(seed):
            seed_generators_of(sampler, seed)
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
            sampled = list(itertools.islice(sampler, self.rows))
        if len(sampled) < self.rows:
            raise ConfigurationError(
                f"a sampler must give as many rows as its length says in every epoch, got {len(sampled)} of "
                f"{self.rows} from {type(sampler).__name__}"
            )
        try:
            numbers = torch.tensor(list(map(operator.index, sampled)), dtype=torch.int64)
        except TypeError:
            raise ConfigurationError(
                f"a sampler must give the numbers of rows, got {sampled[0]!r} from {type(sampler).__name__}"
            ) from None
        return numbers if self.tensors is not None else distinct_rows(numbers)

    def read(self, indices: Iterable[Tensor], seed: int = 0) -> Generator[Any, None, None]:
        """Yield the batch of each set of row numbers.

        Args:
            indices: int64, 1-D; for an empty one, a batch without rows is yielded.
            seed: The randomness of a row of a data set depends on this seed and the row's number.

        Yields:
            A pair of inputs and targets with one row for each row number. Each is a tensor, or has the structure of the
            data set's rows, with a tensor for every tensor, array or number of a row.

        Raises:
            ConfigurationError: A row of a data set is not a pair.
        """
        if self.tensors is not None:
            for rows in indices:
                chosen = rows.to(self.device, non_blocking=True)
                yield tuple(tensor.index_select(0, chosen) for tensor in self.tensors)
            return
        rows_of = SeededRows(self._data, seed)
        in_this_process = (self._fetch(rows_of, rows.tolist()) for rows in indices)
        with closing(self._in_processes(rows_of, indices, seed) if self._loaders else in_this_process) as batches:
            while True:
                began = time.perf_counter()
                batch = next(batches, None)
                self.waited += time.perf_counter() - began
                if batch is None:
                    return
                yield _to(batch, self.device)

    def replace(self, by: Callable[[Tensor], Tensor]) -> None:
        """Replace the tensors that were copied to the device. Nothing else refers to these copies.

        Args:
            by: Returns a tensor equal to its argument.
        """
        if self.tensors is not None:
            pairs = zip(self.tensors, self._copied, strict=True)
            self.tensors = [by(tensor) if copied else tensor for tensor, copied in pairs]

    def _count(self) -> int:
        if self.tensors is None:
            try:
                return len(self._data)
            except TypeError:
                raise ConfigurationError(
                    f"a data set must know its length and give any row by number, got {type(self._data).__name__}: "
                    "use a map-style data set"
                ) from None
        lengths = [len(tensor) for tensor in self.tensors]
        if len(set(lengths)) > 1:
            raise ConfigurationError(f"tensors of a data set must be equally long, got {lengths}")
        return lengths[0]

    def _in_processes(self, data: SeededRows, indices: Iterable[Tensor], seed: int) -> Generator[Any, None, None]:
        empty = 0

        loader = self._loader

        def full() -> Iterator[list[int]]:
            nonlocal empty
            for rows in indices:
                if len(rows) > 0:
                    yield rows.tolist()
                else:  # only the last batches of an epoch may be empty
                    empty += 1

        yield from DataLoader(
            data,
            batch_sampler=full(),
            collate_fn=self._collate,
            num_workers=self._loaders,
            worker_init_fn=functools.partial(_begin_reading, None if loader is None else loader.worker_init_fn),
            multiprocessing_context=None if loader is None else loader.multiprocessing_context,
            timeout=0 if loader is None else loader.timeout,
            prefetch_factor=_AHEAD if loader is None else loader.prefetch_factor or _AHEAD,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator().manual_seed(seed),  # the default generator is the training's
        )
        for _ in range(empty):
            yield self._fetch(data, [])

    def _fetch(self, data: SeededRows, rows: Sequence[int]) -> Any:
        with preserve_generators():
            if not rows:
                return _map(self._collate([data[0]]), lambda tensor: tensor[:0])
            return self._collate([data[row] for row in rows])


def in_whole_batches(rows: int, batch: int) -> int:
    """Return the number of rows that `drop_last` keeps.

    Args:
        rows: Number of all rows.
        batch: Rows of a batch over all workers.

    Raises:
        ConfigurationError: There are fewer rows than a batch has.
    """
    if rows < batch:
        raise ConfigurationError(
            f"a DataLoader with drop_last must have the rows of at least one batch of all workers, which are {batch}, "
            f"got {rows}: take a smaller batch, or leave drop_last out"
        )
    return rows - rows % batch


def _begin_reading(worker_init_fn: Callable[[int], None] | None, number: int) -> None:
    """Initialize a loader process: `get_worker_info().dataset` becomes the user's data set."""
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.data)  # WorkerInfo forbids assignment
    if worker_init_fn is not None:
        worker_init_fn(number)


def _has_rows_of_tensors(data: Any) -> bool:
    """Return whether a data set is a TensorDataset that returns its tensors' rows; a subclass may transform them."""
    return isinstance(data, TensorDataset) and all(
        getattr(type(data), name) is getattr(TensorDataset, name) for name in ("__getitem__", "__len__")
    )


def _length_of(sampler: Any) -> int:
    try:
        return len(sampler)
    except TypeError:
        raise ConfigurationError(
            f"a sampler must know its length, which says how many rows an epoch has, got {type(sampler).__name__} "
            "without __len__"
        ) from None


def _shuffles_all(sampler: Any) -> bool:
    """Return whether a sampler does the same as a Trainer: it shuffles all rows anew in each epoch."""
    return type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None


def _collated_by(collate_fn: Callable[[list[Any]], Any], rows: list[Any]) -> Any:
    batch = collate_fn(rows)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ConfigurationError(
            f"a DataLoader's collate_fn must return a pair of inputs and targets, got {type(batch).__name__}: put what "
            "the model takes first and what the loss takes second"
        )
    return batch


def _pair(data: Any) -> Sequence[Tensor]:
    """Return the data if it is a pair of tensors, input and target.

    Raises:
        ConfigurationError: It is not.
    """
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return data
    kinds = f" of {', '.join(type(part).__name__ for part in data[:3])}" if isinstance(data, tuple | list) else ""
    raise ConfigurationError(
        f"data must be two tensors, inputs and targets, or a map-style torch.utils.data.Dataset, got "
        f"{type(data).__name__}{kinds}"
    )


@runtime_checkable
class _Dataclass(Protocol):
    """An instance of a class decorated with `dataclasses.dataclass`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def _collate(rows: list[Any]) -> Any:
    """Collate rows into a batch like torch's `default_collate`, which doesn't support dataclasses."""
    first = rows[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        detail = f" of {len(first)}" if isinstance(first, tuple | list) else ""
        raise ConfigurationError(
            f"a row of a data set must be a pair of input and target, got {type(first).__name__}{detail}: put what the "
            "model takes first and what the loss takes second; each may be a dict, tuple or dataclass of tensors"
        )
    return collate(rows, collate_fn_map={**default_collate_fn_map, _Dataclass: _collate_dataclasses})


def _collate_dataclasses(rows: Sequence[Any], *, collate_fn_map: Any) -> Any:
    columns = {
        field.name: collate([getattr(row, field.name) for row in rows], collate_fn_map=collate_fn_map)
        for field in dataclasses.fields(rows[0])
    }
    return _with_fields(rows[0], columns)


def _to(batch: Any, device: torch.device) -> Any:
    def move(value: Any) -> Any:
        return value.to(device) if hasattr(value, "to") else value

    return _map(batch, lambda tensor: tensor.to(device, non_blocking=True), move)


def _map(
    batch: Any, change: Callable[[Tensor], Tensor], change_other: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Apply `change` to every tensor of a batch, and `change_other` to other values."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, PackedSequence):  # its sizes must stay on the CPU
        return change_other(batch)
    if isinstance(batch, Mapping):
        return _with_items(batch, {key: _map(value, change, change_other) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(value, change, change_other) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_map(value, change, change_other) for value in batch)
    if isinstance(batch, _Dataclass):
        names = [field.name for field in dataclasses.fields(batch)]
        return _with_fields(batch, {name: _map(getattr(batch, name), change, change_other) for name in names})
    return change_other(batch)


def _with_items(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the same class with other items. A mutable mapping is copied with its attributes."""
    if type(mapping) is dict:
        return items
    if not isinstance(mapping, MutableMapping):
        return type(mapping)(items)  # type: ignore[call-arg]
    result = copy.copy(mapping)
    result.update(items)
    return result


def _with_fields(instance: Any, values: dict[str, Any]) -> Any:
    """Return a copy of a dataclass instance with other field values; it may be frozen. `__init__` isn't called."""
    result = copy.copy(instance)
    for name, value in values.items():
        object.__setattr__(result, name, value)
    return result
