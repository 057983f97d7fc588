"""What is random in a row of data, such as an augmentation, follows from the row alone, whoever reads it and when."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

__all__ = ["SeededRows", "generators_kept", "seeded"]

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 by the golden ratio: neighbouring numbers come to lie far apart."""


class SeededRows(Dataset[Any]):
    """Another data set's rows, before each of which Python's, NumPy's and torch's generators are seeded.

    So a trial's epoch draws the same for a row on any number of workers, in loader processes or without.

    Args:
        data: A map-style data set.
        seed: Of this epoch of this trial, the same on every worker.
    """

    def __init__(self, data: Any, seed: int) -> None:
        self._data = data
        self._seed = seed

    def __getitem__(self, row: int) -> Any:
        """Return a row; leaves the generators as the row left them."""
        _seed((self._seed + (row + 1) * _GOLDEN) % 2**63)
        return self._data[row]


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators, and put them back afterwards."""
    with generators_kept():
        _seed(seed)
        yield


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Put the generators back to where they stood."""
    python, own = random.getstate(), torch.default_generator.get_state()
    numpy: Any = sys.modules.get("numpy")
    theirs = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(own)
        if theirs is not None:
            numpy.random.set_state(theirs)
