"""Warm starts: read for a new study, and compared with the stored one for a resumed study."""

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
    """Return a new study's warm start; None: there is none, or an existing study has its own.

    Args:
        given: The requested sources.
        sweep: The sweep.
        place: The study's directory, if requested.

    Raises:
        SweepError: It can't be read; or it differs from an existing study's.
        JournalError: The existing study's can't be read.
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
    """Return what a new study records of what its searcher begins with."""
    return {} if begins_with is None else begins_with.to_record()
