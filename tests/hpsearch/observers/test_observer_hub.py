from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpsearch.decision import Decision
from hpsearch.events import NO_MEMORY, Failed, Finished, Lost, Started
from hpsearch.objective import Metric, Objective
from hpsearch.observers.base import Observer, Record
from hpsearch.observers.display import Display, Snapshot
from hpsearch.observers.observer_hub import ObserverHub
from hpsearch.observers.thread import ObserverThread
from hpsearch.schedulers.base import RungView
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Resources
from hpsearch.task import Workers
from hpsearch.trial import Failure, Report
from tests.hpsearch.support.lives import OPENED
from tests.hpsearch.support.scripted import sweep_of

WORKERS = Workers(2, 1, 2)


class Screen(Display):
    """A display that keeps what it was to show."""

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []
        self.notes: list[str] = []
        self.closed = 0

    def show(self, snapshot: Snapshot) -> None:
        self.shown.append(snapshot)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        self.closed += 1


class Scribe(Observer):
    def __init__(self) -> None:
        self.told: list[object] = []

    def observe(self, record: Record) -> None:
        self.told.append(record)

    def report(self, reports: Sequence[Report]) -> None:
        self.told.append(tuple(reports))

    def rungs(self, rungs: Sequence[RungView]) -> None:
        self.told.append("rungs")

    def close(self) -> None:
        self.told.append("closed")


def started(sweep_state: SweepState) -> Started:
    event = sweep_state.next()
    assert isinstance(event, Started)
    sweep_state.apply(event)
    return event


def test_the_screen_shows_where_the_course_stands():
    sweep = sweep_of(early_terminate=None, max_iter=4, run_cap=3)
    sweep_state, screen = SweepState(sweep), Screen()
    watching = ObserverHub(sweep, [], screen)
    sweep_state.apply(OPENED)
    started(sweep_state)
    watching.look(sweep_state, WORKERS, 0.0)
    reports = tuple(Report(0, i, {"loss": 1 / i}, 0.1) for i in range(1, 5))
    sweep_state.apply(Finished(0, 1, 4, None, reports, False, 1.0))
    started(sweep_state)
    watching.look(sweep_state, WORKERS, 10.0)
    first, second = screen.shown
    assert (first.iterations, first.remaining, first.leaders) == (0, None, [])
    assert (second.name, second.objective, second.workers) == ("s", Objective(Metric("loss", "minimize")), WORKERS)
    assert (second.iterations, second.total, second.elapsed) == (4, (3, 12), 10.0)
    assert [(row.number, row.value) for row in second.leaders] == [(0, 0.25)]
    assert second.remaining is None  # one trial says nothing of the others
    watching.close()
    assert (len(screen.shown), screen.closed) == (2, 1)


def test_the_screen_shows_the_time_left_once_enough_trials_have_told_what_they_take():
    sweep = sweep_of(early_terminate=None, max_iter=4, run_cap=12)
    sweep_state, screen = SweepState(sweep), Screen()
    watching = ObserverHub(sweep, [], screen)
    sweep_state.apply(OPENED)
    for trial in range(4):
        watching.observe(Record(2 * trial + 1, 0.0, started(sweep_state)))
        reports = tuple(Report(trial, i, {"loss": 1 / i}, 2.0) for i in range(1, 5))
        event = Finished(trial, 1, 4, None, reports, False, 8.0)
        sweep_state.apply(event)
        watching.observe(Record(2 * trial + 2, 0.0, event))
        watching.look(sweep_state, Workers(1, 1, 1), 8.0 * (trial + 1))
    assert screen.shown[0].remaining is None
    assert screen.shown[-1].remaining == pytest.approx(8 * 8.0)
    watching.close()


def test_the_screen_shows_the_widths_of_what_runs_where_they_can_differ():
    for resources, widths in ((Resources(max_workers_per_trial=4), {1: 1, 4: 1}), (Resources(), {})):
        sweep = sweep_of(resources=resources)
        sweep_state, screen = SweepState(sweep), Screen()
        sweep_state.apply(OPENED)
        for width in (1, 4, 2):
            event = sweep_state.next()
            assert isinstance(event, Started)
            sweep_state.apply(replace(event, segment=replace(event.segment, width=width)))
        sweep_state.apply(Lost(2, 1, "gone"))
        watching = ObserverHub(sweep, [], screen)
        watching.look(sweep_state, WORKERS, 0.0)
        assert screen.shown[0].widths == widths
        watching.close()


