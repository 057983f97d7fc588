"""Train many trainers an epoch at a time, in packs of a fixed number of lanes, equal to each alone up to rounding.

If several trainers have copied equal data to a device, one copy is shared. This saves memory and calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from hpsearch_trainers.lanes.algorithms import calls_are_expensive, deterministic_algorithms
from hpsearch_trainers.lanes.bits import nearly_equal, same_bits
from hpsearch_trainers.lanes.fuser import Fuser, Stepped
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.probe import check_places
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.trainer import Trainer

_MOST = 16
"""Maximum number of different tensors of a shape that a new one is compared with."""


class SharedData:
    """Weak references to the trainers' data on a device."""

    def __init__(self) -> None:
        self._trainers = weakref.WeakSet[Trainer]()
        self._tensors: dict[Hashable, list[weakref.ref[Tensor]]] = {}

    def share(self, trainer: Trainer) -> None:
        """Replace a trainer's tensors by equal tensors of other trainers."""
        if trainer not in self._trainers:
            self._trainers.add(trainer)
            Lane(trainer).replace_data(self._first_equal)

    def _first_equal(self, copied: Tensor) -> Tensor:
        """Return the first known tensor with the same values."""
        kind = copied.shape, copied.dtype, copied.device
        candidates = [tensor for reference in self._tensors.get(kind, ()) if (tensor := reference()) is not None]
        try:
            match = next((tensor for tensor in candidates if same_bits(tensor, copied)), None)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return copied  # no memory for the comparison
        if match is None:
            self._tensors[kind] = [*map(weakref.ref, candidates[1 - _MOST :]), weakref.ref(copied)]
        return copied if match is None else match


class RoundingFuser(Fuser):
    """Fuses trainers, which may change from epoch to epoch, in packs of a fixed number of lanes.

    Reports and states of a trainer depend on the number of lanes, not on the other trainers: unused lanes are computed
    and discarded. This is tested once for each shape and code, with newly built trainers. Whether a trainer's epoch is
    computed so or by its own `step()` depends on its shape and code, its first epoch and its history: not on time,
    memory or the others.

    Args:
        places: Lanes of each pack.
        around: Returns the context of an epoch of one trainer alone.
        around_pack: Returns the context of an epoch of several trainers, or of a test. If it raises `NotFusible` at the
            end, each trainer is restored and trained alone.
        passing: Exceptions of a trainer that aren't its own failure and end all.
        at_once: Devices on which calls cost more than what they compute, so that few are made, and noise differs from
            that of a trainer alone: see `Pack`.
        verdicts: Verdicts on trainers that have been trained: None if it was a lane, else why it runs alone. New
            verdicts are added. A trainer that continues from a checkpoint is trained as before if it has a verdict
            here; otherwise it is tested again, with a possibly different result.
    """

    def __init__(
        self,
        places: int = 16,
        around: Callable[[Trainer], AbstractContextManager[object]] = lambda trainer: nullcontext(),
        around_pack: Callable[[], AbstractContextManager[object]] = nullcontext,
        passing: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit),
        at_once: Callable[[torch.device], bool] = calls_are_expensive,
        verdicts: MutableMapping[Trainer, str] | None = None,
    ) -> None:
        super().__init__(places, None, around, around_pack, passing)
        self._places, self._is_same, self._at_once = places, nearly_equal, at_once
        self._data = SharedData()
        if verdicts is not None:
            self._verdicts = verdicts

    def _key(self, trainer: Trainer) -> Hashable:
        key = super()._key(trainer)
        if self._at_once(trainer.device):
            self._data.share(trainer)
        return key

    def _step_pack(self, key: Hashable, trainers: list[Trainer]) -> tuple[Pack, list[dict[str, float]]]:
        with deterministic_algorithms(trainers[0].device):
            return super()._step_pack(key, trainers)

    def _results(
        self, trainers: Sequence[Trainer], reports: Sequence[dict[str, float]], seconds: float
    ) -> dict[Trainer, Stepped]:
        self._verdicts.update(dict.fromkeys(trainers, ""))
        return super()._results(trainers, reports, seconds)

    def _step_alone_after_error(self, trainer: Trainer, error: BaseException) -> Stepped:
        if is_out_of_memory(error):
            self.release(trainer)
            return Stepped(None, error)  # alone memory may suffice, but then results would depend on free memory
        return super()._step_alone_after_error(trainer, error)

    def _should_fuse(self, key: Hashable, trainers: list[Trainer]) -> bool:
        return len(trainers) >= self._min_lanes(key, trainers)

    def _probe_kind(self, key: Hashable, kind: Hashable, trainer: Trainer) -> int:
        with self._around_pack():
            check_places(trainer, self._most, at_once=self._at_once(trainer.device))
        return 1

    def _is_checked(self, trainer: Trainer) -> bool:
        return trainer in self._verdicts
