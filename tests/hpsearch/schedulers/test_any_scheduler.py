"""What every scheduler keeps to, synchronous or not, ours or a third party's."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.events import Extended
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.bands import Bands
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, Scheduler, Wait
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.schedulers.full import FullLength
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.schedulers.pasha import PASHA
from hpsearch.schedulers.pbt import PBT
from hpsearch.study.extension import extended
from hpsearch.study.state import SweepState
from hpsearch.trial import TrialState
from tests.hpsearch.support.documented import BetterHalf
from tests.hpsearch.support.doubling import Doubling
from tests.hpsearch.support.eager import Eager
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import sweep_of

SETTINGS: st.SearchStrategy[EarlyTerminate | None] = st.one_of(
    st.none(),
    st.builds(Hyperband, st.integers(2, 12), eta=st.integers(2, 4)),
    st.builds(SuccessiveHalving, st.integers(2, 12), eta=st.integers(2, 4), trials=st.integers(1, 12)),
    st.builds(ASHA, st.integers(3, 12), eta=st.integers(2, 4), brackets=st.integers(1, 2)),
    st.builds(Bands, st.integers(1, 9), st.integers(1, 3), eta=st.sampled_from([1.5, 2.0, 3.0])),
    st.builds(PASHA, st.integers(3, 30), st.integers(1, 2), eta=st.integers(2, 4)),
    st.builds(
        MedianStopping,
        st.integers(2, 12),
        min_iter=st.integers(1, 2) | st.none(),
        every=st.integers(1, 3) | st.none(),
        min_trials=st.integers(1, 6),
    ),
    st.builds(
        PBT,
        st.integers(4, 9),
        population=st.integers(2, 6),
        interval=st.integers(1, 3) | st.none(),
        quantile=st.sampled_from([0.2, 0.34, 0.5]),
    ),
    st.builds(BetterHalf, st.integers(1, 9)),
    st.builds(Doubling, st.integers(1, 9), trials=st.integers(1, 5)),
    st.builds(Eager, st.integers(1, 12), eta=st.integers(2, 4), trials=st.integers(1, 12)),
    st.builds(Population, st.integers(1, 9), members=st.integers(1, 5), interval=st.integers(1, 4)),
)

VALUES = (0.0, 1.0, 1.0, 2.0, 3.0, math.nan, math.inf, None)


def made(settings: EarlyTerminate | None) -> Scheduler:
    if settings is None:
        return FullLength(3, 9)
    bounded = settings.capabilities.forks or settings.capabilities.endless
    return settings.scheduler(Objective(Metric("loss")), 14 if bounded else None)


@dataclass
class Books:
    """What a scheduler was told and has answered."""

    scheduler: Scheduler
    running: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Trials to the end and the rung of what they run."""
    reached: dict[int, int] = field(default_factory=dict)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Trials to bracket and rung."""
    over: set[int] = field(default_factory=set)
    """Trials that have failed, were stopped, or are complete."""
    starts: int = 0

    def start(self) -> bool:
        """Take the next answer; False where nothing starts now."""
        before = list(self.scheduler.rungs()), self.scheduler.total()
        ready, upcoming = self.scheduler.ready(), list(islice(self.scheduler.upcoming(), 4))
        assert (list(self.scheduler.rungs()), self.scheduler.total()) == before  # to ask changes nothing
        assert (ready > 0) == bool(upcoming)
        assert self.scheduler.busy == bool(self.running)
        answer = self.scheduler.next()
        if isinstance(answer, Wait | Done):
            assert not upcoming
            assert isinstance(answer, Wait) == bool(self.running)
            assert self.scheduler.next() == answer
            assert (list(self.scheduler.rungs()), self.scheduler.total()) == before
            return False
        assert answer == upcoming[0]
        assert list(islice(self.scheduler.upcoming(), 3))[: len(upcoming) - 1] == upcoming[1:]
        self.take(answer)
        return True

    def take(self, answer: NewTrial | Run) -> None:
        if isinstance(answer, NewTrial):
            trial, before = answer.number, answer.start
            assert trial == len(self.reached)
            if answer.parent is None:
                assert answer.start == 0
            else:
                assert 0 <= answer.parent.trial < trial
                assert answer.parent.iteration <= self.reached[answer.parent.trial]
        else:
            trial, before = answer.trial, self.reached[answer.trial]
            assert trial not in self.running
            assert trial not in self.over
            bracket, rung = self.places[trial]
            assert (answer.bracket, answer.rung) > (bracket, rung)
            assert answer.bracket == bracket
        until = before + 1 if answer.until is None else answer.until
        assert 0 <= before < until
        self.reached[trial], self.places[trial] = before, (answer.bracket, answer.rung)
        self.running[trial] = until, answer.rung
        self.starts += 1

    def end(self, trial: int, value: float | None, early: bool) -> None:
        until, _ = self.running.pop(trial)
        self.reached[trial] = until - 1 if early and until - 1 > self.reached[trial] else until
        if value is None:
            self.over.add(trial)
        self.hear(self.scheduler.observe(Outcome(trial, self.reached[trial], value)))

    def hear(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            assert decision.reason
            assert decision.trial not in self.running
            assert decision.trial not in self.over
            if decision.action in ("stop", "complete"):
                self.over.add(decision.trial)


def live(
    scheduler: Scheduler, seed: int, workers: int, failures: bool
) -> tuple[Books, list[tuple[dict[int, tuple[int, int]], set[int]]]]:
    """Let outcomes come in any order, until nothing is left to start; return also what was said."""
    books, chance = Books(scheduler), random.Random(seed)
    said: list[tuple[dict[int, tuple[int, int]], set[int]]] = []
    while True:
        while len(books.running) < workers and books.start():
            pass
        if not books.running:
            return books, said
        trial = chance.choice(sorted(books.running))
        value = chance.choice(VALUES if failures else VALUES[:-1])
        books.end(trial, value, early=chance.random() < 0.2)
        said.append((dict(books.places), set(books.over)))


@settings(deadline=None, max_examples=80)
@given(SETTINGS, st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_a_scheduler_keeps_its_own_books_whatever_comes(early, seed, workers, failures):
    books, said = live(made(early), seed, workers, failures)
    views = books.scheduler.rungs()
    assert len({(view.bracket, view.rung) for view in views}) == len(views)
    assert all(view.started == view.finished for view in views)
    if not isinstance(early, Doubling | Eager | Population):
        assert books.over == set(books.reached)  # ours leave nobody stranded
    if views:
        assert sum(view.started for view in views) == books.starts
    for view in views:
        known = {v.rung: (v.until, v.size) for v in views if v.bracket == view.bracket}
        assert list(books.scheduler.plan(view.bracket)) == [known[rung] for rung in sorted(known)]
    again, said_again = live(made(early), seed, workers, failures)
    assert said_again == said
    assert again.places == books.places


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 12), st.integers(2, 4), st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 6))
def test_what_an_asynchronous_one_leaves_undecided_waits_with_its_checkpoint_and_may_go_on_later(
    max_iter, eta, seed, workers, more
):
    sweep = sweep_of(early_terminate=Eager(max_iter, eta=eta), run_cap=7)
    life = Life(sweep, seed, workers, 0.0).run()
    rows = life.sweep_state.rows()
    waiting = [row.number for row in rows if row.state is TrialState.WAITING]
    assert {row.state for row in rows} <= {TrialState.WAITING, TrialState.COMPLETE}
    assert {life.sweep_state.record(trial).checkpoint for trial in waiting} <= life.on_disk
    assert life.sweep_state.checkpoints() == life.on_disk
    event = Extended(7 + more)
    life.take(event)
    life.sweep = extended(sweep, event)
    life.run()  # asserts of each start that its checkpoint is there
    assert len(life.sweep_state.rows()) == 7 + more
    replayed = SweepState(sweep)
    list(replayed.replay(life.events))
    assert repr(replayed.rows()) == repr(life.sweep_state.rows())
