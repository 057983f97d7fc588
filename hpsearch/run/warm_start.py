"""What a run is asked to begin with: read for a new study, held against what it began with for one that goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpsearch.errors import SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.study.warm_start import WarmStart, stored_warm_start
from hpsearch.sweep.sweep import Sweep
from hpsearch.warm_start.read import Given, read_warm_start, source_name

__all__ = ["recorded", "warm_start_of"]


def warm_start_of(given: Sequence[Given], sweep: Sweep, place: StudyDirectory | None) -> WarmStart | None:
    """Give what a new study's searcher begins with; None: nothing, or the study is there and has its own.

    Args:
        given: What the user asks for.
        sweep: What will be run.
        place: The study's directory, where one is named.

    Raises:
        SweepError: It can't be had; or the study that is there began with something else.
        JournalError: What it began with can't be read.
    """
    if not given:
        return None
    if place is None or not place.exists():
        return read_warm_start(given, sweep)
    with Journal.read(place.journal) as journal:
        began = stored_warm_start(journal.study()).sources
    if (asked := tuple(map(source_name, given))) != began:
        raise SweepError(
            f"--from {', '.join(asked)}: expected what the study in {place.path} began with, which is "
            f"{', '.join(began) or 'nothing'}: what a search begins with can't change. Leave --from out to go on, or "
            "name another directory"
        )
    return None


def recorded(begins_with: WarmStart | None) -> Mapping[str, Any]:
    """Give what a new study records of what its searcher begins with."""
    return {} if begins_with is None else begins_with.to_record()
