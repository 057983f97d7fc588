"""Steer a study that no process runs: events are journaled here, for the next run."""

from __future__ import annotations

from hpsearch.errors import SweepError
from hpsearch.events import Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.requests import Request
from hpsearch.run.steering import answer
from hpsearch.run.study_run import storage_errors
from hpsearch.study.state import SweepState
from hpsearch.study.warm_start import stored_warm_start
from hpsearch.sweep.sweep import Sweep

__all__ = ["steer_idle"]


def steer_idle(place: StudyDirectory, request: Request, where: str) -> None:
    """Lock a study, and journal the events of a request.

    Args:
        place: The study's directory.
        request: The request, which isn't in the journal.
        where: The directory, quoted for a shell.

    Raises:
        StudyInUseError: A process runs it.
        SweepError: The request is refused; nothing is written.
        JournalError: The journal can't be read or doesn't replay.
    """
    with (
        storage_errors(place),
        place.running(request.by) as check,
        Journal.open(place.journal, guard=check) as journal,
    ):
        record = journal.study()
        sweep_state = SweepState(Sweep.from_json(record["sweep"]), past=stored_warm_start(record).past)
        try:
            for _ in sweep_state.resume(journal.entries()):
                pass
            events = answer(request, sweep_state, where)
            if isinstance(events[0], Steered) and events[0].refused:
                raise SweepError(events[0].refused)
            journal.append(events, [sweep_state.apply(event) for event in events])
        finally:
            sweep_state.close()
