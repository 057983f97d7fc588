"""What schedulers hold that decide whole rungs, for any number of workers and any order of outcomes."""

from __future__ import annotations

import gc
import math
import random
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, Scheduler, Wait
from hpsearch.schedulers.brackets import Variant, hyperband_brackets, successive_halving_bracket
from hpsearch.schedulers.full import FullLength
from hpsearch.schedulers.halving import BracketScheduler


def _trial(answer: NewTrial | Run) -> int:
    return answer.number if isinstance(answer, NewTrial) else answer.trial


Measure = Callable[[int, int], tuple[int, float | None]]
"""(trial, until) to (iteration that it ended at, value)."""

TO_ITS_OWN_END = 5
"""Where a trial without `max_iter` returns, in these tests."""


class Drive:
    """Drives a scheduler as the orchestrator does, and checks each of its answers."""

    def __init__(
        self,
        scheduler: Scheduler,
        measure: Measure,
        workers: int = 1,
        seed: int = 0,
        supply: int | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.measure = measure
        self.workers = workers
        self.supply = supply
        self.order = random.Random(seed)
        self.flying: list[tuple[int, int]] = []
        self.reached: dict[int, int] = {}
        self.state: dict[int, str] = {}
        self.decisions: dict[int, list[Decision]] = defaultdict(list)
        self.segments: list[tuple[int, int]] = []
        self.checks_left = 20
        self.bracket: dict[int, int] = {}
        self.rung: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        """Of each bracket, where the rung ends that its trials run in."""

    def run(self, events: int | None = None) -> Drive:
        """Go on until `Done`, or until so many outcomes were observed."""
        while events is None or events > 0:
            if not self.fill():
                break
            self.observe_any()
            if events is not None:
                events -= 1
        return self

    def fill(self) -> bool:
        """Start what there is to start; False when that is nothing, ever."""
        while len(self.flying) < self.workers:
            ready = self.scheduler.ready()
            upcoming = list(islice(self.scheduler.upcoming(), 3))
            answer = self.scheduler.next()
            assert upcoming[:1] == ([answer] if isinstance(answer, NewTrial | Run) else [])
            assert upcoming[1:] == list(islice(self.scheduler.upcoming(), 2))[: len(upcoming) - 1]
            # One is counted at least where one is to come; a bracket that begins may hold more.
            assert (ready > 0) == isinstance(answer, NewTrial | Run)
            if isinstance(answer, Wait | Done):
                self.check_repeatable(answer)
                assert bool(self.flying) == isinstance(answer, Wait)
                return isinstance(answer, Wait)
            assert self.scheduler.ready() >= ready - 1
            if isinstance(answer, Run):
                assert self.state[answer.trial] == "promoted"
                trial, until, before = answer.trial, answer.until, self.reached[answer.trial]
                assert answer.bracket == self.bracket[trial]
                assert answer.rung == self.rung[trial] + 1
            else:
                assert isinstance(answer, NewTrial)
                assert answer.number == len(self.state)
                if self.supply is not None and answer.number >= self.supply:
                    self.take(self.scheduler.exhausted())
                    continue
                trial, until, before = answer.number, answer.until or TO_ITS_OWN_END, 0
                self.bracket[trial] = answer.bracket
                assert answer.rung == 0
                assert self.bracket[trial] >= self.bracket.get(trial - 1, 0)
            assert until > before
            self.rung[trial] = answer.rung
            self.segments.append((trial, until - before))
            self.reached[trial] = until
            self.state[trial] = "running"
            self.flying.append((trial, until))
            assert self.ends.setdefault(self.bracket[trial], until) <= until
            self.ends[self.bracket[trial]] = until
        return True

    def check_repeatable(self, answer: Wait | Done) -> None:
        if self.checks_left == 0:
            return
        self.checks_left -= 1
        before = list(self.scheduler.rungs()), self.scheduler.total()
        assert self.scheduler.next() == answer
        assert self.scheduler.next() == answer
        assert (list(self.scheduler.rungs()), self.scheduler.total()) == before

    def observe_any(self) -> None:
        place = self.order.randrange(len(self.flying))
        self.flying[place], self.flying[-1] = self.flying[-1], self.flying[place]
        trial, until = self.flying.pop()
        iteration, value = self.measure(trial, until)
        self.state[trial] = "failed" if value is None else "ended"
        self.take(self.scheduler.observe(Outcome(trial, iteration, value)))

    def take(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            assert decision.reason
            assert self.state[decision.trial] == "ended"
            self.state[decision.trial] = {
                "promote": "promoted",
                "stop": "stopped",
                "complete": "complete",
            }[decision.action]
            self.decisions[decision.trial].append(decision)

    def check_end(self) -> None:
        assert self.scheduler.next() == Done()
        assert set(self.state.values()) <= {"failed", "stopped", "complete"}  # nobody is stranded
        views = self.scheduler.rungs()
        assert [(view.bracket, view.rung) for view in views] == sorted({(view.bracket, view.rung) for view in views})
        assert all(view.size == view.started == view.finished > 0 for view in views)
        assert sum(view.finished for view in views) == len(self.segments)
        assert sum(view.finished for view in views if view.rung == 0) == len(self.state)


@dataclass(frozen=True)
class Recipe:
    """Builds the same scheduler again and again; hypothesis prints it."""

    name: str
    arguments: tuple

    @property
    def run_cap(self) -> int | None:
        place = 1 if self.name == "full" else -2
        run_cap: int | None = self.arguments[place]
        return run_cap

    def build(self) -> Scheduler:
        if self.name == "full":
            return FullLength(*self.arguments)
        max_iter, min_iter, eta, shape, goal, run_cap, brackets = self.arguments
        if self.name == "hyperband":
            cycle = hyperband_brackets(max_iter, min_iter, eta, shape)
        else:
            cycle = (successive_halving_bracket(max_iter, min_iter, eta, shape),)
        return BracketScheduler(cycle, eta, Objective(Metric("score", goal)), run_cap, brackets)


def brackets_recipe(name, shapes) -> st.SearchStrategy[Recipe]:
    min_iters = st.integers(1, 3)
    arguments = st.tuples(
        min_iters.flatmap(lambda low: st.tuples(st.integers(low, 30), st.just(low))),
        st.integers(2, 4),
        shapes,
        st.sampled_from(["minimize", "maximize"]),
        st.none() | st.integers(1, 80),
        st.none() | st.integers(1, 6),
    )
    return arguments.map(lambda drawn: Recipe(name, (*drawn[0], *drawn[1:])))


recipes = st.one_of(
    st.tuples(st.none() | st.integers(1, 5), st.integers(1, 40)).map(lambda drawn: Recipe("full", drawn)),
    brackets_recipe("hyperband", st.sampled_from(get_args(Variant))),
    brackets_recipe("successive halving", st.none() | st.integers(1, 40)),
)

numbers = st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.0, math.inf, -math.inf])
values = st.lists(numbers | st.floats() | st.none(), min_size=1, max_size=40)
workers = st.integers(1, 60)
seeds = st.integers(0, 2**32)


