"""How wide trials run where others share their workers."""

from __future__ import annotations

import pytest

from hpsearch.events import Finished, Saved, Started
from hpsearch.trial import Report, Segment
from hpsearch.widths.widths import Widths

WORKERS = 4


class Shared:
    """A sweep of which trial 0 to 9 may be lanes, and have up to four workers."""

    def __init__(self) -> None:
        self.widths = Widths(1, WORKERS, restart=0.0, alone_first=True)
        self.attempts: dict[int, int] = {}
        self.reached: dict[int, int] = {}
        self.running: dict[int, int] = {}

    def start(self, *trials: int, free: int = 0) -> list[Started]:
        for trial in trials:
            self.attempts[trial] = self.attempts.get(trial, 0) + 1
        segments = [Segment(trial, self.reached.get(trial, 0), 100, None, self.attempts[trial]) for trial in trials]
        starts = self.widths.assign([Started(one, None, bracket=0, rung=0) for one in segments], free, 0)
        for start in starts:
            self.widths.observe(start, ())
            self.running[start.segment.trial] = start.segment.width
            # A checkpoint shows that it can go on with another width.
            self.widths.observe(Saved(start.segment.trial, start.segment.attempt, start.segment.start, "c", ()), ())
        return starts

    def report(self, trial: int, lanes: int) -> None:
        self.reached[trial] = self.reached.get(trial, 0) + 1
        self.widths.report([Report(trial, self.reached[trial], {}, 1.0, lanes)])

    def finish(self, trial: int) -> None:
        at = self.reached.get(trial, 0)
        del self.running[trial]
        self.widths.observe(Finished(trial, self.attempts[trial], at, "c", (), True, 1.0), ())

    def cuts(self, free: int = 0, waiting: int = 0) -> list[int]:
        return [trial for trial, _ in self.widths.cuts(free, waiting, WORKERS)]


def test_a_trial_starts_on_one_worker_while_nothing_is_known_of_it_alone():
    shared = Shared()
    (start,) = shared.start(0, free=4)
    assert (start.segment.width, start.reason) == (1, "what an iteration takes alone isn't known yet")


@pytest.mark.parametrize("lanes", [2, 16])
def test_what_lanes_took_together_widens_nothing(lanes):
    shared = Shared()
    shared.start(0, free=4)
    for _ in range(5):
        shared.report(0, lanes)
    assert shared.cuts(free=3) == []
    shared.finish(0)
    assert [start.segment.width for start in shared.start(0, free=4)] == [1]


def test_an_iteration_alone_is_enough_to_widen_the_trial_that_runs():
    shared = Shared()
    shared.start(0, free=4)
    shared.report(0, lanes=7)
    assert shared.cuts(free=3) == []
    shared.report(0, lanes=1)
    assert shared.cuts(free=3) == [0]
    shared.finish(0)
    (start,) = shared.start(0, free=4)
    assert start.segment.width == 4
    assert start.reason.startswith("nothing else can start; a probe")


def test_a_gang_gives_way_where_others_share_a_worker_beside_it():
    shared = Shared()
    shared.start(0, free=4)
    shared.report(0, lanes=1)
    shared.cuts(free=3)
    shared.finish(0)
    shared.start(0, free=3)
    assert shared.running[0] == 3
    shared.report(0, lanes=1)
    shared.start(1)
    assert shared.cuts() == [], "one more has the last worker for itself"
    shared.start(2)
    assert shared.cuts() == [0]
    assert shared.cuts() == [], "it is told once"