def test_the_screen_shows_how_many_trials_are_trained_in_how_many_packs():
    sweep = sweep_of(resources=Resources(trials_per_worker=4))
    sweep_state, screen = SweepState(sweep), Screen()
    sweep_state.apply(OPENED)
    watching = ObserverHub(sweep, [], screen)
    for _ in range(7):
        started(sweep_state)
    for told in ([], [4], [3, 3, 3, 3], [3, 2, 1, 1]):
        watching.report([Report(trial, 1, {"loss": 1.0}, 0.1, lanes) for trial, lanes in enumerate(told)])
        watching.look(sweep_state, WORKERS, 0.0)
    watching.report([Report(trial, 1, {"loss": 1.0}, 0.1, 2) for trial in (3, 4, 5, 6)])
    watching.look(sweep_state, WORKERS, 0.0)
    sweep_state.apply(Lost(6, 1, "gone"))
    watching.look(sweep_state, WORKERS, 0.0)
    assert [shown.packs for shown in screen.shown] == [(0, 0), (1, 1), (4, 1), (2, 1), (6, 3), (5, 2)]
    watching.close()


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("", "trial 2 lost its worker and runs again: gone"),
        ("halved", "trial 2 lost its worker and runs again with half of the trials that were lost with it: gone"),
        ("alone", "trial 2 lost its worker and runs again with one for itself: gone"),
        ("wider", "trial 2 runs again on twice as many workers: gone"),
    ],
)
def test_verbosely_it_says_how_a_trial_that_was_lost_runs_again(then, told):
    sweep = sweep_of(early_terminate=None, max_iter=4, run_cap=3)
    screen = Screen()
    watching = ObserverHub(sweep, [], screen, verbose=True)
    watching.look(SweepState(sweep), WORKERS, 0.0)
    watching.observe(Record(2, 101.0, Lost(2, 1, "gone", False, 0.0, then)))
    watching.observe(Record(3, 102.0, Lost(2, 2, f"{NO_MEMORY}m", False, 0.0, then)))  # said when it was decided
    assert screen.notes == [told]
    watching.close()


def test_without_a_bound_there_is_no_total_and_no_time_left():
    sweep = sweep_of(early_terminate=None, max_iter=None, run_cap=3)
    sweep_state, screen = SweepState(sweep), Screen()
    watching = ObserverHub(sweep, [], screen)
    watching.look(sweep_state, WORKERS, 1.0)
    assert (screen.shown[0].total, screen.shown[0].remaining) == (None, None)
    watching.close()


def test_observers_hear_events_reports_and_at_the_last_look_the_rungs():
    sweep = sweep_of()
    sweep_state, screen, scribe = SweepState(sweep), Screen(), Scribe()
    watching = ObserverHub(sweep, [ObserverThread(lambda: scribe, screen.note)], screen)
    decision = Decision(0, "stop", "why")
    report = Report(0, 1, {"loss": 1.0}, 0.1)
    watching.observe(Record(1, 9.0, OPENED, [decision]))
    watching.report([report])
    watching.look(sweep_state, WORKERS, 0.0)
    watching.look(sweep_state, WORKERS, 0.1)  # too soon for the rungs again
    watching.look(sweep_state, WORKERS, 60.0)  # as the sweep's clock has it
    watching.look(sweep_state, WORKERS, 60.2, last=True)
    watching.say("node 7 is gone")
    watching.close()
    assert scribe.told == [Record(1, 9.0, OPENED, [decision]), (report,), "rungs", "rungs", "rungs", "closed"]
    assert screen.notes == ["node 7 is gone"]
    assert len(screen.shown) == 4


def test_the_newest_failures_are_shown_but_not_those_that_are_tried_again():
    sweep = sweep_of()
    screen = Screen()
    watching = ObserverHub(sweep, [], screen)
    for trial in range(5):
        failure = Failure("raised", f"ValueError: {trial}", "Traceback")
        watching.observe(Record(1, 9.0, Failed(trial, 1, failure, trial == 4, ())))
    watching.look(SweepState(sweep), WORKERS, 0.0)
    assert screen.shown[0].failures == tuple((trial, f"ValueError: {trial}") for trial in (1, 2, 3))
    watching.close()


def test_an_observer_that_fails_is_told_of_on_the_screen():
    class Broken(Scribe):
        def observe(self, record: Record) -> None:
            raise OSError("disk full")

    screen = Screen()
    watching = ObserverHub(sweep_of(), [ObserverThread(Broken, screen.note)], screen)
    watching.observe(Record(1, 9.0, OPENED))
    watching.close()
    assert (screen.shown, screen.closed) == ([], 1)
    (note,) = screen.notes
    assert "Broken stopped: OSError: disk full" in note
