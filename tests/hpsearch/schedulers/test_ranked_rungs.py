"""Rungs and brackets of several goals and constraints, against ones that rank all anew whenever they are asked."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.objective import Metric, Objective, OutcomeConstraint, is_valid
from hpsearch.schedulers.asha import ASHA, RankedRung, SortedRung, running_rung
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, Scheduler, Wait
from hpsearch.schedulers.brackets import hyperband_brackets
from hpsearch.schedulers.halving import BracketScheduler, Hyperband
from hpsearch.trial import JointScore, Score
from tests.hpsearch.support.papers import jobs_of_both

TWO = (Metric("accuracy", "maximize"), Metric("latency"))
BOUND = (OutcomeConstraint.parse("bytes <= 1"),)

OBJECTIVES = st.sampled_from(
    [
        Objective(TWO),
        Objective(TWO, BOUND),
        Objective((*TWO, Metric("loss")), BOUND),
        Objective(TWO[0], BOUND),
        Objective(TWO[1]),
    ]
)

VALUES = (0.0, -0.0, 1.0, 2.0, 3.0, 5.0, math.inf, -math.inf)


def drawn(objective: Objective, chance: random.Random) -> Score:
    """Draw what a trial that hasn't failed is worth: some are NaN, and where there is a constraint some break it."""
    if chance.random() < 0.1:
        return math.nan
    metrics = {name: chance.choice(VALUES) for name in objective.names}
    if chance.random() < 0.1:
        metrics[chance.choice(objective.names)] = math.nan
    score = objective.reported(metrics)
    assert score is not None
    return score


class SlowRung:
    """A rung that knows nothing but who came with what and whose lot is settled."""

    def __init__(self, eta: int, objective: Objective) -> None:
        self.eta, self.objective = eta, objective
        self.scores: dict[int, Score | None] = {}
        self.settled: set[int] = set()

    @property
    def top(self) -> int:
        return len(self.scores) // self.eta

    def promotable(self) -> list[int]:
        best = self.objective.rank(self.scores)[: self.top]
        return [trial for trial in best if is_valid(self.scores[trial]) and trial not in self.settled]

    def stop(self) -> list[tuple[int, int, int, bool]]:
        ranked = self.objective.rank(self.scores)
        stopped = [
            (trial, place + 1, len(ranked), not is_valid(self.scores[trial]))
            for place, trial in enumerate(ranked)
            if trial not in self.settled
        ]
        self.settled |= set(ranked)
        return stopped


def test_several_goals_have_a_rung_of_their_own():
    assert isinstance(running_rung(3, Objective(TWO)), RankedRung)
    assert isinstance(running_rung(3, Objective(TWO[0], BOUND)), SortedRung)


@settings(deadline=None)
@given(OBJECTIVES, st.integers(2, 4), st.integers(0, 60), st.integers(0, 2**32))
def test_a_rung_is_one_that_is_ranked_anew_at_each_question(objective, eta, steps, seed):
    chance = random.Random(seed)
    rung, slow = running_rung(eta, objective), SlowRung(eta, objective)
    numbers = chance.sample(range(200), steps)  # trials end in any order
    for trial in numbers:
        score = drawn(objective, chance)
        rung.add(score, trial)
        slow.scores[trial] = score
        while True:
            assert len(rung) == len(slow.scores)
            assert rung.top == slow.top
            promotable = slow.promotable()
            assert list(rung.promotable()) == promotable
            assert len(promotable) <= slow.top
            if not promotable or chance.random() < 0.5:
                break
            rung.promote()
            slow.settled.add(promotable[0])
        if chance.random() < 0.03:
            assert list(rung.stop()) == slow.stop()
    assert list(rung.stop()) == slow.stop()
    assert list(rung.stop()) == []
    assert list(rung.promotable()) == []


class SlowHalving:
    """Asynchronous halving over several goals in one bracket, that ranks a whole rung whenever it is asked."""

    def __init__(self, ends: tuple[int, ...], eta: int, objective: Objective, run_cap: int) -> None:
        self.ends, self.run_cap = ends, run_cap
        self.rungs = [SlowRung(eta, objective) for _ in ends]
        self.created = 0

    def get_job(self) -> NewTrial | Run | None:
        for rung in reversed(range(len(self.ends) - 1)):
            for trial in self.rungs[rung].promotable():
                self.rungs[rung].settled.add(trial)
                return Run(trial, self.ends[rung + 1], 0, rung + 1)
        if self.created >= self.run_cap:
            return None
        self.created += 1
        return NewTrial(self.created - 1, self.ends[0])


