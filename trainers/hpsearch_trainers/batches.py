"""From row numbers to batches on the device."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import operator
import random
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from typing import Any, ClassVar, Protocol, runtime_checkable

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
"""2**64 by the golden ratio: neighbouring numbers come to lie far apart."""
_AGAIN = 1 << 40
"""What is added to a row's number each time that it comes again in an epoch."""
_AGAIN_SEED = 0xD1342543DE82EF95
"""What is added to its seed then: its lower half counts, as torch's generator on the CPU takes 32 bits of a seed."""


class SeededRows(Dataset[Any]):
    """Another data set's rows, before each of which Python's, NumPy's and torch's generators are seeded.

    So a trial's epoch draws the same for a row on any number of workers, in loader processes or without.

    Args:
        data: A map-style data set.
        seed: Of this epoch of this trial, the same on every worker.

    Attributes:
        data: The same.
    """

    def __init__(self, data: Any, seed: int) -> None:
        self.data = data
        self._seed = seed

    def __getitem__(self, row: int) -> Any:
        """Return a row, by its number or one of `distinct_rows`; leaves the generators as the row left them."""
        number = (row + _AGAIN // 2) % _AGAIN - _AGAIN // 2
        times = (row - number) // _AGAIN
        _seed((self._seed + (number + 1) * _GOLDEN + times * _AGAIN_SEED) % 2**63)
        return self.data[number]


def distinct_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return row numbers of which none comes twice, so that a row that does draws something else each time.

    Args:
        rows: Those of an epoch, int64, from -2**39 to below 2**39.
    """
    ordered, positions = rows.sort(stable=True)
    times = torch.arange(len(rows)) - torch.searchsorted(ordered, ordered)
    return rows.index_add(0, positions, times * _AGAIN)


def seed_generators_of(owner: object, seed: int) -> None:
    """Seed the generators that are attributes of something, or of a sampler that is one."""
    numpy: Any = sys.modules.get("numpy")
    for value in getattr(owner, "__dict__", {}).values():
        if isinstance(value, torch.Generator):
            value.manual_seed(seed)
        elif isinstance(value, random.Random):
            value.seed(seed)
        elif isinstance(value, Sampler):
            seed_generators_of(value, seed)
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            value.seed(seed % 2**32)
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(seed).state


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators, and put them back afterwards."""
    with preserve_generators():
        _seed(seed)
        yield


@contextlib.contextmanager
def preserve_generators() -> Iterator[None]:
    """Put the generators back to where they stood."""
    python_state, torch_state = random.getstate(), torch.default_generator.get_state()
    numpy: Any = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        if numpy_state is not None:
            numpy.random.set_state(numpy_state)


_AHEAD = 2
"""Batches that each loader has ready before they are asked for."""


class Batches:
    """Reads batches of a data set.

    Of tensors the rows are gathered at once: that costs less than handing them over would. Of other data sets processes
    read ahead, so that the device is busy; what is random in a row doesn't depend on who reads it.

    Args:
        data: Pairs of input and target, or a DataLoader of them.
        device: Where batches go.
        loaders: Processes that read, but no more than torch has threads here; 0: this one does. None: as many as torch
            has threads for a GPU, and none on the CPU, where they would take the training's cores.

    Attributes:
        device: Where batches go.
        waited: Seconds for which the training has waited for data so far.
        tensors: Inputs and targets of all rows, on the device; None where the data set gives its rows one by one.
        rows: How many rows an epoch has.

    Raises:
        ConfigurationError: The data is no pair of tensors and no map-style data set, or its tensors have different
            lengths.
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
        """Whether a DataLoader's sampler says which rows an epoch has, and in which order."""
        return self._loader is not None and not (_shuffles_all(self._loader.sampler) and not self._loader.drop_last)

    def order(self, seed: int, epoch: int = 0) -> Tensor | None:
        """Return the row numbers of an epoch for `read`, if a DataLoader's sampler says which; else None.

        Args:
            seed: What is random in it follows from this and the epoch, so that it is the same on every worker.
            epoch: Its number, for a sampler with `set_epoch`.

        Raises:
            ConfigurationError: The sampler gives fewer than its length, or something else than whole numbers.
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
            indices: int64, 1-D; an empty one gives a batch without rows.
            seed: What is random in a row of a data set follows from it and the row's number.

        Yields:
            A pair of inputs and targets, of as many rows as there are numbers: tensors, or what the data set's rows are
            made of, with a tensor in the place of each row's tensor, array or number.

        Raises:
            ConfigurationError: A row of a data set is no pair.
        """
        if self.tensors is not None:
            for rows in indices:
                chosen = rows.to(self.device, non_blocking=True)
                yield tuple(tensor.index_select(0, chosen) for tensor in self.tensors)
            return
        rows_of = SeededRows(self._data, seed)
        source = (
            self._in_processes(rows_of, indices, seed) if self._loaders else self._in_this_process(rows_of, indices)
        )
        with closing(source) as batches:
            while True:
                began = time.perf_counter()
                batch = next(batches, None)
                self.waited += time.perf_counter() - began
                if batch is None:
                    return
                yield _to(batch, self.device)

    def replace(self, by: Callable[[Tensor], Tensor]) -> None:
        """Put other tensors into the place of those that it has copied, and nobody else knows.

        Args:
            by: Given one, an equal one.
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
                else:  # at the end
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
            generator=torch.Generator().manual_seed(seed),  # else it would draw from the one that the training does
        )
        for _ in range(empty):
            yield self._fetch(data, [])

    def _in_this_process(self, data: SeededRows, indices: Iterable[Tensor]) -> Generator[Any, None, None]:
        for rows in indices:
            yield self._fetch(data, rows.tolist())

    def _fetch(self, data: SeededRows, rows: Sequence[int]) -> Any:
        with preserve_generators():
            if not rows:
                return _map(self._collate([data[0]]), lambda tensor: tensor[:0])
            return self._collate([data[row] for row in rows])


def in_whole_batches(rows: int, batch: int) -> int:
    """Return how many rows are left under `drop_last`.

    Args:
        rows: All.
        batch: Rows of a batch, of all workers together.

    Raises:
        ConfigurationError: There is no whole batch.
    """
    if rows < batch:
        raise ConfigurationError(
            f"a DataLoader with drop_last must have the rows of at least one batch of all workers, which are {batch}, "
            f"got {rows}: take a smaller batch, or leave drop_last out"
        )
    return rows - rows % batch


def _begin_reading(worker_init_fn: Callable[[int], None] | None, number: int) -> None:
    """Begin a process that reads: what asks for its data set finds the user's."""
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.data)  # as it can't be set otherwise
    if worker_init_fn is not None:
        worker_init_fn(number)


