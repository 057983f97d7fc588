"""Data that trainers have copied to a device: once for all that have copied the same.

Each trainer brings its own copy there. Sixteen of them take sixteen times the memory, and as many calls to read from.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable

from torch import Tensor

from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.trainer import Trainer

__all__ = ["SharedData"]

_MOST = 16
"""Different tensors of a shape that are compared with a new one."""


class SharedData:
    """Knows the data of the trainers that it was given, for as long as they have them."""

    def __init__(self) -> None:
        self._seen = weakref.WeakSet[Trainer]()
        self._known: dict[Hashable, list[weakref.ref[Tensor]]] = {}

    def share(self, trainer: Trainer) -> None:
        """Let a trainer have those that another one has in place of copies of its own, where both hold the same."""
        if trainer not in self._seen:
            self._seen.add(trainer)
            Lane(trainer).replace_data(self._first_of)

    def _first_of(self, copied: Tensor) -> Tensor:
        """Return the first tensor with the same numbers."""
        kind = copied.shape, copied.dtype, copied.device
        known = [one for kept in self._known.get(kind, ()) if (one := kept()) is not None]
        try:
            same = next((one for one in known if same_bits(one, copied)), None)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return copied  # there is none to compare them with
        if same is None:
            self._known[kind] = [*map(weakref.ref, known[1 - _MOST :]), weakref.ref(copied)]
        return copied if same is None else same
