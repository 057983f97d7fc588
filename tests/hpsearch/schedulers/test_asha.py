"""ASHA promotes whom Algorithm 2 of its paper promotes, whatever the order in which trials end."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.errors import SweepError
from hpsearch.events import Extended
from hpsearch.objective import Metric, Objective
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.run.simulate import simulate
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, Scheduler, Wait
from hpsearch.schedulers.brackets import hyperband_brackets
from hpsearch.space import Space, Uniform
from hpsearch.study.extension import extended
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Resources
from hpsearch.trial import TrialState
from tests.hpsearch.support.functions import simulated_backend
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.papers import jobs_of_both
from tests.hpsearch.support.scripted import sweep_of

NUMBERS = (0.0, -0.0, 1.0, 1.0, 2.0, 3.0, math.inf, -math.inf)
VALUES = (*NUMBERS, math.nan, None)


def asha(run_cap: int | None = None, max_iter: int = 9, eta: int = 3, brackets: int = 1) -> Scheduler:
    return ASHA(max_iter, 1, eta, brackets).scheduler(Objective(Metric("loss")), run_cap)


class Algorithm2:
    """The paper's `get_job` for one bracket, word by word: it sorts a whole rung whenever it is asked."""

    def __init__(self, ends: tuple[int, ...], eta: int, run_cap: int) -> None:
        self.ends, self.eta, self.run_cap = ends, eta, run_cap
        self.rungs: list[list[tuple[int, float]]] = [[] for _ in ends]
        self.promoted: list[set[int]] = [set() for _ in ends]
        self.created = 0

    def get_job(self) -> NewTrial | Run | None:
        for k in reversed(range(len(self.ends) - 1)):
            ended = sorted(
                self.rungs[k], key=lambda one: (math.isnan(one[1]), one[1] if one[1] == one[1] else 0, one[0])
            )
            candidates = ended[: len(ended) // self.eta]
            promotable = [t for t, value in candidates if t not in self.promoted[k] and not math.isnan(value)]
            if promotable:
                self.promoted[k].add(promotable[0])
                return Run(promotable[0], self.ends[k + 1], 0, k + 1)
        if self.created == self.run_cap:
            return None
        self.created += 1
        return NewTrial(self.created - 1, self.ends[0])


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(2, 4),
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(0, 2**32),
)
def test_the_jobs_are_those_of_algorithm_2_for_any_order_of_outcomes(longer, min_iter, eta, run_cap, workers, seed):
    given_ = ASHA(min_iter - 1 + longer, min_iter, eta)
    scheduler = given_.scheduler(Objective(Metric("loss")), run_cap)
    paper, chance = Algorithm2(given_.ends, eta, run_cap), random.Random(seed)
    for job, trial in jobs_of_both(scheduler, paper, workers, chance):
        value = chance.choice(VALUES)
        if value is not None:
            paper.rungs[job.rung].append((trial, value))
        scheduler.observe(Outcome(trial, job.until or 0, value))


def test_a_trial_that_falls_out_of_the_best_before_a_worker_is_free_is_not_promoted():
    scheduler = asha(eta=2)
    for _ in range(4):
        scheduler.next()
    scheduler.observe(Outcome(0, 1, 0.5))
    scheduler.observe(Outcome(1, 1, 0.6))
    assert next(scheduler.upcoming()) == Run(0, 2, 0, 1)
    scheduler.observe(Outcome(2, 1, 0.1))
    assert scheduler.next() == Run(2, 2, 0, 1)
    assert scheduler.next() == NewTrial(4, 1)
    scheduler.observe(Outcome(3, 1, 0.9))
    assert scheduler.next() == Run(0, 2, 0, 1)


def test_the_highest_rung_comes_first_and_of_it_the_best():
    scheduler = asha(eta=2, max_iter=4)
    for _ in range(6):
        scheduler.next()
    for trial, value in enumerate([4.0, 3.0, 2.0, 1.0]):
        scheduler.observe(Outcome(trial, 1, value))
    assert [scheduler.next(), scheduler.next()] == [Run(3, 2, 0, 1), Run(2, 2, 0, 1)]
    scheduler.observe(Outcome(2, 2, 1.0))
    scheduler.observe(Outcome(3, 2, 0.5))
    scheduler.observe(Outcome(4, 1, 0.95))
    scheduler.observe(Outcome(5, 1, 0.9))
    assert list(islice(scheduler.upcoming(), 4)) == [
        Run(3, 4, 0, 2),
        Run(5, 2, 0, 1),
        Run(4, 2, 0, 1),
        NewTrial(6, 1),
    ]