def measure_by(table) -> Measure:
    """The same outcome for the same segment, whoever runs it; every fifth ends early by itself."""

    def measure(trial: int, until: int) -> tuple[int, float | None]:
        place = trial * 7 + until
        return until - (place % 5 == 0), table[place % len(table)]

    return measure


def fine(trial: int, until: int) -> tuple[int, float | None]:
    return until, (trial * 7919 % 1000) / until


@given(recipes, values, workers, seeds, st.none() | st.integers(0, 60))
@settings(deadline=None, max_examples=50)
def test_every_trial_is_brought_to_an_end(recipe, table, count, seed, supply):
    scheduler = recipe.build()
    Drive(scheduler, measure_by(table), count, seed, supply).run().check_end()


@given(recipes, values, workers, seeds, st.none() | st.integers(0, 60))
@settings(deadline=None, max_examples=50)
def test_workers_and_order_change_no_decision(recipe, table, count, seed, supply):
    measure = measure_by(table)
    alone = Drive(recipe.build(), measure, supply=supply).run()
    many = Drive(recipe.build(), measure, count, seed, supply).run()
    assert many.decisions == alone.decisions
    assert many.state == alone.state
    assert sorted(many.segments) == sorted(alone.segments)
    assert list(many.scheduler.rungs()) == list(alone.scheduler.rungs())


@given(recipes, values, workers, seeds, st.none() | st.integers(0, 60))
@settings(deadline=None, max_examples=60)
def test_failures_that_are_taken_back_leave_no_trace(recipe, table, count, seed, supply):
    """First all that runs, whole rungs among it; then one at a time, in rungs that others keep undecided."""
    measure = measure_by(table)
    calm = Drive(recipe.build(), measure, supply=supply).run()
    drive = Drive(recipe.build(), measure, count, seed, supply)
    scheduler = drive.scheduler
    drive.fill()
    for trial, until in drive.flying:
        assert not scheduler.may_withdraw(trial)
        assert not scheduler.observe(Outcome(trial, until, None))
    for trial, _ in reversed(drive.flying):
        assert scheduler.may_withdraw(trial)
        scheduler.withdraw(trial)
    while drive.fill():
        trial, until = drive.order.choice(drive.flying)
        if sum(drive.bracket[trial] == drive.bracket[other] for other, _ in drive.flying) > 1:
            scheduler.observe(Outcome(trial, until, None))
            scheduler.withdraw(trial)
        drive.observe_any()
    drive.check_end()
    assert drive.decisions == calm.decisions
    assert (list(scheduler.rungs()), scheduler.total()) == (list(calm.scheduler.rungs()), calm.scheduler.total())


@given(recipes, values, workers, seeds)
@settings(deadline=None, max_examples=30)
def test_what_did_not_fail_or_was_decided_on_cant_be_taken_back(recipe, table, count, seed):
    drive = Drive(recipe.build(), measure_by(table), count, seed)
    while drive.fill():
        drive.observe_any()
        for trial, state in drive.state.items():
            if state != "failed":
                assert not drive.scheduler.may_withdraw(trial)
        with pytest.raises(ValueError, match="can be withdrawn"):
            drive.scheduler.withdraw(len(drive.state))


