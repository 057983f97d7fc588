"""Studies of several goals and of constraints: who leads, whose checkpoints stay, and when it is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.events import Event, Failed, Finished, Lost, Retried, Reverted, Saved, Started
from hpsearch.objective import Metric, Objective
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.stopping import Patience, StoppingCriteria, Target
from hpsearch.study.trial_records import owner_of
from hpsearch.sweep.parts import Limits
from hpsearch.trial import Failure, JointScore, Report, Score, Segment, TrialRow, TrialState
from tests.hpsearch.support.lives import Life, sweeps
from tests.hpsearch.support.scripted import sweep_of

INF, NAN = math.inf, math.nan
ENDED = {TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED}
MOST = 3


def kept(score: Score) -> bool:
    """Say whether a score keeps all constraints."""
    return not isinstance(score, JointScore) or all(excess <= 0 for excess in score.excesses)


def order(objective: Objective, score: Score) -> tuple[float, ...]:
    """Return a sort key for scores of one goal and those that break constraints: less is better."""
    assert isinstance(score, JointScore)
    if not kept(score):
        return 1, sum(excess for excess in score.excesses if excess > 0)
    (value,) = signed(objective, score)
    return 0, value


def signed(objective: Objective, score: Score) -> list[float]:
    assert isinstance(score, JointScore)
    return [v if goal.goal == "minimize" else -v for goal, v in zip(objective.goals, score.values, strict=True)]


def as_good(objective: Objective, one: Score, other: Score) -> bool:
    """Say whether a score is as good as another, or better: of several goals in all of them."""
    if len(objective.goals) > 1 and kept(one) and kept(other):
        return all(a <= b for a, b in zip(signed(objective, one), signed(objective, other), strict=True))
    if len(objective.goals) > 1 and kept(one) != kept(other):
        return kept(one)
    return order(objective, one) <= order(objective, other)


def front_of(objective: Objective, rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the non-dominated rows, by comparing each with each."""
    scores = {row.number: row.score for row in rows if row.score is not None}

    def beaten(score: Score) -> bool:
        return any(as_good(objective, o, score) and not as_good(objective, score, o) for o in scores.values())

    best = [row for row in rows if row.score is not None and not beaten(row.score)]
    several = len(objective.goals) > 1 and any(row.score is not None and kept(row.score) for row in best)
    return best if several else best[:1]


@dataclass
class Watched(Life):
    """A life of trials of any width, that keeps what each of them has said and does still count."""

    said: dict[int, list[Report]] = field(default_factory=dict)
    sound: dict[int, list[Report]] = field(default_factory=dict)
    """Of trials that failed, what counts where they run again."""
    stood: dict[int, list[Report]] = field(default_factory=dict)
    """Of trials that were widened, what counts where they are taken back."""

    def take(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Started) and self.sweep.resources.max_workers_per_trial:
            width = self.chance.randint(1, self.sweep_state.records.widest(event.segment.trial) or MOST)
            event = replace(event, segment=replace(event.segment, width=width), reason="as it happened")
        decisions = super().take(event)
        if isinstance(event, Started):
            trial = event.segment.trial
            said = self.said.setdefault(trial, [])
            if self.sweep_state.record(trial).rollback_point is not None:
                self.stood.setdefault(trial, list(said))
        if isinstance(event, Saved | Finished | Failed):
            said = self.said[event.trial]
            if isinstance(event, Failed) and not event.retry:
                self.sound[event.trial] = list(said)
            last = said[-1].iteration if said else 0
            said += [report for report in event.reports if report.iteration >= last]
        if isinstance(event, Reverted):
            self.said[event.trial] = self.stood[event.trial]
        if any(decision.action == "withdraw" for decision in decisions):
            assert isinstance(event, Retried)
            self.said[event.trial] = self.sound[event.trial]
        self.stood = {
            trial: said
            for trial, said in self.stood.items()
            if self.sweep_state.record(trial).rollback_point is not None
        }
        return decisions

    def metrics(self) -> dict[str, float]:
        """Mostly of so few numbers that fronts are wide, and that some trials are alike in all goals."""
        if self.chance.random() < 0.1:
            return super().metrics()
        return {name: self.chance.choice((0.0, 1.0, 2.0, 3.0)) for name in self.sweep.objective.names}

    def happen(self, segment: Segment) -> Event:
        point = self.sweep_state.record(segment.trial).rollback_point
        if point is None or self.chance.random() < 0.6:
            return super().happen(segment)
        return Reverted(segment.trial, segment.attempt, point.result.iterations, "it went wrong", 1.0)

    def score(self, trial: int) -> Score | None:
        """Return a trial's score, computed from all of its reports that count."""
        objective, best = self.sweep.objective, None
        if self.sweep_state.record(trial).state is TrialState.FAILED:
            return None
        scores = [objective.reported(report.metrics) for report in self.said[trial]]
        valid = [score if score is not None and not any(map(math.isnan, numbers(score))) else None for score in scores]
        if objective.goals[0].scope == "last":
            return valid[-1] if valid else None
        for score in valid:
            if score is not None and (best is None or order(objective, score) <= order(objective, best)):
                best = score
        return best