@settings(deadline=None)
@given(OBJECTIVES, st.integers(1, 30), st.integers(2, 4), st.integers(1, 50), st.integers(1, 12), st.integers(0, 2**32))
def test_whoever_is_among_the_best_by_fronts_is_promoted_whatever_the_order_of_outcomes(
    objective, max_iter, eta, run_cap, workers, seed
):
    asked = ASHA(max_iter, 1, eta)
    scheduler = asked.scheduler(objective, run_cap)
    slow, chance = SlowHalving(asked.ends, eta, objective, run_cap), random.Random(seed)
    failed: list[int] = []
    stopped: set[int] = set()
    for job, trial in jobs_of_both(scheduler, slow, workers, chance):
        score = None if chance.random() < 0.1 else drawn(objective, chance)
        decided = scheduler.observe(Outcome(trial, job.until or 0, score))
        if score is None:
            failed.append(trial)
        else:
            slow.rungs[job.rung].scores[trial] = score
        ran = [trial] if score is not None and job.rung == len(asked.ends) - 1 else []
        assert [d.trial for d in decided if d.action == "complete"] == ran
        assert {d.action for d in decided} <= {"complete", "stop"}
        stopped |= {decision.trial for decision in decided}
    waited = set(range(slow.created)) - set(failed)
    assert stopped == waited
    assert all(scheduler.may_withdraw(trial) for trial in failed)


@settings(deadline=None)
@given(OBJECTIVES, st.integers(2, 9), st.integers(2, 3), st.integers(1, 20), st.integers(0, 2**32))
def test_what_failed_is_taken_back_and_what_was_stopped_keeps_its_place_when_more_come(
    objective, max_iter, eta, run_cap, seed
):
    chance = random.Random(seed)
    asked = ASHA(max_iter, 1, eta)
    scheduler, slow = asked.scheduler(objective, run_cap), SlowHalving(asked.ends, eta, objective, run_cap)
    failed: dict[int, NewTrial | Run] = {}
    for more in (0, 0, 5, 0, 7):
        if more:
            slow.run_cap += more
            scheduler.extend(slow.run_cap, {})
        elif failed:
            trial = chance.choice(sorted(failed))
            job = failed.pop(trial)
            scheduler.withdraw(trial)
            end(scheduler, slow, job, trial, drawn(objective, chance))
        for job, trial in jobs_of_both(scheduler, slow, 4, chance):
            if chance.random() < 0.2:
                scheduler.observe(Outcome(trial, job.until or 0, None))
                settle_at_the_end(scheduler, slow)
                failed[trial] = job
            else:
                end(scheduler, slow, job, trial, drawn(objective, chance))
        assert scheduler.next() == Done()


@settings(deadline=None)
@given(OBJECTIVES, st.integers(3, 30), st.integers(2, 3), st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32))
def test_each_of_several_brackets_promotes_its_own_best_and_nothing_new_begins_while_one_may_go_on(
    objective, max_iter, eta, run_cap, workers, seed
):
    chance = random.Random(seed)
    asked = ASHA(max_iter, 1, eta, brackets=2)
    scheduler = asked.scheduler(objective, run_cap)
    rungs: dict[tuple[int, int], SlowRung] = defaultdict(lambda: SlowRung(eta, objective))
    running: list[NewTrial | Run] = []
    while not isinstance(answer := scheduler.next() if len(running) < workers else Wait(), Done):
        able = {place: slow.promotable() for place, slow in rungs.items() if slow.promotable()}
        if isinstance(answer, Wait):
            assert not able or len(running) == workers
            job = running.pop(chance.randrange(len(running)))
            score = drawn(objective, chance)
            scheduler.observe(Outcome(job.number if isinstance(job, NewTrial) else job.trial, job.until or 0, score))
            if job.until != max_iter:
                rungs[job.bracket, job.rung].scores[job.number if isinstance(job, NewTrial) else job.trial] = score
            continue
        running.append(answer)
        if isinstance(answer, NewTrial):
            assert not able
            continue
        place = answer.bracket, answer.rung - 1
        assert able[place][0] == answer.trial
        rungs[place].settled.add(answer.trial)
        further = [asked.ends[bracket + rung + 1] for bracket, rung in able]
        assert answer.until == max(further)
    assert not any(slow.promotable() for slow in rungs.values())
    assert not running


def end(scheduler: Scheduler, slow: SlowHalving, job: NewTrial | Run, trial: int, score: Score) -> None:
    scheduler.observe(Outcome(trial, job.until or 0, score))
    slow.rungs[job.rung].scores[trial] = score
    settle_at_the_end(scheduler, slow)


def settle_at_the_end(scheduler: Scheduler, slow: SlowHalving) -> None:
    """What waits is stopped where nothing runs, may go on or is to come."""
    promotable = any(rung.promotable() for rung in slow.rungs[:-1])
    if not scheduler.busy and not promotable and slow.created == slow.run_cap:
        for rung in slow.rungs[:-1]:
            rung.stop()


