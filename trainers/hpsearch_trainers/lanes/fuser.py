"""Train many trainers an epoch at a time: fused if the results equal those of each alone bit for bit, else alone."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.pack import Pack
from hpsearch_trainers.lanes.passes import Recorded
from hpsearch_trainers.lanes.probe import check_gradients, check_lanes, check_pack
from hpsearch_trainers.lanes.shape_key import code_key, shape_key
from hpsearch_trainers.memory import is_out_of_memory
from hpsearch_trainers.trainer import Trainer

_MOST = 256
"""Maximum number of cached probe results; the oldest are dropped."""
_MOST_RECORDED = 16
"""Number of the latest probe results whose recordings are kept."""

_results: dict[Hashable, ProbeResult] = {}


@dataclass(slots=True)
class ProbeResult:
    """The result of probing a shape and code."""

    shares: Mapping[int, float]
    """The result of `check_pack`."""
    recordings: dict[Hashable, Recorded | None]
    """Recordings from the probe, and from later packs of that shape."""


def probe_result(
    kind: Hashable,
    trainer: Trainer,
    most: int,
    recordings: dict[Hashable, Recorded | None],
    around: Callable[[], AbstractContextManager[object]],
) -> ProbeResult:
    """Return the result of `check_pack`, cached by kind if many lanes were faster.

    Args:
        kind: Shape and code of the trainer.
        trainer: The first trainer of the kind.
        most: Number of lanes of the largest pack.
        recordings: Recordings of packs of this shape, used if the cache has none.
        around: Returns the context manager of a test.

    Raises:
        NotFusible: A bit differs, or the trainers can't be fused.
    """
    key = (kind, most, _ways())
    result = _results.get(key)
    if result is None:
        with around():
            result = ProbeResult(check_pack(trainer, most, recordings), recordings)
        if result.shares.get(most, 0.0) < 1:  # otherwise the machine may only have been busy
            _results[key] = result
        while len(_results) > _MOST:
            del _results[next(iter(_results))]
        for kept_result in [*_results.values()][:-_MOST_RECORDED]:
            kept_result.recordings = {}
    return result


def _ways() -> Hashable:
    """Return the global settings that affect how torch computes."""
    precision = None
    with contextlib.suppress(RuntimeError):  # it was set through both of torch's interfaces
        precision = torch.get_float32_matmul_precision()
    return (
        (torch.get_default_dtype(), torch.get_deterministic_debug_mode(), torch.backends.mkldnn.enabled, precision),
        sys.float_info.min / 2 == 0,  # whether denormals are flushed to zero
    )


_MOST_KEYS = 64
"""Maximum number of shape keys whose recordings are kept."""
_TRIES = 2
"""Number of epochs of a single trainer as a lane before its time is compared with that alone; the first one records."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of one epoch of one trainer."""

    metrics: dict[str, float] | None
    """Result of `step()`; None if it raised."""
    error: BaseException | None = None
    """The exception, if any."""
    lanes: int = 1
    """Number of trainers that were trained together, including this one."""
    alone_because: str | None = None
    """Why it can't be a lane; None if it can, also if it was the only one of its kind."""
    seconds: float = 0.0
    """Wall time; its share if it trained with others."""


@dataclass(slots=True)
class _SingleTimes:
    """Minimum times of an epoch of a single trainer of a shape key, in seconds."""

    as_lane: float = math.inf
    alone: float = math.inf
    tries: int = 0
    """Number of epochs as a lane."""

    def wants_lane(self) -> bool:
        """Return whether to run the next epoch as a lane. Both ways are tried first, then the faster is used."""
        return self.tries < _TRIES or self.as_lane < self.alone < math.inf


@dataclass(slots=True, eq=False)
class _Recordings:
    """Recordings of packs of a shape key."""

    recorded: dict[Hashable, Recorded | None] = field(default_factory=dict)
    verified: WeakSet[Trainer] = field(default_factory=WeakSet)
    """Trainers known to compute the same as those that recorded. A pack computes with its first trainer's model."""