def numbers(score: Score) -> tuple[float, ...]:
    assert isinstance(score, JointScore)
    return score.values + score.excesses


@st.composite
def watched_lives(draw, keep: str = "best") -> Watched:
    sweep = draw(sweeps(keep, joint=True))
    if sweep.run_cap is not None:
        sweep = replace(sweep, run_cap=sweep.run_cap + 8)
    if draw(st.booleans()):
        sweep = replace(sweep, resources=replace(sweep.resources, max_workers_per_trial=MOST))
    trouble = draw(st.sampled_from([0.3, 0.7]))
    return Watched(sweep, draw(st.integers(0, 2**32)), draw(st.integers(1, 8)), trouble, not draw(st.booleans()))


@settings(deadline=None, max_examples=30)
@given(watched_lives())
def test_the_leaders_are_the_front_of_all_trials_wherever_the_study_stands_and_however_rarely_one_asks(life):
    objective = life.sweep.objective
    read, place = JournaledState(life.sweep), 0
    while life.step():
        rows = life.sweep_state.rows()
        for row in rows:
            assert row.score == life.score(row.number)
            assert row.feasible == (row.score is not None and kept(row.score))
        expected = front_of(objective, rows)
        assert life.sweep_state.leaders() == expected
        if life.chance.random() < 0.3:
            list(read.read(life.entries[place:]))
            read.obsolete()
            place = len(life.entries)
            assert repr(read.leaders()) == repr(expected)


@settings(deadline=None, max_examples=30)
@given(watched_lives())
def test_the_checkpoints_of_the_front_of_the_ended_trials_are_kept_and_in_the_end_no_others(life):
    objective, state = life.sweep.objective, life.sweep_state
    while life.step():
        rows = state.rows()
        assert state.checkpoints() == life.on_disk
        front = {row.number for row in front_of(objective, [row for row in rows if row.state in ENDED])}
        owners = {owner_of(checkpoint) for checkpoint in life.on_disk}
        for row in rows:
            if row.state in ENDED - {TrialState.FAILED} and row.number not in front:
                assert row.checkpoint is None
                assert row.number not in owners
            else:
                expected = checkpoint_of(life, row)
                assert row.address == (None if expected in life.damaged_ones else expected)
                assert row.address is None or row.address in life.on_disk
    failed = {row.number for row in state.rows() if row.state is TrialState.FAILED}
    leaders = {row.number for row in state.leaders()}
    assert {owner_of(checkpoint) for checkpoint in life.on_disk} <= leaders | failed
    assert {row.address for row in state.leaders()} - {None} <= life.on_disk
    assert len(life.discarded) == len(set(life.discarded))


