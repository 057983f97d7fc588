"""Trains many trainers an epoch at a time, in packs of always as many places, which may round otherwise than alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from hpsearch_trainers.lanes.algorithms import calls_are_dear, repeatable
from hpsearch_trainers.lanes.bits import about_the_same
from hpsearch_trainers.lanes.errors import DependsOnPlace, NotFusible
from hpsearch_trainers.lanes.fuser import Fuser, Stepped, shared
from hpsearch_trainers.lanes.probe import check_places
from hpsearch_trainers.lanes.shared_data import SharedData
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.trainer import Trainer

__all__ = ["RoundingFuser"]


class RoundingFuser(Fuser):
    """Fuses trainers, whichever they are from epoch to epoch, with what their number of places gives.

    What a trainer reports, and its state after each epoch, depend on the number of places, and not on which others it
    was trained with: a pack has always as many, and what is computed in those that nobody has is dropped. For each
    shape key this is tried once, on copies. Whether an epoch of a trainer is computed so or by its own `step()` follows
    from its shape, its first epoch and what it has done since: not from time, memory, the others, or when it is tried.

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
        self._verdicts: MutableMapping[Trainer, str] = WeakKeyDictionary() if verdicts is None else verdicts

    def _key(self, trainer: Trainer) -> Hashable:
        key = super()._key(trainer)
        if reason := self._verdicts.get(trainer, ""):
            raise NotFusible(reason)
        if self._at_once(trainer.device):
            self._data.share(trainer)
        return key

    def _together(self, key: Hashable, trainers: list[Trainer]) -> dict[Trainer, Stepped]:
        if len(trainers) > self._most:
            return self._together(key, trainers[: self._most]) | self._together(key, trainers[self._most :])
        began = time.perf_counter()
        try:
            with repeatable(trainers[0].device):
                self._check(key, trainers)
                told = self._packed(key, trainers).step(self._around_pack)
        except self._passing:
            raise
        except BaseException as error:
            if len(trainers) == 1:
                return {trainers[0]: self._by_itself(trainers[0], error)}
            told = None
        if told is None:  # one of them is to blame, and by itself each has what it would have had here
            for trainer in trainers:
                self.release(trainer)  # so that each is looked at anew
            return {trainer: stepped for one in trainers for trainer, stepped in self._together(key, [one]).items()}
        for trainer in trainers:
            self._verdicts[trainer] = ""
        return shared(trainers, told, time.perf_counter() - began)

    def _by_itself(self, trainer: Trainer, error: BaseException) -> Stepped:
        """Train one after its pack, in which it was the only one, raised."""
        if is_out_of_memory(error):
            self.release(trainer)
            return Stepped(None, error)  # alone there may be room, but then memory would decide what it reports
        if isinstance(error, NotFusible):
            reason = str(error)
            self._verdicts[trainer] = reason
            return self._alone(trainer, reason)
        stepped = self._alone(trainer)
        if stepped.error is not None:
            return stepped
        reason = f"as a lane it raises what it doesn't alone, {type(error).__name__}: {error}"
        self._verdicts[trainer] = reason
        return replace(stepped, alone_because=reason)

    def _is_known(self, trainer: Trainer) -> bool:
        return trainer in self._verdicts

    def _check(self, key: Hashable, trainers: list[Trainer]) -> None:
        """Try trainers of this key once.

        Raises:
            NotFusible: They aren't fused.
        """
        if key not in self._tried:
            try:
                with self._around_pack():
                    check_places(trainers[0], self._most, at_once=self._at_once(trainers[0].device))
            except DependsOnPlace as found:
                self._tried[key] = str(found)
                raise
            self._tried[key] = 1
        if isinstance(reason := self._tried[key], str):  # it was found when all of its pack came
            raise NotFusible(reason)