@given(recipes, values, workers, seeds, st.none() | st.integers(0, 60))
@settings(deadline=None, max_examples=40)
def test_the_total_is_what_ran(recipe, table, count, seed, supply):
    scheduler = recipe.build()
    promised = scheduler.total()
    drive = Drive(scheduler, measure_by(table), count, seed, supply).run()
    ran = len(drive.state), sum(length for _, length in drive.segments)
    assert scheduler.total() in (ran, None)
    if promised is not None:
        assert ran[0] <= promised[0]
        assert ran[1] <= promised[1]


@given(recipes, values, workers, seeds, st.none() | st.integers(0, 60))
@settings(deadline=None, max_examples=30)
def test_the_rungs_count_every_start_and_outcome_as_it_comes(recipe, table, count, seed, supply):
    scheduler = recipe.build()
    drive = Drive(scheduler, measure_by(table), count, seed, supply)

    def counts() -> tuple[int, int]:
        views = scheduler.rungs()
        return sum(view.started for view in views), sum(view.finished for view in views)

    while drive.fill():
        assert counts() == (len(drive.segments), len(drive.segments) - len(drive.flying))
        drive.observe_any()
        assert counts() == (len(drive.segments), len(drive.segments) - len(drive.flying))
    drive.check_end()


@given(recipes, workers, seeds)
@settings(deadline=None, max_examples=40)
def test_without_failures_the_total_is_known_before_the_first_trial(recipe, count, seed):
    scheduler = recipe.build()
    promised = scheduler.total()
    drive = Drive(scheduler, fine, count, seed).run(events=10)
    assert scheduler.total() == promised
    drive.run()
    assert promised in ((len(drive.state), sum(length for _, length in drive.segments)), None)


@given(recipes, values, workers, seeds, st.none() | st.integers(0, 60), st.integers(0, 50), st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_an_extension_goes_on_at_any_moment(recipe, table, count, seed, supply, moment, more):
    scheduler = recipe.build()
    drive = Drive(scheduler, measure_by(table), count, seed, supply).run(events=moment)
    promised = recipe.build().total()
    run_cap = max(recipe.run_cap or 0, promised[0] if promised else 0) + more
    drive.supply = None
    scheduler.extend(run_cap, {} if recipe.name == "full" else {"brackets": 1000})
    drive.run().check_end()
    assert len(drive.state) == run_cap


@given(recipes, st.integers(1, 40))
@settings(deadline=None, max_examples=30)
def test_an_extension_after_done_creates_what_was_added(recipe, more):
    scheduler = recipe.build()
    drive = Drive(scheduler, fine, workers=4).run()
    before = len(drive.state)
    scheduler.extend(max(recipe.run_cap or 0, before) + more, {} if recipe.name == "full" else {"brackets": 1000})
    drive.run().check_end()
    assert len(drive.state) > before


def test_a_searcher_may_be_exhausted_at_any_trial():
    for recipe in (
        Recipe("full", (3, 60)),
        Recipe("hyperband", (27, 1, 3, "paper", "maximize", None, None)),
        Recipe("successive halving", (27, 1, 3, None, "minimize", 60, None)),
    ):
        for supply in range(49):
            drive = Drive(recipe.build(), fine, workers=7, seed=supply, supply=supply).run()
            assert len(drive.state) == supply
            drive.check_end()


@pytest.mark.parametrize("trials", [10_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_many_trials_on_a_tenth_as_many_workers(trials):
    # A call that looked at all trials would take far longer here than the time limit of the test.
    scheduler = BracketScheduler(hyperband_brackets(27), 3, Objective(Metric("score", "maximize")), run_cap=trials)
    promised = scheduler.total()
    drive = Drive(scheduler, fine, workers=trials // 10, seed=1).run()
    drive.check_end()
    assert promised == (trials, sum(length for _, length in drive.segments))


def drive_alone(scheduler: Scheduler) -> None:
    """One worker, and nothing kept of what it ran."""
    while True:
        answer = scheduler.next()
        if isinstance(answer, Wait | Done):
            return
        trial = answer.number if isinstance(answer, NewTrial) else answer.trial
        scheduler.observe(Outcome(trial, answer.until or TO_ITS_OWN_END, 0.5))


@pytest.mark.exhaustive
def test_a_trial_leaves_no_memory_but_its_share_of_the_rungs():
    scheduler = BracketScheduler(hyperband_brackets(27), 3, Objective(Metric("score", "maximize")), run_cap=10_000)
    tracemalloc.start()
    try:
        drive_alone(scheduler)
        gc.collect()  # else it would depend on what ran before how much is left of cycles
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert scheduler.next() == Done()
    assert kept < 55 * 10_000  # 44 bytes a trial were seen; 68 with the brackets kept