def checkpoint_of(life: Life, row: TrialRow) -> str | None:
    """Return the checkpoint that was written with the trial's score, by the attempt that reported it."""
    result = life.sweep_state.record(row.number).result
    found = None
    for event in life.events:
        if not isinstance(event, Saved | Finished) or event.trial != row.number:
            continue
        if (event.attempt, event.iteration) == (result.value_attempt, row.value_iteration):
            (report,) = [report for report in event.reports if report.iteration == event.iteration]
            same = repr(life.sweep.objective.reported(report.metrics)) == repr(result.score)
            found = event.checkpoint if same else None
    return found


class SlowPatience:
    """A log of what segments gave and which trials ended; all is counted from its beginning at each question."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.log: list[tuple[int, Score | None]] = []
        self.failed: set[int] = set()

    def observe(self, event: Event, decisions: Sequence[Decision], score: Score | None, whole: bool) -> None:
        if isinstance(event, Started):
            self.goes_on(event.segment.trial)
        if isinstance(event, Finished) and whole and score is not None:
            self.log.append((event.trial, score))
        if isinstance(event, Failed) and not event.retry:
            self.failed.add(event.trial)
            self.ends(event.trial)
        for decision in decisions:
            if decision.action in ("stop", "complete"):
                self.ends(decision.trial)
            if decision.action == "withdraw":
                self.failed.remove(decision.trial)
                self.goes_on(decision.trial)

    def ends(self, trial: int) -> None:
        if (trial, None) not in self.log:
            self.log.append((trial, None))

    def goes_on(self, trial: int) -> None:
        if (trial, None) in self.log:
            self.log.remove((trial, None))

    @property
    def count(self) -> int:
        """Count the ends since something was given that nothing given before was as good as."""
        newest, since = None, 0
        before: list[Score] = []
        for trial, score in self.log:
            if score is None:
                since += trial != newest
            elif trial not in self.failed:
                if not any(as_good(self.objective, other, score) for other in before):
                    newest, since = trial, 0
                before.append(score)
        return since


@settings(deadline=None, max_examples=40)
@given(watched_lives())
def test_patience_counts_the_trials_since_one_gave_what_no_other_was_as_good_as_in_all_goals(life):
    objective = life.sweep.objective
    patience, slow = (
        Patience(objective, lambda trial: life.sweep_state.record(trial).valid_score),
        SlowPatience(objective),
    )
    seen = 0
    while life.step():
        for entry in life.entries[seen:]:
            event = entry.event
            trial = event.trial if isinstance(event, Finished) else 0
            whole = isinstance(event, Finished) and not (
                event.cut and event.iteration < (life.sweep_state.record(trial).until or INF)
            )
            patience.observe(event, entry.followed.decisions)
            slow.observe(event, entry.followed.decisions, life.score(trial) if whole else None, whole)
        seen = len(life.entries)
        assert patience.count == slow.count


@settings(deadline=None, max_examples=40)
@given(watched_lives(), st.data())
def test_the_target_is_reached_by_the_first_report_that_reaches_all_and_was_not_taken_back(life, data):
    aims = [data.draw(st.none() | st.sampled_from([0.0, 1.0, 2.0])) for _ in life.sweep.objective.goals]
    goals = tuple(replace(goal, target=aim) for goal, aim in zip(life.sweep.objective.goals, aims, strict=True))
    objective = Objective(goals if len(goals) > 1 else goals[0], life.sweep.objective.constraints)
    target, found, failed, seen = Target(objective), [], set(), 0
    while life.step():
        for entry in life.entries[seen:]:
            event = entry.event
            target.observe(event, entry.followed.decisions)
            if isinstance(event, Saved | Finished):
                found += [(r.trial, r.iteration) for r in event.reports if all_reached(objective, r)]
            elif isinstance(event, Failed) and not event.retry:
                failed.add(event.trial)
            elif isinstance(event, Reverted):
                found = [at for at in found if at[0] != event.trial or at[1] <= event.iteration]
            failed -= {decision.trial for decision in entry.followed.decisions if decision.action == "withdraw"}
        seen = len(life.entries)
        counts = [at for at in found if at[0] not in failed]
        reached = target.reached
        assert (reached is None) == (not counts)
        assert reached is None or (reached.trial, reached.iteration) == counts[0]


def all_reached(objective: Objective, report: Report) -> bool:
    """Say whether one report is as good as all targets, and keeps the constraints."""
    aimed = [goal for goal in objective.goals if goal.target is not None]
    if not aimed or any(name not in report.metrics or math.isnan(report.metrics[name]) for name in objective.names):
        return False
    for constraint in objective.constraints:
        value = report.metrics[constraint.metric]
        if value > constraint.bound if constraint.most else value < constraint.bound:
            return False
    values = [(goal, report.metrics[goal.name], goal.target) for goal in aimed]
    return all(v <= aim if goal.goal == "minimize" else v >= aim for goal, v, aim in values if aim is not None)


TWO = (Metric("accuracy", "maximize"), Metric("latency"))


class Told:
    """Trials that end one after another, told of to what says whether it is enough."""

    def __init__(self, metric: Any = TWO, constraints: tuple[str, ...] = (), patience: int | None = None) -> None:
        sweep = sweep_of(metric=metric, outcome_constraints=constraints, limits=Limits(patience=patience))
        self.objective = sweep.objective
        self.scores: dict[int, Score | None] = {}
        self.enough = StoppingCriteria(sweep, self.scores.get)

    def start(self, trial: int) -> None:
        self.enough.observe(Started(Segment(trial, 0, 3, None, 1), None), ())

    def whole(self, trial: int, **metrics: float) -> str | None:
        self.start(trial)
        self.scores[trial] = self.objective.reported(metrics)
        event = Finished(trial, 1, 3, None, (Report(trial, 3, metrics, 1.0),), False, 1.0)
        self.enough.observe(event, [Decision(trial, "complete", "")])
        return self.enough.met


def test_patience_with_two_goals_begins_anew_wherever_the_front_grows():
    told = Told(patience=2)
    assert told.whole(0, accuracy=0.9, latency=10.0) is None
    assert told.whole(1, accuracy=0.5, latency=20.0) is None  # 0 is better
    assert told.whole(2, accuracy=0.1, latency=1.0) is None  # the fastest so far
    assert told.whole(3, accuracy=0.9, latency=10.0) is None  # as 0 was
    assert told.whole(4, accuracy=0.9, latency=11.0) == "patience"
    assert told.enough.reason == (
        "2 trials in a row ended without one that no other is better than in accuracy and latency: 2 are "
        "(limits.patience: 2)"
    )


def test_a_trial_that_is_as_good_in_all_goals_is_nothing_new_whatever_its_margin_to_a_constraint():
    told = Told(constraints=("bytes <= 100",), patience=1)
    assert told.whole(0, accuracy=0.9, latency=10.0, bytes=50.0) is None
    assert told.whole(1, accuracy=0.9, latency=10.0, bytes=40.0) == "patience"
    assert told.whole(2, accuracy=0.9, latency=9.0, bytes=90.0) is None


def test_patience_takes_a_smaller_excess_for_better_until_one_keeps_the_constraint():
    told = Told(constraints=("bytes <= 100",), patience=2)
    assert told.whole(0, accuracy=0.9, latency=10.0, bytes=300.0) is None
    assert told.whole(1, accuracy=0.1, latency=90.0, bytes=200.0) is None
    assert told.whole(2, accuracy=0.99, latency=1.0, bytes=250.0) is None
    assert told.whole(3, accuracy=0.0, latency=99.0, bytes=100.0) is None
    assert told.whole(4, accuracy=0.99, latency=1.0, bytes=101.0) is None
    assert told.whole(5, accuracy=0.0, latency=99.0, bytes=1.0) == "patience"


def test_the_targets_of_several_goals_must_be_reached_by_one_report():
    aims = (Metric("accuracy", "maximize", target=0.9), Metric("latency", target=10.0), Metric("loss"))
    told = Told(aims, constraints=("bytes <= 100",))
    assert told.whole(0, accuracy=0.95, latency=11.0, loss=1.0, bytes=1.0) is None
    assert told.whole(1, accuracy=0.85, latency=9.0, loss=1.0, bytes=1.0) is None
    assert told.whole(2, accuracy=0.95, latency=9.0, loss=1.0, bytes=101.0) is None
    assert told.whole(3, accuracy=0.95, latency=9.0, loss=NAN, bytes=1.0) is None
    assert told.whole(4, accuracy=0.9, latency=10.0, loss=INF, bytes=100.0) == "target"
    assert told.enough.reason == (
        "trial 4 reached accuracy 0.9 and latency 10.0 at iteration 3 (metric.target: 0.9, 10.0)"
    )


def test_a_live_report_that_reaches_all_targets_ends_it_until_its_attempt_is_lost():
    told = Told((Metric("accuracy", "maximize", target=0.9), Metric("latency", target=10.0)))
    told.start(0)
    told.enough.report([Report(0, 1, {"accuracy": 0.95, "latency": 11.0}, 1.0)])
    told.enough.report([Report(0, 2, {"accuracy": 0.5, "latency": 1.0}, 1.0)])
    assert told.enough.met is None
    told.enough.report([Report(0, 3, {"accuracy": 0.9, "latency": 1.0}, 1.0)])
    assert told.enough.met == "target"
    told.enough.observe(Lost(0, 1, "node lost"), ())
    assert told.enough.met is None


def test_what_was_taken_back_and_what_a_failed_trial_reported_reaches_no_targets():
    aims = Objective((Metric("accuracy", "maximize", target=0.9), Metric("latency", target=10.0)))
    target = Target(aims)

    def saved(trial: int, iteration: int, accuracy: float) -> None:
        report = Report(trial, iteration, {"accuracy": accuracy, "latency": 10.0}, 1.0)
        target.observe(Saved(trial, 1, iteration, "c", (report,)), ())

    saved(0, 1, 0.5)
    saved(0, 2, 0.9)
    assert target.reached is not None
    target.observe(Reverted(0, 1, 1, "it went wrong", 1.0), ())
    assert target.reached is None
    saved(1, 1, 0.9)
    assert target.reached is not None
    target.observe(Failed(1, 1, Failure("raised", "no", ""), False, ()), ())
    assert target.reached is None
    target.observe(Retried(1), [Decision(1, "withdraw", "")])
    assert target.reached is not None


@pytest.mark.parametrize("broken", [False, True])
def test_a_failed_trial_leaves_the_front_and_comes_back_when_it_is_retried(broken):
    sweep = sweep_of(metric=TWO, outcome_constraints=("bytes <= 100",), early_terminate=None, max_iter=2, run_cap=3)
    state = Life(sweep, 0, 3, 0.0).sweep_state
    for trial in range(3):
        event = state.next()
        assert isinstance(event, Started)
        state.apply(event)
        assert event.segment.trial == trial
    size = 200.0 if broken else 1.0
    told = [(0.9, 1.0, size), (0.5, 5.0, size + 1), (0.8, 2.0, size + 2)]
    for trial, (accuracy, latency, used) in enumerate(told):
        report = Report(trial, 1, {"accuracy": accuracy, "latency": latency, "bytes": used}, 1.0)
        state.apply(Saved(trial, 1, 1, f"trials/{trial:05d}/1/c", (report,)))
    assert [row.number for row in state.leaders()] == [0]
    better = Report(0, 2, {"accuracy": 1.0, "latency": 0.1, "bytes": size}, 1.0)
    state.apply(Failed(0, 1, Failure("raised", "no", ""), False, (better,)))
    assert [row.number for row in state.leaders()] == ([1] if broken else [2])
    state.apply(Retried(0))
    (leader,) = state.leaders()
    assert (leader.number, leader.values, leader.feasible) == (0, (0.9, 1.0), not broken)
