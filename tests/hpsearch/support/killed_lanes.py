"""A sweep whose process trains trials as lanes, and kills itself; called in child processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import hpsearch
from hpsearch.decision import Followed
from hpsearch.events import Event
from hpsearch.journal.journal import Journal
from hpsearch.trainable import checkpoints
from hpsearch.trainable.packs import Parts
from tests.hpsearch.support.lane_sweeps import search


def begin(study: str, lanes: int) -> None:
    """Run the sweep, or go on with it."""
    torch.set_num_threads(1)
    search(
        Path(study), ("", "step"), resources={"trials_per_worker": lanes}, early_terminate=hpsearch.Hyperband(9, eta=3)
    )


def begin_and_die_after_event(study: str, lanes: int, number: int) -> None:
    """Be killed by SIGKILL where the journal holds so many events, before anything follows from the last of them."""
    die_after_event(number)
    begin(study, lanes)


def die_after_event(number: int) -> None:
    """Let what this process runs from now on end so."""
    append = Journal.append

    def append_and_die(
        journal: Journal, events: Sequence[Event], followed: Sequence[Followed], when: float
    ) -> list[tuple[int, float]]:
        (written,) = journal._connection.execute("SELECT count(*) FROM events").fetchone()
        places = append(journal, events, followed, when)
        if written + len(events) >= number:
            _die()
        return places

    Journal.append = append_and_die  # type: ignore[method-assign, assignment]


def begin_and_die_after_pack(study: str, lanes: int, number: int) -> None:
    """Be killed by SIGKILL where so many packs have been written, before anybody hears of the last of them."""
    write, written = checkpoints.write_pack, []  # type: ignore[attr-defined]

    def write_and_die(pack: Path, parts: Mapping[str, Parts]) -> None:
        write(pack, parts)
        written.append(pack)
        if len(written) == number:
            _die()

    setattr(checkpoints, "write_pack", write_and_die)  # noqa: B010 (it is none of what the module shows)
    begin(study, lanes)


def _die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
