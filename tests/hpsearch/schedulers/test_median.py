"""The median stopping rule stops whom the rule as written stops, whatever the order in which trials come."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.errors import SweepError
from hpsearch.objective import Metric, Objective
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, Scheduler, Wait
from hpsearch.schedulers.median import MedianStopping
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Resources
from hpsearch.trial import TrialState
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.scripted import sweep_of

VALUES = (0.0, -0.0, 1.0, 1.0, 2.0, 3.0, math.inf, -math.inf, math.nan, None)


def scheduler_of(early: MedianStopping, run_cap: int | None = None, goal: str = "minimize") -> Scheduler:
    return early.scheduler(Objective(Metric("loss", goal)), run_cap)  # type: ignore[arg-type]


def rule(shown: dict[int, list[float]], before: list[int], trial: int, least: int) -> bool:
    """Say by the rule's words whether a trial is stopped: `shown` are all trials' values at the looks so far."""
    look = len(shown[trial])
    averages = []
    for other in before:
        numbers = [value for value in shown[other][:look] if not math.isnan(value)]
        if numbers and not math.isnan(sum(numbers)):
            averages.append(sum(numbers) / len(numbers))
    if len(averages) < least:
        return False
    numbers = [value for value in shown[trial] if not math.isnan(value)]
    return not numbers or min(numbers) > median(averages)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(1, 3) | st.none(),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_trial_is_stopped_where_the_rule_says_so(longer, min_iter, every, least, run_cap, workers, maximize, seed):
    early = MedianStopping(min_iter - 1 + longer, min_iter, every, least)
    scheduler = scheduler_of(early, run_cap, "maximize" if maximize else "minimize")
    chance, sign = random.Random(seed), -1 if maximize else 1
    shown: dict[int, list[float]] = {}
    here: dict[int, list[int]] = {until: [] for until in early.looks}
    running: list[tuple[int, int]] = []
    over: set[int] = set()
    while True:
        while len(running) < workers and isinstance(answer := scheduler.next(), NewTrial | Run):
            trial = answer.number if isinstance(answer, NewTrial) else answer.trial
            assert trial not in over
            running.append((trial, answer.until or 0))
        if not running:
            break
        trial, until = running.pop(chance.randrange(len(running)))
        value = chance.choice(VALUES)
        decisions = scheduler.observe(Outcome(trial, until, None if value is None else sign * value))
        if value is None:
            assert not decisions
            over.add(trial)
            continue
        shown.setdefault(trial, []).append(value)
        if until == early.max_iter:
            wanted = "complete"
        else:
            wanted = "stop" if rule(shown, here[until], trial, least) else "promote"
            here[until].append(trial)
        assert [(decision.trial, decision.action) for decision in decisions] == [(trial, wanted)]
        if wanted != "promote":
            over.add(trial)
    assert over == set(range(run_cap))


def test_a_trial_worse_than_the_median_of_the_others_averages_is_stopped_with_a_reason():
    scheduler = scheduler_of(MedianStopping(9, 1, 4, min_trials=2), goal="maximize")
    for trial in range(4):
        assert scheduler.next() == NewTrial(trial, 1)
    assert scheduler.observe(Outcome(0, 1, 0.8)) == (
        Decision(0, "promote", "iteration 1: 0 others were here, 2 must have been"),
    )
    assert scheduler.next() == Run(0, 5, 0, 1)
    scheduler.observe(Outcome(1, 1, 0.6))
    assert scheduler.observe(Outcome(2, 1, 0.7)) == (
        Decision(2, "promote", "iteration 1: 0.7 at best is no worse than 0.7, the median of 2 others' averages"),
    )
    assert scheduler.observe(Outcome(3, 1, 0.5)) == (
        Decision(3, "stop", "iteration 1: 0.5 at best is worse than 0.7, the median of 3 others' averages"),
    )
    assert scheduler.next() == Run(1, 5, 0, 1)


def test_the_first_look_and_the_steps_follow_from_max_iter():
    assert MedianStopping(100).looks == tuple(range(10, 101, 10))
    assert MedianStopping(27).looks == (3, 6, 9, 12, 15, 18, 21, 24, 27)
    assert MedianStopping(5).looks == (1, 2, 3, 4, 5)
    assert MedianStopping(10, 4).looks == (4, 8, 10)
    assert MedianStopping(10, 4, 3).looks == (4, 7, 10)
    assert MedianStopping(4, 4).looks == (4,)
    assert MedianStopping(27).summary() == (
        "median stopping from 3 (min_iter, not given: max_iter / 10) to 27 iterations"
    )
    with pytest.raises(SweepError, match=r"min_iter: must be at most max_iter \(4\), got 5"):
        MedianStopping(4, 5)


def test_a_trial_that_has_shown_only_nan_is_stopped_and_counts_in_no_median():
    scheduler = scheduler_of(MedianStopping(3, 1, min_trials=1))
    for _ in range(4):
        scheduler.next()
    assert [d.action for d in scheduler.observe(Outcome(0, 1, math.nan))] == ["promote"]
    assert [d.action for d in scheduler.observe(Outcome(1, 1, 2.0))] == ["promote"]
    (decision,) = scheduler.observe(Outcome(2, 1, math.nan))
    assert decision == Decision(2, "stop", "iteration 1: NaN, against 2, the median of 1 others' averages")


def test_a_trial_that_ended_by_itself_is_complete():
    scheduler = scheduler_of(MedianStopping(9, 3), run_cap=1)
    scheduler.next()
    assert scheduler.observe(Outcome(0, 2, 0.5)) == (
        Decision(0, "complete", "ended by itself after 2 of 9 iterations"),
    )
    assert scheduler.total() == (1, 2)
    assert scheduler.next() == Done()


def test_the_total_is_a_bound_that_comes_true():
    scheduler = scheduler_of(MedianStopping(4, 2, min_trials=1), run_cap=2)
    assert scheduler.total() == (2, 8)
    scheduler.next()
    scheduler.observe(Outcome(0, 2, 0.1))
    scheduler.next()
    scheduler.observe(Outcome(0, 4, 0.1))
    scheduler.next()
    scheduler.observe(Outcome(1, 2, 0.2))
    assert scheduler.total() == (2, 6)
    scheduler.extend(3, {})
    assert scheduler.total() == (3, 10)


def test_a_failure_is_taken_back_and_the_trial_judged_as_if_nothing_had_been():
    scheduler = scheduler_of(MedianStopping(4, 2), run_cap=1)
    scheduler.next()
    scheduler.observe(Outcome(0, 2, 0.1))
    scheduler.next()
    assert not scheduler.observe(Outcome(0, 2, None))
    assert scheduler.next() == Done()
    scheduler.withdraw(0)
    assert scheduler.next() == Wait()
    assert [d.action for d in scheduler.observe(Outcome(0, 4, 0.1))] == ["complete"]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 12), st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.0, 0.4]))
def test_a_sweep_ends_with_every_trial_decided_and_replays(max_iter, seed, workers, trouble):
    sweep = sweep_of(early_terminate=MedianStopping(max_iter, min_trials=2), run_cap=9)
    life = Life(sweep, seed, workers, trouble).run()
    rows = life.sweep_state.rows()
    assert {row.state for row in rows} <= {TrialState.STOPPED, TrialState.COMPLETE, TrialState.FAILED}
    replayed = SweepState(sweep)
    list(replayed.resume(life.entries))
    assert repr(replayed.rows()) == repr(rows)


def test_a_plan_may_be_elastic():
    resources = Resources(workers=4, max_workers_per_trial=4)
    plan = make_plan(sweep_of(early_terminate=MedianStopping(20), run_cap=9, resources=resources), 4)
    assert plan.trials == 9
    assert "median stopping from 2" in plan_text(plan)