def test_what_waits_is_stopped_with_a_reason_when_nothing_is_left_to_come():
    scheduler = asha(4, eta=3, max_iter=3)
    for _ in range(4):
        scheduler.next()
    for trial, value in enumerate([0.3, math.nan, 0.1]):
        assert not scheduler.observe(Outcome(trial, 1, value))
    assert scheduler.next() == Run(2, 3, 0, 1)
    assert not scheduler.observe(Outcome(3, 1, 0.2))
    assert scheduler.observe(Outcome(2, 2, 0.1)) == [
        Decision(2, "complete", "last rung: ended by itself after 2 of 3 iterations"),
        Decision(3, "stop", "rung 0: 2nd of 4 at the end, top 1 goes on"),
        Decision(0, "stop", "rung 0: 3rd of 4 at the end, top 1 goes on"),
        Decision(1, "stop", "rung 0: NaN, which never goes on"),
    ]
    assert scheduler.next() == Done()


def test_a_searcher_that_is_exhausted_when_nothing_else_runs_ends_the_sweep():
    scheduler = asha(eta=3)
    scheduler.next()
    scheduler.observe(Outcome(0, 1, 0.1))
    assert scheduler.next() == NewTrial(1, 1)
    assert [decision.action for decision in scheduler.exhausted()] == ["stop"]
    assert scheduler.next() == Done()
    scheduler.extend(None, {})
    assert scheduler.next() == NewTrial(1, 1)


def test_failed_trials_do_not_count_and_nan_is_never_promoted():
    scheduler = asha(eta=2)
    for trial, value in enumerate([None, None, math.nan, math.nan, math.nan]):
        assert scheduler.next() == NewTrial(trial, 1)
        assert scheduler.observe(Outcome(trial, 1, value)) == ()
    assert scheduler.next() == NewTrial(5, 1)
    scheduler.observe(Outcome(5, 1, math.inf))
    assert scheduler.next() == Run(5, 2, 0, 1)


def test_a_failure_may_be_taken_back_at_any_time_also_after_the_end():
    scheduler = asha(3, eta=3, max_iter=3)
    for trial, value in enumerate([0.5, None, 0.7]):
        scheduler.next()
        decided = scheduler.observe(Outcome(trial, 1, value))
    assert [(decision.trial, decision.action) for decision in decided] == [(0, "stop"), (2, "stop")]
    assert scheduler.next() == Done()
    assert [scheduler.may_withdraw(trial) for trial in range(4)] == [False, True, False, False]
    scheduler.withdraw(1)
    assert scheduler.next() == Wait()
    scheduler.observe(Outcome(1, 1, 0.1))
    assert scheduler.next() == Run(1, 3, 0, 1)
    with pytest.raises(ValueError, match="trial 1 has not failed"):
        scheduler.withdraw(1)


def test_stopped_trials_keep_their_places_when_the_sweep_is_extended():
    scheduler = asha(2, eta=3, max_iter=3)
    for trial in (0, 1):
        scheduler.next()
        scheduler.observe(Outcome(trial, 1, 0.1 + trial))
    scheduler.extend(7, {})
    for trial in (2, 3, 4):
        assert scheduler.next() == NewTrial(trial, 1)
        scheduler.observe(Outcome(trial, 1, 0.5 + trial))
    # Of six the best two would go on: one of them was stopped, and the other one isn't trial 2.
    assert scheduler.next() == NewTrial(5, 1)
    scheduler.observe(Outcome(5, 1, 0.2))
    assert scheduler.next() == Run(5, 3, 0, 1)
    with pytest.raises(ValueError, match="`run_cap` is 7, got 6"):
        scheduler.extend(6, {})
    with pytest.raises(ValueError, match="only `run_cap` can be raised, got brackets"):
        scheduler.extend(None, {"brackets": 2})


