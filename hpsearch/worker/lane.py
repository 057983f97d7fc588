"""A segment that runs as a lane: its attempt, its own state of the process, its checkpoint, and its object."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hpsearch.errors import Interrupted, StorageError, UnwritableError
from hpsearch.trainable import checkpoints, random_state
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.failures import failure_of
from hpsearch.trainable.packs import Parts
from hpsearch.trainable.random_state import RandomState
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import Failure, Segment
from hpsearch.worker.attempt import Attempt, LaneLog
from hpsearch.worker.job import Channel

if TYPE_CHECKING:
    from hpsearch_trainers import Trainer


@dataclass(eq=False)
class BuiltTrainer:
    """A trial's object, and the checkpoint that it corresponds to."""

    object: Any
    trial: RunningTrial
    settings: Mapping[str, Any]
    """Settings of the process that its build changed."""
    at: str | None = None
    """Absolute path of the checkpoint that the object corresponds to; None if there is none."""


class Lane:
    """A running segment."""

    trial: RunningTrial
    steps: Iterator[int]

    def __init__(
        self, assignment: Assignment, segment: Segment, channel: Channel, timeout: float | None, at_hand: Path
    ) -> None:
        self.assignment = assignment
        self.attempt = Attempt(segment, channel, timeout=timeout, ran=lambda: self.seconds)
        self.log = LaneLog(at_hand, Path(assignment.directory))
        self.standing: BuiltTrainer | None = None
        self.timeout = timeout
        self.seconds = 0.0
        """Seconds that count toward its timeout."""
        self.generators: random_state.RandomState = {}
        """State of the random generators between its turns."""
        self.settings: Mapping[str, Any] = {}
        """Settings of the process that it changed."""
        self.changed: dict[str, None] = {}
        self.stuck: dict[str, None] = {}
        self.pending_checkpoint: Parts | None = None
        """Its last checkpoint, until the end of the round."""
        self.fused = 1
        self.failure: Failure | None = None
        self._alone_because: str | None = None

    @property
    def object(self) -> Any:
        """Its trainer."""
        assert self.standing is not None, "it has begun"
        return self.standing.object

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.failure is not None or self.attempt.ended

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Count the block's time toward its timeout."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    @contextlib.contextmanager
    def at_fault(self) -> Iterator[None]:
        """Turn the block's exceptions into its failure, except those of its channel and the user's interruption."""
        try:
            yield
        except Interrupted:
            raise
        except BaseException as error:  # SystemExit is a user's mistake like any other
            if self.attempt.channel_error is not None:
                raise self.attempt.channel_error from None
            self.failure = failure_of(error)
            error.__traceback__ = None  # it references all lanes

    def forget(self) -> None:
        """Drop its trial and object, once it has ended.

        They reference the lane. This cycle would keep the object alive until Python's garbage collection.
        """
        self.standing = None
        for name in ("trial", "steps"):  # they are missing if it couldn't begin
            vars(self).pop(name, None)

    def trains_alone(self, reason: str) -> None:
        """Write the reason to its log, once."""
        if self._alone_because != reason:
            self._alone_because = reason
            self.log.add(f"hpsearch: this trial trains alone: {reason}\n")


_LARGEST_KEPT = 4 << 20
"""Largest state, in bytes, that is written together with others. Larger states gain nothing from it."""


def write_checkpoint(
    lane: Lane, size: int, directory: Path, iteration: int, state: object, random_state: RandomState | None
) -> str:
    """Write a lane's checkpoint as `checkpoints.write` does; keep the last one as bytes, for `write_pending`.

    Args:
        lane: The lane.
        size: Largest size of its state, in bytes.
        directory: The attempt's directory.
        iteration: The report that the checkpoint belongs to.
        state: Tensors and plain containers, or a path to copy, which isn't kept.
        random_state: Of the same report.

    Raises:
        CheckpointError: The state can't be read back.
        UnwritableError, StorageError: It can't be written.
    """
    is_state = not isinstance(state, (str, os.PathLike))
    if lane.attempt.ended and is_state and random_state is not None and size <= _LARGEST_KEPT:
        lane.pending_checkpoint = checkpoints.parts_of(state, random_state)
        return checkpoints.name_of(iteration)
    return checkpoints.write(directory, iteration, state, random_state)


def write_pending(lanes: Sequence[Lane], study: Path) -> None:
    """Write the pending checkpoints of lanes that have ended, those of several lanes to one file.

    If that fails, each checkpoint is written separately, and an error only fails its own lane.

    Args:
        lanes: Lanes that have ended; their pending checkpoints are cleared.
        study: The study's directory.
    """
    waiting = {}
    for lane in lanes:
        pending, lane.pending_checkpoint = lane.pending_checkpoint, None
        if pending is not None and lane.failure is None:
            assert lane.attempt.checkpoint is not None, "its trial has reported it"
            waiting[lane.attempt.checkpoint] = lane, pending
    if len(waiting) > 1:
        began = time.perf_counter()
        try:
            addresses = checkpoints.write_together(study, {path: pending for path, (_, pending) in waiting.items()})
        except (StorageError, UnwritableError, MemoryError):
            addresses = {}
        for path, address in addresses.items():
            lane, _ = waiting.pop(path)
            lane.attempt.wrote(address)
            lane.seconds += (time.perf_counter() - began) / len(addresses)
    for lane, pending in waiting.values():
        with lane.charged(), lane.at_fault():
            checkpoints.write_parts(Path(lane.assignment.directory), lane.attempt.iteration, pending)


def with_own_memory(state: Any) -> Any:
    """Return a state whose tensors don't share memory with larger ones."""
    import torch

    if isinstance(state, torch.Tensor):
        shared = state.untyped_storage().nbytes() > state.numel() * state.element_size()
        return state.detach().clone() if shared else state
    if isinstance(state, dict):
        copied = copy.copy(state)  # keeps `_metadata`, an attribute of a model's state
        copied.update((name, with_own_memory(value)) for name, value in state.items())
        return copied
    if type(state) in (list, tuple):
        return type(state)(with_own_memory(value) for value in state)
    return state


def state_bytes(trainer: Trainer) -> int:
    """Return the largest size of a trainer's state in bytes: its model, its optimizer's state and its average."""
    tensors = (*trainer.model.parameters(), *trainer.model.buffers())
    return sum(4 * tensor.numel() * tensor.element_size() for tensor in tensors)


T = TypeVar("T")


class Parked(Generic[T]):
    """Objects that trials keep for their next segment, by trial; the oldest are dropped first.

    Args:
        most: Largest number of objects.
        most_bytes: Largest total size; shared memory counts once.
    """

    def __init__(self, most: int = 64, most_bytes: int = 256 << 20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: dict[int, tuple[T, Mapping[int, int]]] = {}

    def put(self, trial: int, value: T, storages: Mapping[int, int]) -> None:
        """Keep a trial's object, in place of its earlier one.

        Args:
            trial: Its number.
            value: The object.
            storages: Bytes of each of its storages, by address.
        """
        self._entries.pop(trial, None)
        self._entries[trial] = value, storages
        while len(self._entries) > self._most or self._bytes() > self._most_bytes:
            del self._entries[next(iter(self._entries))]

    def _bytes(self) -> int:
        together: dict[int, int] = {}
        for _, storages in self._entries.values():
            together |= storages
        return sum(together.values())

    def take(self, trial: int) -> T | None:
        """Remove and return a trial's object."""
        entry = self._entries.pop(trial, None)
        return None if entry is None else entry[0]

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all objects."""
        self._entries.clear()
