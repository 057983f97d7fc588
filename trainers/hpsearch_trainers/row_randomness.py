"""What is random in a row of data, such as an augmentation, follows from the row alone, whoever reads it and when."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

__all__ = ["SeededRows", "distinct_rows", "preserve_generators", "seed_generators_of", "seeded"]

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
