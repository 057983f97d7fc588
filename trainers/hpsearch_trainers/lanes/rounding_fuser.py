"""Trains many trainers an epoch at a time, in packs of always as many places, which may round otherwise than alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from hpsearch_trainers.lanes.algorithms import calls_are_dear, repeatable
from hpsearch_trainers.lanes.bits import about_the_same
from hpsearch_trainers.lanes.fuser import Fuser, Stepped
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.probe import check_places
from hpsearch_trainers.lanes.shared_data import SharedData
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.trainer import Trainer

__all__ = ["RoundingFuser"]


class RoundingFuser(Fuser):
    """Fuses trainers, whichever they are from epoch to epoch, with what their number of places gives.

    What a trainer reports, and its state after each epoch, depend on the number of places, and not on which others it
    was trained with: a pack has always as many, and what is computed in those that nobody has is dropped. It is tried
    once for each shape and code, with trainers that are built anew. Whether an epoch of a trainer is computed so or by
    its own `step()` follows from its shape and code, its first epoch and what it has done since: not from time, memory,
    the others, or when it is tried.

    Args:
        places: Lanes of each pack.
        around: Gives what surrounds an epoch of this trainer by itself.
        around_pack: Gives what surrounds an epoch of several together, or a try of it. Where it raises `NotFusible` at
            the end, each is as it was before, and trained by itself.
        passing: What a trainer may raise that isn't its own failure, and ends all.
        at_once: On which devices a call costs more than what it computes, so that few are made, and noise is another
            than alone: see `Pack`.
        verdicts: Of trainers that have been trained: nothing where it was as a lane, else why each runs alone. They
            gain what is found here. One that goes on from a checkpoint is trained as it was where they have its
            verdict; else it is looked at anew, which may come to something else with other numbers than at first.
    """

    def __init__(
        self,
        places: int = 16,
        around: Callable[[Trainer], AbstractContextManager[object]] = lambda trainer: nullcontext(),
        around_pack: Callable[[], AbstractContextManager[object]] = nullcontext,
        passing: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit),
        at_once: Callable[[torch.device], bool] = calls_are_dear,
        verdicts: MutableMapping[Trainer, str] | None = None,
    ) -> None:
        super().__init__(places, None, around, around_pack, passing)
        self._places, self._same, self._at_once = places, about_the_same, at_once
        self._data = SharedData()
        if verdicts is not None:
            self._verdicts = verdicts

    def _key(self, trainer: Trainer) -> Hashable:
        key = super()._key(trainer)
        if self._at_once(trainer.device):
            self._data.share(trainer)
        return key

    def _stepped(self, key: Hashable, trainers: list[Trainer]) -> tuple[Pack, list[dict[str, float]]]:
        with repeatable(trainers[0].device):
            return super()._stepped(key, trainers)

    def _fused(
        self, trainers: Sequence[Trainer], told: Sequence[dict[str, float]], seconds: float
    ) -> dict[Trainer, Stepped]:
        self._verdicts.update(dict.fromkeys(trainers, ""))
        return super()._fused(trainers, told, seconds)

    def _blamed(self, trainer: Trainer, error: BaseException) -> Stepped:
        if is_out_of_memory(error):
            self.release(trainer)
            return Stepped(None, error)  # alone there may be room, but then memory would decide what it reports
        return super()._blamed(trainer, error)

    def _fuses(self, key: Hashable, trainers: list[Trainer]) -> bool:
        return len(trainers) >= self._fewest_of(key, trainers)

    def _found(self, key: Hashable, kind: Hashable, trainer: Trainer) -> int:
        with self._around_pack():
            check_places(trainer, self._most, at_once=self._at_once(trainer.device))
        return 1

    def _is_known(self, trainer: Trainer) -> bool:
        return trainer in self._verdicts
