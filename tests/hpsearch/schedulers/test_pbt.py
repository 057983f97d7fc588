"""PBT replaces the worst of a population by forks of the best, in turns and within its budget."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.decision import Decision
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, Scheduler, Wait
from hpsearch.schedulers.pbt import PBT
from hpsearch.trial import StateAt
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.scripted import sweep_of

NUMBERS = (0.0, 1.0, 1.0, 2.0, 3.0, 4.0, math.nan, math.inf, -math.inf)


def pbt(run_cap: int | None = None, *, max_iter: int = 3, population: int = 4, quantile: float = 0.25) -> Scheduler:
    return PBT(max_iter, population, 1, quantile).scheduler(Objective(Metric("loss")), run_cap)


def start(scheduler: Scheduler, count: int) -> list[NewTrial | Run]:
    answers = []
    for _ in range(count):
        answer = scheduler.next()
        assert isinstance(answer, NewTrial | Run)
        answers.append(answer)
    return answers


def observe(scheduler: Scheduler, iteration: int, values: dict[int, float | None]) -> list[Decision]:
    return [d for trial, value in values.items() for d in scheduler.observe(Outcome(trial, iteration, value))]


def fill(scheduler: Scheduler) -> None:
    """Let one worker run the first interval of each, the better the lower its number."""
    while isinstance(answer := scheduler.next(), NewTrial) and answer.parent is None:
        scheduler.observe(Outcome(answer.number, 1, float(answer.number)))
        if not any(isinstance(one, NewTrial) and one.parent is None for one in scheduler.upcoming()):
            return


def place(value: float) -> tuple[bool, float]:
    return math.isnan(value), 0.0 if math.isnan(value) else value


def in_step(values: random.Random, population: int, ends: Sequence[int], quantile: float) -> list[tuple[object, ...]]:
    """Truncation selection as one would write it down: all train an interval, then all are judged, and so on."""
    said: list[tuple[object, ...]] = []
    members, created, forks = list(range(population)), population, 0
    said += [("new", trial, None) for trial in members]
    for end in ends[:-1]:
        shown = {trial: values.choice(NUMBERS) for trial in members}
        ranked = sorted(range(population), key=lambda i: (*place(shown[members[i]]), i))
        count = max(int(quantile * population + 1e-9), 1)
        able = [i for i in ranked if not math.isnan(shown[members[i]])]
        following = list(members)
        for i, trial in enumerate(members):
            bad = math.isnan(shown[trial])
            better = [j for j in able if bad or shown[members[j]] < shown[trial]]
            best = [j for j in better if j in ranked[:count]] or (better[:1] if bad else [])
            if (i in ranked[population - count :] or bad) and best:
                following[i] = created
                said.append(("new", created, StateAt(members[best[forks % len(best)]], end)))
                created, forks = created + 1, forks + 1
            else:
                said.append(("run", trial, None))
        members = following
    return said


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 9), st.integers(2, 12), st.integers(1, 4), st.sampled_from([0.1, 0.2, 0.34, 0.5]), st.integers(0))
def test_on_one_worker_each_interval_is_judged_as_a_whole(population, max_iter, interval, quantile, seed):
    early = PBT(max_iter, population, min(interval, max_iter - 1), quantile)
    scheduler = early.scheduler(Objective(Metric("loss")), None)
    values = random.Random(seed)
    said: list[tuple[object, ...]] = []
    trained = 0
    while not isinstance(answer := scheduler.next(), Done):
        assert isinstance(answer, NewTrial | Run)
        assert answer.until is not None
        trained += answer.until - (answer.start if isinstance(answer, NewTrial) else early.ends[answer.rung - 1])
        if isinstance(answer, NewTrial):
            said.append(("new", answer.number, answer.parent))
        else:
            said.append(("run", answer.trial, None))
        trial = answer.number if isinstance(answer, NewTrial) else answer.trial
        scheduler.observe(Outcome(trial, answer.until, values.choice(NUMBERS)))
    assert said == in_step(random.Random(seed), population, early.ends, quantile)
    assert trained == population * max_iter


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(2, 10), st.integers(1, 10), st.integers(0), st.integers(0, 20))
def test_whatever_comes_the_budget_is_kept_and_what_is_forked_was_asked_for(population, max_iter, workers, seed, more):
    """Failures are the only thing beyond population * max_iter; and nobody fails for ever."""
    early, chance = PBT(max_iter, population, 1, 0.5), random.Random(seed)
    cap = population + more
    scheduler = early.scheduler(Objective(Metric("loss")), cap)
    running: dict[int, tuple[int, int]] = {}
    kept: set[StateAt] = set()
    trained = created = 0
    while True:
        while len(running) < workers and isinstance(answer := scheduler.next(), NewTrial | Run):
            assert answer.until is not None
            if isinstance(answer, NewTrial):
                assert answer.parent is None or answer.parent in kept
                created += 1
                running[answer.number] = answer.start, answer.until
            else:
                running[answer.trial] = answer.until - 1, answer.until
            kept &= set(scheduler.needs())
        if not running:
            break
        trial = chance.choice(sorted(running))
        begun, until = running.pop(trial)
        value = None if chance.random() < 0.2 else chance.choice(NUMBERS)
        trained += until - begun if value is not None else 0
        scheduler.observe(Outcome(trial, until, value))
        needs = set(scheduler.needs())
        assert len(needs) <= 2 * population
        kept = (kept & needs) | {state for state in needs if state.trial == trial}
        assert kept == needs  # what was left out once doesn't come back
    assert isinstance(scheduler.next(), Done)
    assert trained <= population * max_iter
    assert created <= cap


def test_with_a_worker_for_each_a_member_is_judged_as_it_comes():
    scheduler = pbt()
    start(scheduler, 4)
    for trial in (3, 2, 1):
        assert observe(scheduler, 1, {trial: 1.0 + trial}) == []
        assert start(scheduler, 1) == [Run(trial, 2, 0, 1)]
    assert observe(scheduler, 1, {0: 9.0}) == [
        Decision(0, "stop", "iteration 1: 4th of 4, a fork of trial 1 takes its place")
    ]
    assert scheduler.next() == NewTrial(4, 2, 0, 1, StateAt(1, 1), 1)
    assert scheduler.next() == Wait()


def test_who_came_further_is_compared_by_what_it_was_then():
    scheduler = pbt(max_iter=9, population=2, quantile=0.5)
    start(scheduler, 2)
    observe(scheduler, 1, {0: 5.0})
    start(scheduler, 1)
    observe(scheduler, 2, {0: 1.0})
    start(scheduler, 1)
    assert observe(scheduler, 1, {1: 4.0}) == []  # better than the other one at 1, if not at 2


def test_who_is_to_be_replaced_waits_for_one_of_the_best_that_is_about_to_come_as_far():
    scheduler = pbt(max_iter=4)
    start(scheduler, 4)
    for trial in (3, 2, 1, 0):
        assert observe(scheduler, 1, {trial: 1.0 + trial}) == []
        assert start(scheduler, 1) == [Run(trial, 2, 0, 1)]
    assert observe(scheduler, 2, {3: 9.0}) == []  # the worst at 1, where all have been; and 0 is the best
    assert scheduler.next() == Wait()
    assert observe(scheduler, 2, {2: 2.0}) == []
    assert start(scheduler, 1) == [Run(2, 3, 0, 2)]
    (stopped,) = observe(scheduler, 2, {0: 0.5})
    assert (stopped.trial, stopped.action) == (3, "stop")
    assert start(scheduler, 2) == [Run(0, 3, 0, 2), NewTrial(4, 3, 0, 2, StateAt(0, 2), 2)]


def test_those_who_are_copied_take_turns():
    scheduler = pbt(max_iter=2, population=6, quantile=0.5)
    fill(scheduler)
    parents = [answer.parent for answer in scheduler.upcoming() if isinstance(answer, NewTrial)]
    assert parents == [StateAt(0, 1), StateAt(1, 1), StateAt(2, 1)]


def test_equal_members_are_not_replaced():
    scheduler = pbt()
    start(scheduler, 4)
    assert observe(scheduler, 1, dict.fromkeys(range(4), 1.0)) == []
    assert all(isinstance(answer, Run) for answer in scheduler.upcoming())


def test_a_failed_member_is_replaced_as_soon_as_one_can_be_copied_and_may_be_taken_back_before():
    scheduler = pbt(population=2)
    start(scheduler, 2)
    observe(scheduler, 1, {0: None})
    assert scheduler.may_withdraw(0)
    assert isinstance(scheduler.next(), Wait)
    observe(scheduler, 1, {1: 1.0})
    assert scheduler.next() == NewTrial(2, 2, 0, 1, StateAt(1, 1), 1)
    assert not scheduler.may_withdraw(0)
    with pytest.raises(ValueError, match="isn't replaced"):
        scheduler.withdraw(0)


def test_a_place_that_fails_again_and_again_is_given_up():
    scheduler, forks = pbt(population=2, max_iter=9), 0
    while not isinstance(answer := scheduler.next(), Done):
        assert isinstance(answer, NewTrial | Run)
        assert answer.until is not None
        if isinstance(answer, Run) or answer.number == 1:
            observe(scheduler, answer.until, {1: 1.0})
        else:
            forks += answer.parent is not None
            observe(scheduler, answer.until, {answer.number: None})
    assert forks == 2


def test_where_all_fail_nothing_is_left_to_do():
    scheduler = pbt()
    start(scheduler, 4)
    observe(scheduler, 1, dict.fromkeys(range(4), None))
    assert isinstance(scheduler.next(), Done)
    scheduler.withdraw(2)
    assert isinstance(scheduler.next(), Wait)


def test_at_the_cap_members_go_on_to_the_end():
    scheduler = pbt(run_cap=5, population=5, quantile=0.4)
    fill(scheduler)
    assert [type(answer) for answer in scheduler.upcoming()] == [Run] * 5


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"quantile": 0.6}, "quantile"),
        ({"quantile": 0}, "quantile"),
        ({"interval": 10}, "interval: must be less than max_iter"),
        ({"max_iter": 1}, "max_iter: must be at least 2"),
        ({"population": 1}, "population"),
    ],
)
def test_settings_that_leave_nothing_to_judge_are_refused(wrong, key):
    with pytest.raises(InvalidKey, match=key):
        PBT(**{"max_iter": 10, **wrong})


def test_a_cap_below_the_population_is_refused():
    with pytest.raises(InvalidKey, match=r"run_cap: must be at least the 4 trials that pbt begins with, got 3"):
        sweep_of(early_terminate=PBT(6, 4, 2), method="pbt", run_cap=3)


@settings(deadline=None, max_examples=25)
@given(st.integers(0), st.integers(1, 6), st.integers(2, 6))
def test_lives_with_lost_workers_and_retries_replay(seed, workers, population):
    sweep = sweep_of(early_terminate=PBT(6, population, 2), method="pbt")
    Life(sweep, seed, workers, 0.3).run()
