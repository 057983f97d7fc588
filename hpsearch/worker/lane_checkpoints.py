"""Checkpoints of lanes: those of the same round go to one file, since separate files take several times as long."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.errors import StorageError, UnwritableError
from hpsearch.trainable import checkpoints
from hpsearch.trainable.random_state import RandomState
from hpsearch.worker.lane import Lane

if TYPE_CHECKING:
    from hpsearch_trainers import Trainer

__all__ = ["state_bytes", "with_own_memory", "write_checkpoint", "write_kept"]

_LARGEST = 4 << 20
"""Largest state, in bytes, that is written with others: for larger ones the time depends on the size."""


def write_checkpoint(
    lane: Lane, size: int, directory: Path, iteration: int, state: object, random_state: RandomState | None
) -> str:
    """Write a lane's checkpoint as `checkpoints.write` does; keep the last one as bytes, for `write_kept`.

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
    if lane.attempt.ended and is_state and random_state is not None and size <= _LARGEST:
        lane.kept = checkpoints.parts_of(state, random_state)
        return checkpoints.name_of(iteration)
    return checkpoints.write(directory, iteration, state, random_state)


def write_kept(lanes: Sequence[Lane], study: Path) -> None:
    """Write the kept checkpoints of lanes that have ended, those of several lanes to one file.

    If that fails each is written separately, and an error fails its lane alone.

    Args:
        lanes: Lanes that have ended; their kept checkpoints are cleared.
        study: The study's directory.
    """
    waiting = {}
    for lane in lanes:
        kept, lane.kept = lane.kept, None
        if kept is not None and lane.failure is None:
            assert lane.attempt.checkpoint is not None, "its trial has reported it"
            waiting[lane.attempt.checkpoint] = lane, kept
    if len(waiting) > 1:
        began = time.perf_counter()
        try:
            addresses = checkpoints.write_together(study, {path: kept for path, (_, kept) in waiting.items()})
        except (StorageError, UnwritableError, MemoryError):
            addresses = {}
        for path, address in addresses.items():
            lane, _ = waiting.pop(path)
            lane.attempt.wrote(address)
            lane.seconds += (time.perf_counter() - began) / len(addresses)
    for lane, kept in waiting.values():
        with lane.charged(), lane.at_fault():
            checkpoints.write_parts(Path(lane.assignment.directory), lane.attempt.iteration, kept)


def with_own_memory(state: Any) -> Any:
    """Return a state whose tensors don't share memory with larger ones."""
    import torch

    if isinstance(state, torch.Tensor):
        shared = state.untyped_storage().nbytes() > state.numel() * state.element_size()
        return state.detach().clone() if shared else state
    if isinstance(state, dict):
        own = copy.copy(state)  # with the modules' versions, an attribute of a model's state
        own.update((name, with_own_memory(value)) for name, value in state.items())
        return own
    if type(state) in (list, tuple):
        return type(state)(with_own_memory(value) for value in state)
    return state


def state_bytes(trainer: Trainer) -> int:
    """Return the largest size of a trainer's state in bytes: its model, its optimizer's state and its average."""
    tensors = (*trainer.model.parameters(), *trainer.model.buffers())
    return sum(4 * tensor.numel() * tensor.element_size() for tensor in tensors)
