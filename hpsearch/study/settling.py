"""Leave a study's files as whoever comes next finds them best, when a run has ended."""

from __future__ import annotations

import contextlib

from hpsearch.errors import CheckpointError, StorageError, UnwritableError
from hpsearch.study.directory import StudyDirectory
from hpsearch.study.flushing import flush
from hpsearch.study.state import StudyState
from hpsearch.study.trial_records import TERMINAL, owner_of
from hpsearch.trainable.checkpoints import write_out

__all__ = ["settle"]


def settle(place: StudyDirectory, study_state: StudyState, *, durable: bool = False) -> None:
    """Write out the checkpoints that stay, and delete those that nothing needs, with the packs that held them.

    Those stay that the best trials show, and those of trials that have ended. A trial that goes on leaves its own soon:
    it is read from its pack. One that can't be written out now may be later, where it is asked for.

    Args:
        place: The study's directory.
        study_state: How its sweep stands.
        durable: Let what was written out survive the loss of power before the packs are deleted.
    """
    needed = study_state.checkpoints()
    staying = {address for address in needed if study_state.record(owner_of(address)).state in TERMINAL}
    staying.update(row.address for row in study_state.leaders() if row.address is not None)
    for address in staying:
        with contextlib.suppress(CheckpointError, StorageError, UnwritableError):
            write_out(place.path / address)
    if durable:
        flush(place.path, staying)
    place.remove_unnamed(needed)