class Fuser:
    """Fuses trainers, which may change from epoch to epoch.

    Reports and states of a trainer equal those of its own `step()` bit for bit, so they don't depend on other trainers.
    This is tested once for each shape and code, with newly built trainers, before trainers are fused.

    Args:
        most: Maximum lanes of one pack.
        fewest: Minimum number of lanes of a pack. None measures it, because large models may not benefit: a large layer
            uses a core fully, and the data of many lanes exceed the cache.
        around: Returns the context of an epoch of one trainer alone.
        around_pack: Returns the context of an epoch of several trainers, or of a test. If it raises `NotFusible` at the
            end, each trainer is restored and trained alone.
        passing: Exceptions that aren't a trainer's own failure; they are raised and end the epoch of all trainers.
    """

    def __init__(
        self,
        most: int = 16,
        fewest: int | None = None,
        around: Callable[[Trainer], AbstractContextManager[object]] = lambda trainer: nullcontext(),
        around_pack: Callable[[], AbstractContextManager[object]] = nullcontext,
        passing: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit),
    ) -> None:
        for name, value in (("most", most), ("fewest", fewest)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be a number of lanes from 1, got {value}")
        self._most = most
        self._fewest = fewest
        self._around = around
        self._around_pack = around_pack
        self._passing = passing
        self._places: int | None = None
        """Number of places of each pack; None: its number of lanes."""
        self._at_once: Callable[[torch.device], bool] = lambda device: False
        """Returns the argument `at_once` of `Pack` for a device."""
        self._is_same: Callable[[Any, Any], bool] = same_bits
        """Compares the outputs of a lane and of its trainer alone."""
        self._kinds: dict[Trainer, Hashable] = {}
        """Shape and code of each trainer of this epoch."""
        self._probed: dict[Hashable, str | int] = {}
        """By kind: the reason why its trainers run alone, or the minimum number of lanes."""
        self._verdicts: MutableMapping[Trainer, str] = WeakKeyDictionary()
        """The reason why a trainer runs alone although others of its kind are fused."""
        self._lane_limits: dict[Hashable, int] = {}
        """Maximum number of lanes by shape key, if memory ran out with `most` lanes."""
        self._packs: dict[Trainer, tuple[Hashable, Pack]] = {}
        self._single_times = defaultdict[Hashable, _SingleTimes](_SingleTimes)
        self._recordings: dict[Hashable, _Recordings] = {}
        """Recordings by shape key, in order of last use."""

    def step(self, trainers: Sequence[Trainer]) -> list[Stepped]:
        """Train each trainer for an epoch and validate.

        An exception of a trainer does not affect the others. The trainers may be at different epochs. Trainers of the
        previous call that are missing in this call are released.

        Args:
            trainers: The trainers, without duplicates. They are fused only in a process with one torch thread.

        Returns:
            The results, in the same order.
        """
        for trainer in self._packs.keys() - set(trainers):
            self.release(trainer)
        try:
            outcomes = self._outcomes(trainers)
        finally:
            self._kinds.clear()
        return [outcomes[trainer] for trainer in trainers]

    def release(self, trainer: Trainer) -> None:
        """Separate a trainer from its pack."""
        _, pack = self._packs.pop(trainer, (None, None))
        if pack is not None:
            pack.release(trainer)

    def _outcomes(self, trainers: Sequence[Trainer]) -> dict[Trainer, Stepped]:
        by_key: dict[Hashable, list[Trainer]] = {}
        outcomes: dict[Trainer, Stepped] = {}
        for trainer in trainers:
            try:
                key = self._key(trainer)
            except NotFusible as reason:
                outcomes[trainer] = self._step_alone(trainer, str(reason))
                continue
            if Lane(trainer).can_continue():
                by_key.setdefault(key, []).append(trainer)
            else:
                outcomes[trainer] = self._step_alone(trainer)
        for key, same_key in by_key.items():
            # Adjacent lanes with optimizers of the same class can step together.
            outcomes |= self._step_together(key, sorted(same_key, key=lambda trainer: type(trainer.optimizer).__name__))
        return outcomes

    def _key(self, trainer: Trainer) -> Hashable:
        """Return a trainer's shape key, and record its kind.

        Raises:
            NotFusible: The trainer runs alone.
        """
        key = shape_key(trainer, rounded=self._places is not None)
        if reason := self._verdicts.get(trainer, ""):
            raise NotFusible(reason)
        kind = self._kinds[trainer] = key, code_key(trainer)
        outcome = self._probed.get(kind)
        if isinstance(outcome, str):
            raise NotFusible(outcome)
        return key

    def _step_together(self, key: Hashable, trainers: list[Trainer]) -> dict[Trainer, Stepped]:
        """Train the trainers of one key, in packs that fit in memory."""
        most = self._lane_limits.get(key, self._most)
        if len(trainers) > most:
            return self._step_together(key, trainers[:most]) | self._step_together(key, trainers[most:])
        began = time.perf_counter()
        try:
            if not self._should_fuse(key, trainers):
                return self._step_apart(key, trainers)
            pack, reports = self._step_pack(key, trainers)
        except self._passing:
            raise
        except BaseException as error:
            if not (self._places is None and is_out_of_memory(error)):
                return self._step_after_error(key, trainers, error)
            reports = None
        if reports is None:  # not in the handler, where the error's traceback keeps the pack's memory
            for trainer in trainers:
                self.release(trainer)
            gc.collect()  # frees reference cycles of the pack or the user
            return self._step_after_out_of_memory(key, trainers)
        if pack.confirmed_recordings:
            self._recordings_of(key).verified.update(pack.verified)
        seconds = time.perf_counter() - began
        if len(trainers) == 1:
            times = self._single_times[key]
            times.as_lane, times.tries = min(times.as_lane, seconds), times.tries + 1
        return self._results(trainers, reports, seconds)

    def _step_pack(self, key: Hashable, trainers: list[Trainer]) -> tuple[Pack, list[dict[str, float]]]:
        pack = self._pack_of(key, trainers)
        return pack, pack.step(self._around_pack)

    def _results(
        self, trainers: Sequence[Trainer], reports: Sequence[dict[str, float]], seconds: float
    ) -> dict[Trainer, Stepped]:
        """Return the results of trainers that were trained together, given the total time."""
        seconds_each = seconds / len(trainers)
        pairs = zip(trainers, reports, strict=True)
        return {trainer: Stepped(metrics, lanes=len(trainers), seconds=seconds_each) for trainer, metrics in pairs}

    def _step_after_out_of_memory(self, key: Hashable, trainers: list[Trainer]) -> dict[Trainer, Stepped]:
        """Train the trainers of a pack after memory ran out."""
        if len(trainers) == 1:
            self._single_times[key] = _SingleTimes(alone=0.0, tries=_TRIES)
            return self._step_apart(key, trainers)
        # A probe uses the maximum number of lanes, independent of the number of trainers.
        is_tried = all(self._kinds[trainer] in self._probed for trainer in trainers)
        self._lane_limits[key] = (len(trainers) if is_tried else self._lane_limits.get(key, self._most)) // 2
        return self._step_together(key, trainers)

    def _should_fuse(self, key: Hashable, trainers: list[Trainer]) -> bool:
        """Return whether to train these trainers as a pack.

        Raises:
            NotFusible: They can't be a pack.
        """
        if len(trainers) > 1 or self._fewest == 1:
            return len(trainers) >= self._min_lanes(key, trainers)
        pairs_gain = self._fewest is None and self._probed.get(self._kinds[trainers[0]]) == 2
        return pairs_gain and self._single_times[key].wants_lane()  # otherwise a single lane hardly gains

    def _step_apart(self, key: Hashable, trainers: list[Trainer]) -> dict[Trainer, Stepped]:
        stepped = {trainer: self._step_alone(trainer) for trainer in trainers}
        if len(trainers) == 1:
            times = self._single_times[key]
            times.alone = min(times.alone, stepped[trainers[0]].seconds)
        return stepped

    def _step_after_error(self, key: Hashable, trainers: list[Trainer], error: BaseException) -> dict[Trainer, Stepped]:
        """Train the trainers of a pack after an exception: those that caused it alone, the others as lanes."""
        if len(trainers) == 1:
            return {trainers[0]: self._step_alone_after_error(trainers[0], error)}
        if isinstance(error, NotFusible) and error.trainers:
            stepped = {trainer: self._step_alone_after_error(trainer, error) for trainer in error.trainers}
            remaining = [trainer for trainer in trainers if trainer not in stepped]
            return stepped | (self._step_together(key, remaining) if remaining else {})
        error.__traceback__ = None  # the traceback keeps the pack's memory
        for trainer in trainers:
            self.release(trainer)
        stepped = {}
        for trainer in trainers:  # a single lane gives the same result as in a pack
            stepped[trainer] = self._step_as_single_lane(key, trainer)
        if self._places is None and all(
            result.error is None and result.alone_because is None for result in stepped.values()
        ):
            reason = f"its lanes together raise what none does by itself, {type(error).__name__}: {error}"
            self._verdicts.update(dict.fromkeys(trainers, reason))
            return {trainer: replace(result, alone_because=reason) for trainer, result in stepped.items()}
        return stepped

    def _step_as_single_lane(self, key: Hashable, trainer: Trainer) -> Stepped:
        """Train a trainer as the only lane of a pack."""
        began = time.perf_counter()
        try:
            _, reports = self._step_pack(key, [trainer])
        except self._passing:
            raise
        except BaseException as error:
            return self._step_alone_after_error(trainer, error)
        return self._results([trainer], reports, time.perf_counter() - began)[trainer]

    def _step_alone_after_error(self, trainer: Trainer, error: BaseException) -> Stepped:
        """Train a trainer with its own `step()`, now and in later epochs, because it raised an exception as a lane."""
        if isinstance(error, NotFusible):
            reason = str(error)
            self._verdicts[trainer] = reason
            return self._step_alone(trainer, reason)
        stepped = self._step_alone(trainer)
        if stepped.error is not None or is_out_of_memory(error):
            return stepped
        reason = f"as a lane it raises what it doesn't alone, {type(error).__name__}: {error}"
        self._verdicts[trainer] = reason
        return replace(stepped, alone_because=reason)

    def _min_lanes(self, key: Hashable, trainers: list[Trainer]) -> int:
        """Return the minimum number of lanes for trainers of this key; probe the first trainer of each kind.

        Raises:
            NotFusible: The trainers of a kind can't be fused.
        """
        fewest = 1
        for kind in dict.fromkeys(self._kinds[trainer] for trainer in trainers):
            same_kind = [trainer for trainer in trainers if self._kinds[trainer] == kind]
            if kind not in self._probed:
                try:
                    self._probed[kind] = self._probe_kind(key, kind, same_kind[0])
                except NotFusible as reason:
                    self._probed[kind] = str(reason)
            outcome = self._probed[kind]
            if isinstance(outcome, str):
                raise NotFusible(outcome, same_kind)
            fewest = max(fewest, outcome)
        return fewest

    def _probe_kind(self, key: Hashable, kind: Hashable, trainer: Trainer) -> int:
        """Probe a trainer of a kind; return the minimum number of lanes.

        Raises:
            NotFusible: Trainers of this kind can't be fused.
        """
        most = self._lane_limits.get(key, self._most)
        recordings = self._recordings_of(key)
        result = probe_result(kind, trainer, most, recordings.recorded, self._around_pack)
        if not recordings.recorded:
            recordings.recorded = result.recordings
        elif result.recordings is recordings.recorded:  # recorded by a trainer with the same build
            recordings.verified.add(trainer)
        if self._fewest is not None:
            return self._fewest
        if result.shares[most] >= 1:
            raise NotFusible(f"{most} lanes took {result.shares[most]:.2g} times as long as each alone")
        slower = [size for size, share in result.shares.items() if share >= 1]
        return max(slower, default=1) + 1

    def _pack_of(self, key: Hashable, trainers: list[Trainer]) -> Pack:
        """Return the pack of exactly these trainers: their current pack or a new one."""
        current_key, current_pack = self._packs.get(trainers[0], (None, None))
        if (
            current_pack is not None
            and current_pack.trainers == trainers
            and current_key == key
            and current_pack.is_intact()
        ):
            return current_pack
        new = [trainer for trainer in trainers if not self._is_checked(trainer)]
        for trainer in trainers:
            self.release(trainer)
        at_once, recordings = self._at_once(trainers[0].device), self._recordings_of(key)
        trusted = trainers[0] in recordings.verified or not recordings.recorded
        pack = Pack(trainers, self._places, recordings.recorded, trusted=trusted, at_once=at_once)
        self._packs.update(dict.fromkeys(trainers, (key, pack)))
        if new:
            with self._around_pack():
                check_lanes(new, pack, self._is_same)
                if at_once:
                    check_gradients(new, pack)
        pack.verified = [trainers[0], *new]
        if trusted:
            recordings.verified.update(pack.verified)
        return pack

    def _is_checked(self, trainer: Trainer) -> bool:
        """Return whether the trainer's model was checked as a lane."""
        return trainer in self._packs

    def _recordings_of(self, key: Hashable) -> _Recordings:
        """Return the recordings of packs of this key. Only those of the last used keys are kept, to limit memory."""
        recordings = self._recordings[key] = self._recordings.pop(key) if key in self._recordings else _Recordings()
        while len(self._recordings) > _MOST_KEYS:
            del self._recordings[next(iter(self._recordings))]
        return recordings

    def _step_alone(self, trainer: Trainer, reason: str | None = None) -> Stepped:
        self.release(trainer)
        began = time.perf_counter()
        metrics, raised = None, None
        try:
            with self._around(trainer):
                metrics = trainer.step()
        except self._passing:
            raise
        except BaseException as error:
            raised = error
        return Stepped(metrics, raised, alone_because=reason, seconds=time.perf_counter() - began)