def _has_rows_of_tensors(data: Any) -> bool:
    """Return whether a data set's rows are those of its tensors: a subclass of torch's may make others of them."""
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
    """Return whether a sampler is what a Trainer does itself: all rows, in an order of its own for each epoch."""
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
    """Refuse what is no input and target."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return data
    kinds = f" of {', '.join(type(part).__name__ for part in data[:3])}" if isinstance(data, tuple | list) else ""
    raise ConfigurationError(
        f"data must be two tensors, inputs and targets, or a map-style torch.utils.data.Dataset, got "
        f"{type(data).__name__}{kinds}"
    )


@runtime_checkable
class _Dataclass(Protocol):
    """What `dataclasses.dataclass` has made."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def _collate(rows: list[Any]) -> Any:
    """Make one batch of rows, as torch's `default_collate` does, and of dataclasses too."""
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
    """Change every tensor of a batch, and what isn't made of tensors in another way."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, PackedSequence):  # whose sizes stay on the CPU
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
    """Return a mapping of the same kind; one that can change may have more to it than its items."""
    if type(mapping) is dict:
        return items
    if not isinstance(mapping, MutableMapping):
        return type(mapping)(items)  # type: ignore[call-arg]
    result = copy.copy(mapping)
    result.update(items)
    return result


def _with_fields(instance: Any, values: dict[str, Any]) -> Any:
    """Return a copy of a dataclass's instance with other fields, frozen or not, without its `__init__`."""
    result = copy.copy(instance)
    for name, value in values.items():
        object.__setattr__(result, name, value)
    return result