@pytest.mark.parametrize("brackets", [1, 2, 3, 4])
def test_new_trials_are_dealt_out_to_brackets_in_hyperbands_proportion(brackets):
    scheduler = asha(max_iter=27, brackets=brackets)
    shares = [bracket.trials for bracket in hyperband_brackets(27)][:brackets]
    first = [answer for answer in islice(scheduler.upcoming(), 2 * sum(shares)) if isinstance(answer, NewTrial)]
    assert Counter(answer.bracket for answer in first) == {place: 2 * share for place, share in enumerate(shares)}
    assert {answer.bracket: answer.until for answer in first} == {place: 3**place for place in range(brackets)}
    for many in range(1, len(first)):  # never a whole trial off
        dealt = Counter(answer.bracket for answer in first[:many])
        assert all(abs(dealt[place] - many * share / sum(shares)) <= 1 for place, share in enumerate(shares))
    taken = [scheduler.next() for _ in first]
    assert taken == first


def test_more_brackets_than_rungs_are_refused():
    with pytest.raises(SweepError, match=r"brackets: must be at most the number of rungs, which are 3, got 4"):
        ASHA(9, 1, brackets=4)


def test_a_plan_without_a_bound_says_what_ends_it_and_what_would_count_it():
    text = plan_text(make_plan(sweep_of(early_terminate=ASHA(9)), 2))
    assert "trials       without end: they are created until it is stopped" in text
    assert "iterations   up to 9 each" in text
    assert "--set run_cap=100 shows what so many trials would run" in text
    grid = Space.from_parameters({"x": Uniform(0.0, 1.0, points=4)})
    counted = make_plan(sweep_of(early_terminate=ASHA(9), method="grid", parameters=grid), 2)
    assert counted.trials == 4
    assert "without end" not in plan_text(counted)


def test_a_plan_says_that_it_is_one_course_and_where_the_first_rung_ends():
    text = plan_text(make_plan(sweep_of(early_terminate=ASHA(81), run_cap=30), 4))
    assert "ASHA from 3 (min_iter, not given: max_iter / 3^3) to 81 iterations by 3" in text
    assert "bracket 0: 30 to iteration 3, then" in text
    assert "in one course of it" in text


def test_an_elastic_sweep_widens_the_last_trials():
    resources = Resources(workers=8, max_workers_per_trial=8)
    plan = make_plan(sweep_of(early_terminate=ASHA(27), run_cap=20, resources=resources), 8)
    assert plan.elastic is not None
    assert plan.elastic.makespan < plan.fixed.makespan
    assert max(max(widths) for widths in plan.elastic.widths.values()) > 1
    plan_text(plan)


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 12), st.integers(2, 4), st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.0, 0.4]))
def test_a_sweep_leaves_no_trial_waiting_and_goes_on_when_it_is_extended(max_iter, eta, seed, workers, trouble):
    sweep = sweep_of(early_terminate=ASHA(max_iter, 1, eta=eta), run_cap=7)
    life = Life(sweep, seed, workers, trouble).run()
    for cap in (9, 14):
        states = {row.state for row in life.sweep_state.rows()}
        assert states <= {TrialState.STOPPED, TrialState.COMPLETE, TrialState.FAILED}
        event = Extended(cap)
        life.take(event)
        life.sweep = extended(life.sweep, event)
        life.run()
        assert len(life.sweep_state.rows()) == cap
    replayed = SweepState(sweep)
    list(replayed.resume(life.entries))
    assert repr(replayed.rows()) == repr(life.sweep_state.rows())


@pytest.mark.exhaustive
@pytest.mark.parametrize("trials", [2_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_many_trials_on_a_tenth_as_many_workers(trials):
    # A call that looked at all trials would take far longer here than the time limit of the test.
    sweep = sweep_of(early_terminate=ASHA(81, 1), run_cap=trials)
    backend = simulated_backend(
        trials // 10,
        lambda trial, iteration: random.Random(trial.seed).random() + 1 / iteration,
        lambda trial, segment: ((segment.end or 1) - segment.start) * (1.0 + random.Random(trial.seed).random()),
        live=False,
    )
    state = simulate(sweep, backend)
    views = state.rungs()
    assert views[0].started == trials
    assert all(later.started >= before.finished // 3 for before, later in pairwise(views))
    assert state.counts()[TrialState.STOPPED] + state.counts()[TrialState.COMPLETE] == trials
