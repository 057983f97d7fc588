"""A study in which a trial was widened, went wrong, and was taken back: written to its journal, not run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpsearch.decision import Followed
from hpsearch.events import Ended, Event, Finished, Reverted, Saved, Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.run.study_run import create_study
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Resources
from hpsearch.trial import Report
from tests.hpsearch.support.lives import OPENED
from tests.hpsearch.support.scripted import sweep_of

WIDE_SWEEP = sweep_of(early_terminate=SuccessiveHalving(3), resources=Resources(max_workers_per_trial=4))

BUSY = "other trials wait for workers"
WIDENED = "nothing else can start"
CAPPED = "it went wrong on more workers"
HARM = "width 4: loss 0.9 after 0.25"


def write_wide_study(path: Path, *, ended: bool) -> StudyDirectory:
    """Three trials reach iteration 1; the best, trial 1, goes on 4 workers, is taken back, and goes on alone.

    Args:
        path: Where the study's directory appears.
        ended: Trial 1 ran to its end, and the sweep is finished; else it runs.
    """
    place = create_study(WIDE_SWEEP, path)
    sweep_state, events, followed = SweepState(WIDE_SWEEP), list[Event](), list[Followed]()

    def take(event: Event) -> None:
        followed.append(sweep_state.apply(event))
        events.append(event)

    def start(width: int, reason: str) -> None:
        event = sweep_state.next()
        assert isinstance(event, Started)
        take(replace(event, segment=replace(event.segment, width=width), reason=reason))

    take(OPENED)
    for _ in range(3):
        start(1, BUSY)
    for trial, loss in enumerate((0.5, 0.25, 0.75)):
        take(Finished(trial, 1, 1, f"c{trial}", (_report(trial, 1, loss),), False, 1.0))
    start(4, WIDENED)
    take(Saved(1, 2, 2, "wide", (_report(1, 2, 0.9),)))
    take(Reverted(1, 2, 1, HARM, 3.0))
    start(1, CAPPED)
    if ended:
        take(Finished(1, 3, 3, "c3", (_report(1, 2, 0.2), _report(1, 3, 0.125)), False, 2.0))
        take(Ended("finished"))
    with Journal.open(place.journal) as journal:
        journal.append(events, followed)
    return place


def _report(trial: int, iteration: int, loss: float) -> Report:
    return Report(trial, iteration, {"loss": loss}, 0.5)
