"""PASHA opens a rung when its paper's Algorithm 1 does, whatever the order in which trials end."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.objective import Metric, Objective
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.run.simulate import simulate
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, Scheduler, Wait
from hpsearch.schedulers.pasha import PASHA
from hpsearch.study.state import SweepState
from hpsearch.study.trial_records import SegmentReports
from hpsearch.sweep.parts import Limits
from hpsearch.trial import Report, TrialState
from tests.hpsearch.support.functions import simulated_backend
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.papers import jobs_of_both
from tests.hpsearch.support.scripted import sweep_of

VALUES = (0.0, -0.0, 0.125, 0.25, 1.0, 1.0, 1.5, 2.0, 3.0, math.inf, -math.inf, math.nan, None)


def pasha(run_cap: int | None = None, max_iter: int = 8, eta: int = 2, goal: str = "minimize") -> Scheduler:
    return PASHA(max_iter, 1, eta).scheduler(Objective(Metric("loss", goal)), run_cap)  # type: ignore[arg-type]


class Algorithm1:
    """The paper, word by word: whatever it asks, it works out anew from the values of all rungs."""

    def __init__(self, ends: tuple[int, ...], eta: int, run_cap: int) -> None:
        self.ends, self.eta, self.run_cap = ends, eta, run_cap
        self.values: list[dict[int, float]] = [{} for _ in ends]
        self.promoted: list[set[int]] = [set() for _ in ends]
        self.created = 0
        self.top = min(1, len(ends) - 1)
        self.epsilon = 0.0
        self.reports: dict[int, dict[int, float]] = {}

    def get_job(self) -> NewTrial | Run | None:
        for k in reversed(range(self.top)):
            ranked = self.ranked(k, set(self.values[k]))
            for trial in ranked[: len(ranked) // self.eta]:
                if trial not in self.promoted[k] and not math.isnan(self.values[k][trial]):
                    self.promoted[k].add(trial)
                    return Run(trial, self.ends[k + 1], 0, k + 1)
        if self.created == self.run_cap:
            return None
        self.created += 1
        return NewTrial(self.created - 1, self.ends[0])

    def ranked(self, rung: int, trials: set[int]) -> list[int]:
        values = self.values[rung]
        return sorted(trials, key=lambda t: (math.isnan(values[t]), 0 if math.isnan(values[t]) else values[t], t))

    def completed(self, rung: int, trial: int, value: float, reports: dict[int, float]) -> None:
        self.values[rung][trial] = value
        self.reports.setdefault(trial, {}).update(reports)
        if rung == self.top < len(self.ends) - 1:
            self.estimate_epsilon()
            if not self.consistent():
                self.top += 1

    def estimate_epsilon(self) -> None:
        distances = []
        for one, other in combinations(self.values[self.top], 2):
            first, second = self.reports[one], self.reports[other]
            both = [at for at in first if at in second and not math.isnan(first[at]) and not math.isnan(second[at])]
            both = (
                [at for at in both if first[at] != second[at]] if both and first[both[-1]] != second[both[-1]] else []
            )
            crossed_back = any(
                (first[at] < second[at]) != (first[both[-1]] < second[both[-1]])
                and any((first[a] < second[a]) == (first[both[-1]] < second[both[-1]]) for a in both if a < at)
                for at in both
            )
            if crossed_back and math.isfinite(first[both[-1]] - second[both[-1]]):
                distances.append(abs(first[both[-1]] - second[both[-1]]))
        if distances:
            self.epsilon = (
                statistics.quantiles(distances, n=10, method="inclusive")[8] if len(distances) > 1 else distances[0]
            )

    def consistent(self) -> bool:
        former, here = self.values[self.top - 1], self.values[self.top]
        before = self.ranked(self.top - 1, set(here))
        now = sorted(here, key=lambda t: (math.isnan(here[t]), 0 if math.isnan(here[t]) else here[t], former[t]))
        for trial, stood in zip(now, before, strict=True):
            group = {t for t in before if former[t] == former[stood] or abs(former[t] - former[stood]) <= self.epsilon}
            if trial not in group:
                return False
        return True


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 60),
    st.integers(1, 3),
    st.integers(2, 4),
    st.integers(1, 80),
    st.integers(1, 12),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_the_jobs_are_those_of_algorithm_1_for_any_order_of_outcomes(
    longer, min_iter, eta, run_cap, workers, seed, noise
):
    given_ = PASHA(min_iter + longer, min_iter, eta)
    scheduler = given_.scheduler(Objective(Metric("loss")), run_cap)
    paper, chance = Algorithm1(given_.ends, eta, run_cap), random.Random(seed)
    for job, trial in jobs_of_both(scheduler, paper, workers, chance):
        started = paper.ends[job.rung - 1] if job.rung else 0
        curve = {
            at: random.Random(f"{seed} {trial}").random() + chance.gauss(0.0, noise)
            for at in range(started + 1, (job.until or 0) + 1)
        }
        if chance.random() < 0.1:
            curve[chance.choice(list(curve))] = chance.choice(VALUES[:-1])
        value = None if chance.random() < 0.05 else curve[job.until or 0]
        if value is not None:
            paper.completed(job.rung, trial, value, curve)
        scheduler.observe(Outcome(trial, job.until or 0, value, reported(trial, curve)))
        assert [view.rung for view in scheduler.rungs()] == list(range(paper.top + 1))


def reported(trial: int, curve: dict[int, float]) -> tuple[Report, ...]:
    return tuple(Report(trial, at, {"loss": value}, 1.0) for at, value in curve.items())


def brought_to(scheduler: Scheduler, rung: int, values: dict[int, float]) -> None:
    """Let each of the trials that may start, and those alone, end with its value."""
    for _ in values:
        answer = scheduler.next()
        assert isinstance(answer, NewTrial | Run)
        assert answer.rung == rung
    for trial, value in values.items():
        scheduler.observe(Outcome(trial, 2**rung, value))


def test_the_next_rung_opens_when_the_two_highest_rank_the_same_trials_unlike():
    scheduler = pasha(4)
    brought_to(scheduler, 0, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    assert [scheduler.next(), scheduler.next(), scheduler.next()] == [Run(0, 2, 0, 1), Run(1, 2, 0, 1), Wait()]
    scheduler.observe(Outcome(0, 2, 0.5))
    assert scheduler.plan(0) == ((1, None), (2, None))
    assert scheduler.next() == Wait()
    scheduler.observe(Outcome(1, 2, 0.4))
    assert scheduler.plan(0) == ((1, None), (2, None), (4, None))
    assert [view.until for view in scheduler.rungs()] == [1, 2, 4]
    assert scheduler.next() == Run(1, 4, 0, 2)


def test_where_the_ranking_is_stable_nobody_goes_on_and_all_are_told_why_at_the_end():
    scheduler = pasha(4)
    brought_to(scheduler, 0, {0: 0.1, 1: 0.2, 2: 0.3, 3: math.nan})
    scheduler.next()
    scheduler.next()
    assert not scheduler.observe(Outcome(1, 2, 0.1))
    assert scheduler.observe(Outcome(0, 2, 0.05)) == [
        Decision(2, "stop", "rung 0: 3rd of 4 at the end, top 2 go on"),
        Decision(3, "stop", "rung 0: NaN, which never goes on"),
        Decision(0, "stop", "rung 1: 1st of 2 at the end, no rung was opened after it"),
        Decision(1, "stop", "rung 1: 2nd of 2 at the end, no rung was opened after it"),
    ]
    assert scheduler.next() == Done()


@pytest.mark.parametrize(("first", "apart", "rungs"), [(0.6, 0.05, 2), (0.6, 0.02, 3), (0.45, 0.05, 3)])
def test_curves_that_cross_and_cross_back_say_how_near_values_count_as_equal(first, apart, rungs):
    scheduler = PASHA(8, 2, 2).scheduler(Objective(Metric("loss")), 4)
    curves = {0: [0.5, 0.53], 1: [first, 0.5], 2: [0.7, 0.7], 3: [0.8, 0.8]}
    for trial in curves:
        assert scheduler.next() == NewTrial(trial, 2)
    for trial, curve in curves.items():
        scheduler.observe(Outcome(trial, 2, curve[-1], reported(trial, dict(enumerate(curve, 1)))))
    assert [scheduler.next(), scheduler.next()] == [Run(1, 4, 0, 1), Run(0, 4, 0, 1)]
    for trial, value in ((0, 0.4), (1, 0.4 + apart)):  # 0.03 apart in the rung before, the other way round
        scheduler.observe(Outcome(trial, 4, value, reported(trial, {3: 0.45, 4: value})))
    assert len(scheduler.rungs()) == rungs


def test_a_nan_that_is_reported_in_place_of_a_number_leaves_no_crossing_behind():
    """Trials 0 and 1 cross and cross back; once 1 begins anew with NaN they do not, and change places."""
    for anew, rungs in ((), 2), (((1, 0.2), (2, math.nan)), 3):
        scheduler = PASHA(18, 2, 3).scheduler(Objective(Metric("loss")), 6)
        curves = {0: [0.3, 0.1], 1: [0.2, 0.11]} | {t: [0.9, 0.9] for t in range(2, 6)}
        for _ in curves:
            scheduler.next()
        for trial, curve in curves.items():
            scheduler.observe(Outcome(trial, 2, curve[-1], reported(trial, dict(enumerate(curve, 1)))))
        assert [scheduler.next(), scheduler.next()] == [Run(0, 6, 0, 1), Run(1, 6, 0, 1)]
        scheduler.observe(Outcome(0, 6, 0.06, reported(0, {6: 0.06})))
        scheduler.observe(Outcome(1, 6, 0.05, reported(1, dict(anew) | {6: 0.05})))
        assert len(scheduler.rungs()) == rungs


@settings(deadline=None, max_examples=25)
@given(st.integers(4, 12), st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.2, 0.6]), st.booleans())
def test_an_outcome_has_all_reports_of_its_segment_however_often_that_was_cut_saved_or_lost(
    max_iter, seed, workers, trouble, saves
):
    sweep = sweep_of(early_terminate=PASHA(max_iter, 2), run_cap=9)
    life = Life(sweep, seed, workers, trouble, saves)
    scheduler, observe = life.sweep_state._scheduler, life.sweep_state._scheduler.observe
    before: dict[int, int] = {}

    def observed(outcome: Outcome) -> Sequence[Decision]:
        if outcome.value is not None:
            iterations = [report.iteration for report in outcome.reports]
            assert iterations == sorted(set(iterations))
            assert set(range(before.get(outcome.trial, 0) + 1, outcome.iteration + 1)) <= set(iterations)
            before[outcome.trial] = outcome.iteration
        return observe(outcome)

    scheduler.observe = observed  # type: ignore[method-assign]
    life.run()
    replayed = SweepState(sweep)
    list(replayed.resume(life.entries))
    assert repr(replayed.rows()) == repr(life.sweep_state.rows())
    assert replayed.rungs() == life.sweep_state.rungs()


def test_reports_of_iterations_that_were_run_again_take_the_place_of_the_former():
    reports = SegmentReports()
    reports.add(3, [Report(3, at, {"loss": 1.0}, 0.1) for at in (4, 5, 6)])
    reports.add(3, [Report(3, at, {"loss": 2.0}, 0.1) for at in (2, 5)])
    assert [(report.iteration, report.metrics["loss"]) for report in reports.take(3, 5)] == [
        (2, 2.0),
        (4, 1.0),
        (5, 2.0),
    ]
    assert reports.take(3, 6) == ()


@pytest.mark.parametrize(("before", "after"), [((0.2, 0.1), (0.3, 0.3)), ((0.1, 0.1), (0.3, 0.2))])
def test_equal_values_rank_as_either_way(before, after):
    scheduler = pasha(4)
    brought_to(scheduler, 0, {0: before[0], 1: before[1], 2: 0.7, 3: 0.8})
    answers = [scheduler.next(), scheduler.next()]
    for answer in answers:
        assert isinstance(answer, Run)
        scheduler.observe(Outcome(answer.trial, 2, after[answer.trial]))
    assert len(scheduler.rungs()) == 2


def test_a_nan_counts_as_the_worst_and_infinities_say_nothing_of_noise():
    scheduler = pasha(8, max_iter=16)
    brought_to(scheduler, 0, {t: t / 10 for t in range(8)})
    brought_to(scheduler, 1, {0: math.nan, 1: -math.inf, 2: 0.2, 3: 0.3})
    assert len(scheduler.rungs()) == 3
    for _ in range(2):
        scheduler.next()
    scheduler.observe(Outcome(1, 4, math.inf))
    scheduler.observe(Outcome(2, 4, -math.inf))
    assert len(scheduler.rungs()) == 4


def test_the_goal_reaches_the_ranking_of_rungs():
    for goal, rungs in (("minimize", 2), ("maximize", 3)):
        sign = 1 if goal == "minimize" else -1
        scheduler = pasha(4, goal=goal)
        brought_to(scheduler, 0, {t: sign * t for t in range(4)})
        brought_to(scheduler, 1, {0: 1.0, 1: 2.0})
        assert len(scheduler.rungs()) == rungs


def test_a_rung_that_opens_after_the_end_takes_those_that_come_by_an_extension():
    scheduler = pasha(4)
    brought_to(scheduler, 0, {t: t / 10 for t in range(4)})
    brought_to(scheduler, 1, {0: 0.0, 1: 0.1})
    assert scheduler.next() == Done()
    scheduler.extend(8, {})
    brought_to(scheduler, 0, {4: -0.1, 5: -0.2, 6: 0.8, 7: 0.9})
    brought_to(scheduler, 1, {5: 0.05, 4: 0.07})  # between those that were stopped: 0 was third, and is first
    assert len(scheduler.rungs()) == 3
    assert scheduler.next() == Run(5, 4, 0, 2)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 2))
def test_with_two_rungs_or_one_it_is_asha(seed, workers, rungs):
    kinds = [kind(3**rungs, 3).scheduler(Objective(Metric("loss")), 20) for kind in (PASHA, ASHA)]
    chance = random.Random(seed)
    running: list[NewTrial | Run] = []
    while True:
        while len(running) < workers:
            answer, other = (scheduler.next() for scheduler in kinds)
            assert answer == other
            if isinstance(answer, Wait | Done):
                break
            running.append(answer)
        if not running:
            break
        job = running.pop(chance.randrange(len(running)))
        outcome = Outcome(job.number if isinstance(job, NewTrial) else job.trial, job.until or 0, chance.random())
        decided, decided_too = (scheduler.observe(outcome) for scheduler in kinds)
        assert decided == decided_too


def test_a_plan_without_a_bound_says_what_ends_it_and_what_would_count_it():
    text = plan_text(make_plan(sweep_of(early_terminate=PASHA(9)), 2))
    assert "trials       without end: they are created until it is stopped" in text
    assert "--set run_cap=100 shows what so many trials would run" in text
    timed = plan_text(make_plan(sweep_of(early_terminate=PASHA(9), limits=Limits(max_time=60)), 2))
    assert "until limits.max_time is used up" in timed


def test_a_plan_says_that_its_end_is_the_most():
    text = plan_text(make_plan(sweep_of(early_terminate=PASHA(81), run_cap=30), 4))
    assert "PASHA from 3 (min_iter, not given: max_iter / 3^3) to 81 iterations by 3 at most" in text
    assert "bracket 0: 30 to iteration 3, then" in text
    assert "in its shortest course: more rungs open where values rank trials unlike" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("trials", [1_500, pytest.param(3_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_many_trials_on_a_tenth_as_many_workers(noise, trials):
    # A call that compared all pairs of a rung anew would take far longer here than the time limit of the test.
    sweep = sweep_of(early_terminate=PASHA(81, 1), run_cap=trials)

    def value(trial, iteration):
        return random.Random(trial.seed).random() + noise * random.Random(f"{trial.seed} {iteration}").random()

    state = simulate(sweep, simulated_backend(trials // 10, value, lambda trial, segment: 1.0, live=False))
    assert state.rungs()[0].started == trials
    assert len(state.rungs()) == (2 if noise == 0 else 5)
    assert {row.state for row in state.rows()} <= {TrialState.STOPPED, TrialState.COMPLETE}