def test_a_searcher_that_is_exhausted_ends_what_waits_by_its_places():
    scheduler = ASHA(9, 1, 3).scheduler(Objective(TWO, BOUND), None)
    objective = Objective(TWO, BOUND)
    told = [(0.5, 5.0, 0.0), (0.9, 9.0, 0.0), (0.4, 6.0, 0.0), (0.99, 0.1, 3.0), (0.99, 0.1, 2.0)]
    for trial, (accuracy, latency, size) in enumerate(told):
        answer = scheduler.next()
        while isinstance(answer, Run):  # the best so far, which then fails
            scheduler.observe(Outcome(answer.trial, 3, None))
            answer = scheduler.next()
        assert answer == NewTrial(trial, 1)
        score = objective.reported({"accuracy": accuracy, "latency": latency, "bytes": size})
        scheduler.observe(Outcome(trial, 1, score))
    assert scheduler.next() == NewTrial(5, 1)
    reasons = {decision.trial: decision.reason for decision in scheduler.exhausted()}
    # Trial 0 went on after three had ended, being the first of a front of two that are both at its ends.
    assert reasons == {
        1: "rung 0: 2nd of 5 at the end, top 1 goes on",
        2: "rung 0: 3rd of 5 at the end, top 1 goes on",
        4: "rung 0: 4th of 5 at the end, top 1 goes on",
        3: "rung 0: 5th of 5 at the end, top 1 goes on",
    }
    assert scheduler.next() == Done()


@settings(deadline=None)
@given(OBJECTIVES, st.integers(2, 27), st.integers(2, 3), st.integers(1, 40) | st.none(), st.integers(0, 2**32))
def test_a_bracket_promotes_the_first_by_rank_of_each_rung_that_is_whole(objective, max_iter, eta, run_cap, seed):
    """Outcomes come in any order; a failure may be taken back until its rung is decided."""
    chance = random.Random(seed)
    scheduler = Hyperband(max_iter, eta=eta).scheduler(objective, run_cap)
    assert isinstance(scheduler, BracketScheduler)
    running: list[NewTrial | Run] = []
    outcomes: dict[tuple[int, int], dict[int, Score | None]] = defaultdict(dict)
    while True:
        answer = scheduler.next() if len(running) < 5 else Wait()
        if isinstance(answer, NewTrial | Run):
            running.append(answer)
            continue
        if isinstance(answer, Done):
            break
        job = running.pop(chance.randrange(len(running)))
        trial = job.number if isinstance(job, NewTrial) else job.trial
        score = None if chance.random() < 0.15 else drawn(objective, chance)
        known = outcomes[job.bracket, job.rung]
        known[trial] = score
        decided = scheduler.observe(Outcome(trial, job.until or 0, score))
        if score is None and not decided and scheduler.may_withdraw(trial) and chance.random() < 0.5:
            scheduler.withdraw(trial)
            score = known[trial] = drawn(objective, chance)
            decided = scheduler.observe(Outcome(trial, job.until or 0, score))
        plan = scheduler.plan(job.bracket)
        if job.rung == len(plan) - 1:
            assert [d.trial for d in decided] == ([] if score is None else [trial])
            continue
        if not decided:
            continue
        ranked = [trial for trial in objective.rank(known) if known[trial] is not None]
        assert [d.trial for d in decided] == ranked
        size = plan[job.rung + 1][1]
        assert size is not None
        first = [d.trial for d in decided if d.action == "promote"]
        assert first == ranked[:size]
        numbers = [t for t in ranked if is_valid(known[t])]
        assert len(first) <= len(numbers) or set(numbers) <= set(first)  # NaN only where numbers don't fill it
        ahead = [t for t in first if not objective.is_feasible(known[t])]
        assert not ahead or all(t in first for t in ranked if objective.is_feasible(known[t]))
    assert len(outcomes) >= 1


@pytest.mark.parametrize("several", [True, False])
def test_a_bracket_that_is_extended_begins_the_next_one_with_the_same_rule(several):
    objective = Objective(TWO, BOUND) if several else Objective(TWO[0], BOUND)
    scheduler = BracketScheduler(hyperband_brackets(3), 3, objective, brackets=1)
    for _ in range(2):
        started = [scheduler.next() for _ in range(3)]
        scores = [(0.5, 1.0, 0.0), (0.9, 9.0, 2.0), (0.6, 0.5, 1.0)]
        for answer, (accuracy, latency, size) in zip(started, scores, strict=True):
            assert isinstance(answer, NewTrial)
            score = objective.reported({"accuracy": accuracy, "latency": latency, "bytes": size})
            decided = scheduler.observe(Outcome(answer.number, 1, score))
        assert [(d.trial - started[0].number, d.action) for d in decided] == [  # type: ignore[union-attr]
            (2, "promote"),
            (0, "stop"),
            (1, "stop"),
        ]
        last = scheduler.next()
        assert isinstance(last, Run)
        assert isinstance(objective.reported({"accuracy": 0.1, "latency": 0.1, "bytes": 0.0}), JointScore)
        scheduler.observe(Outcome(last.trial, 3, JointScore((0.1,) * len(objective.goals), (0.0,))))
        if last.trial == 2:
            assert scheduler.next() == Done()
            scheduler.extend(None, {"brackets": 3})
            for number in (3, 4):  # the second bracket of a round, whose trials run to the end at once
                assert scheduler.next() == NewTrial(number, 3, 1)
                scheduler.observe(Outcome(number, 3, math.nan))
