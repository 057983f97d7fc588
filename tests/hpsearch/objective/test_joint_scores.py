"""Several goals, and constraints on outcomes: what an objective says of sets of trials, against the slow way."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.objective import Metric, Objective, OutcomeConstraint, is_valid
from hpsearch.trial import JointScore, Score

INF, NAN = math.inf, math.nan

FEASIBLE, BROKEN, NOT_A_NUMBER, FAILED = range(4)

few = st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0])
"""So few that ties, and trials that are better than others in all goals, are common."""

odd = st.sampled_from([NAN, INF, -INF, 1e308, -1e308, 5e-324]) | st.floats()
excesses = st.sampled_from([-1.0, -0.0, 0.0, 0.0]) | st.sampled_from([0.5, 1.0, INF, -INF, NAN, 5e-324])

Scores = dict[int, Score | None]


@st.composite
def objectives(draw, goals: int | None = None, constraints: int | None = None) -> Objective:
    """One to three goals and up to two constraints, but never one goal alone."""
    count = draw(st.integers(1, 3)) if goals is None else goals
    bounds = draw(st.integers(1 if count == 1 else 0, 2)) if constraints is None else constraints
    directions = [draw(st.sampled_from(["minimize", "maximize"])) for _ in range(count)]
    wanted = tuple(Metric(f"m{place}", direction) for place, direction in enumerate(directions))
    return Objective(
        wanted if count > 1 else wanted[0],
        tuple(OutcomeConstraint.parse(f"c{place} <= 1") for place in range(bounds)),
    )


@st.composite
def judged(draw, goals: int | None = None, least: int = 0) -> tuple[Objective, Scores]:
    """An objective, and trials with scores for it."""
    objective = draw(objectives(goals))
    value = few | odd if draw(st.booleans()) else few
    joint = st.builds(
        JointScore,
        st.tuples(*[value] * len(objective.goals)),
        st.tuples(*[excesses] * len(objective.constraints)),
    )
    plain_nan = st.just(NAN)  # what a scheduler is told where a report lacks what decides
    scores = draw(
        st.dictionaries(st.integers(0, 30), joint | joint | joint | st.none() | plain_nan, min_size=least, max_size=12)
    )
    return objective, scores


def kind(score: Score | None) -> tuple[int, float]:
    """Return the kind of a score, and by how much it breaks constraints."""
    if score is None:
        return FAILED, 0.0
    if not isinstance(score, JointScore) or any(map(math.isnan, (*score.values, *score.excesses))):
        return NOT_A_NUMBER, 0.0
    violation = sum(excess for excess in score.excesses if excess > 0)
    return (BROKEN, violation) if violation > 0 else (FEASIBLE, 0.0)


def less_is_better(objective: Objective, score: Score | None) -> tuple[float, ...]:
    assert isinstance(score, JointScore)
    signs = [1 if goal.goal == "minimize" else -1 for goal in objective.goals]
    return tuple(sign * value for sign, value in zip(signs, score.values, strict=True))


def beats(objective: Objective, one: Score | None, other: Score | None) -> bool:
    """Say whether a score is better than another, as a person would."""
    if kind(one)[0] == kind(other)[0] == FEASIBLE:
        a, b = less_is_better(objective, one), less_is_better(objective, other)
        nowhere_worse = all(x <= y for x, y in zip(a, b, strict=True))
        return nowhere_worse and any(x < y for x, y in zip(a, b, strict=True))
    return kind(one) < kind(other)


def peeled(objective: Objective, scores: Scores) -> list[list[int]]:
    """Return the Pareto fronts of the feasible trials, computed by removing one front after the other."""
    left = {trial for trial, score in scores.items() if kind(score)[0] == FEASIBLE}
    fronts = []
    while left:
        front = {t for t in left if not any(beats(objective, scores[other], scores[t]) for other in left)}
        fronts.append(sorted(front))
        left -= front
    return fronts


def apart(objective: Objective, scores: Scores, front: list[int]) -> dict[int, float]:
    """Return crowding distances as fractions, goal by goal and trial by trial."""
    points = {trial: less_is_better(objective, scores[trial]) for trial in front}
    first = {trial: min(t for t in front if points[t] == points[trial]) for trial in front}
    stand = sorted(set(first.values()))
    found = {}
    for trial in front:
        total = Fraction(0)
        at_an_end = False
        for goal in range(len(objective.goals)):
            finite = [points[t][goal] for t in stand if math.isfinite(points[t][goal])]
            low, high = (Fraction(min(finite)), Fraction(max(finite))) if finite else (Fraction(0), Fraction(0))
            row = [trial for _, _, trial in sorted((points[t][goal], points[t], t) for t in stand)]
            if trial in (row[0], row[-1]):
                at_an_end = True
            elif trial in row and low < high:
                place = row.index(trial)
                beside = [clipped(points[row[place + step]][goal], low, high) for step in (-1, 1)]
                total += (beside[1] - beside[0]) / (high - low)
        found[trial] = 0.0 if trial != first[trial] else INF if at_an_end else float(total)
    return found


def clipped(value: float, low: Fraction, high: Fraction) -> Fraction:
    if math.isinf(value):
        return high if value > 0 else low
    return Fraction(value)


def front_of(objective: Objective, scores: Scores) -> list[int]:
    """Return the best trials: of several goals the Pareto front, otherwise the first of the best."""
    valid = {trial: score for trial, score in scores.items() if kind(score)[0] < NOT_A_NUMBER}
    unbeaten = [t for t in sorted(valid) if not any(beats(objective, other, valid[t]) for other in valid.values())]
    feasible = any(kind(score)[0] == FEASIBLE for score in valid.values())
    return unbeaten if len(objective.goals) > 1 and feasible else unbeaten[:1]


@settings(deadline=None, max_examples=60)
@given(judged())
def test_places_are_those_of_fronts_that_are_peeled_then_of_excesses_then_nan_then_failed(given_):
    objective, scores = given_
    places = objective.sort_keys(scores)
    assert places.keys() == scores.keys()
    for trial, score in scores.items():
        if kind(score)[0] > FEASIBLE:
            assert places[trial] == kind(score)
    if len(objective.goals) == 1:
        for trial, score in scores.items():
            if kind(score)[0] == FEASIBLE:
                assert places[trial] == (FEASIBLE, *less_is_better(objective, score))
        return
    for level, front in enumerate(peeled(objective, scores)):
        distances = apart(objective, scores, front)
        for trial in front:
            assert places[trial][:2] == (FEASIBLE, level)
            assert -places[trial][2] == pytest.approx(distances[trial], rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(judged())
def test_trials_rank_by_their_places_and_of_equal_ones_the_lower_first(given_):
    objective, scores = given_
    places, ranked = objective.sort_keys(scores), objective.rank(scores)
    assert sorted(ranked) == sorted(scores)
    assert all((places[a], a) < (places[b], b) for a, b in pairwise(ranked))
    # Whoever is better comes before.
    where = {trial: place for place, trial in enumerate(ranked)}
    for one in scores:
        for other in scores:
            if beats(objective, scores[one], scores[other]):
                assert where[one] < where[other]


@settings(deadline=None, max_examples=60)
@given(judged())
def test_the_front_is_what_nothing_beats_and_its_first_by_rank_is_the_best(given_):
    objective, scores = given_
    front = objective.front(scores)
    assert front == front_of(objective, scores)
    best = objective.best(scores)
    assert best == next((trial for trial in objective.rank(scores) if is_valid(scores[trial])), None)
    assert (best is None) == (front == [])
    assert best is None or best in front


@settings(deadline=None)
@given(judged(goals=1))
def test_the_front_of_one_goal_is_its_best(given_):
    objective, scores = given_
    best = objective.best(scores)
    assert objective.front(scores) == ([] if best is None else [best])


@settings(deadline=None)
@given(judged(), st.randoms(use_true_random=False))
def test_the_order_in_which_trials_are_given_changes_nothing(given_, chance: Random):
    objective, scores = given_
    items = list(scores.items())
    chance.shuffle(items)
    shuffled = dict(items)
    assert objective.sort_keys(shuffled) == objective.sort_keys(scores)
    assert objective.rank(shuffled) == objective.rank(scores)
    assert objective.front(shuffled) == objective.front(scores)
    assert objective.best(shuffled) == objective.best(scores)


@settings(deadline=None)
@given(judged(), st.integers(0, 30))
def test_a_front_may_be_kept_up_from_the_front_of_a_part(given_, parting):
    objective, scores = given_
    part = {trial: score for trial, score in scores.items() if trial < parting}
    known = objective.front(part)
    left = {trial: score for trial, score in scores.items() if trial in known or trial not in part}
    assert objective.front(left) == objective.front(scores)


@settings(deadline=None, max_examples=60)
@given(judged())
def test_to_improve_is_to_beat_and_to_extend_a_front_is_to_belong_to_it(given_):
    objective, scores = given_
    for one in scores.values():
        for other in scores.values():
            assert objective.improves(one, other) == beats(objective, one, other)
    front = objective.front(scores)
    members = [scores[trial] for trial in front]
    for trial, score in scores.items():
        if not is_valid(score):
            continue
        # As though it came with a number after all of them.
        joined = objective.front({**{place: member for place, member in enumerate(members)}, 99: score})
        assert objective.extends(score, [m for m in members if m is not None]) == (99 in joined)
        for place, member in enumerate(members):
            if 99 in joined and member is not None:
                assert objective.improves(score, member) == (place not in joined)
        assert trial not in front or not any(beats(objective, member, score) for member in members)


@settings(deadline=None)
@given(judged(least=1))
def test_the_worst_is_no_better_than_any_in_no_goal_and_no_constraint(given_):
    objective, scores = given_
    valid = [score for score in scores.values() if isinstance(score, JointScore) and kind(score)[0] < NOT_A_NUMBER]
    if not valid:
        return
    worst = objective.worst(valid)
    assert isinstance(worst, JointScore)
    points = [less_is_better(objective, score) for score in valid]
    assert less_is_better(objective, worst) == tuple(max(column) for column in zip(*points, strict=True))
    assert worst.excesses == tuple(max(column) for column in zip(*(s.excesses for s in valid), strict=True))
    assert not any(objective.improves(worst, score) for score in valid)


@settings(deadline=None)
@given(st.data(), objectives())
def test_a_score_reaches_the_targets_where_each_value_does_and_no_constraint_is_broken(data, objective):
    aims = [data.draw(st.none() | few) for _ in objective.goals]
    goals = tuple(Metric(g.name, g.goal, target=aim) for g, aim in zip(objective.goals, aims, strict=True))
    objective = Objective(goals if len(goals) > 1 else goals[0], objective.constraints)
    values = data.draw(st.tuples(*[few | odd] * len(goals)))
    score = JointScore(values, data.draw(st.tuples(*[excesses] * len(objective.constraints))))
    wanted = any(aim is not None for aim in aims) and kind(score)[0] == FEASIBLE
    for goal, aim, value in zip(goals, aims, values, strict=True):
        if aim is not None:
            wanted = wanted and (value <= aim if goal.goal == "minimize" else value >= aim)
    assert objective.reaches(score) == wanted
    assert not objective.reaches(None)
    assert not objective.reaches(NAN)


bounds = st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e308, -1e308]) | st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=60)
@given(bounds, st.booleans(), few | odd | bounds, few | odd | bounds)
def test_a_constraint_is_broken_beyond_its_bound_alone_and_the_further_the_more(bound, most, value, other):
    constraint = OutcomeConstraint.parse(f"c {'<=' if most else '>='} {bound!r}")
    assert OutcomeConstraint.parse(str(constraint)) == constraint
    objective = Objective(Metric("m"), (constraint,))
    score = objective.reported({"m": 0.0, "c": value})
    assert objective.is_feasible(score) == (value <= bound if most else value >= bound)
    assert is_valid(score) == (not math.isnan(value))
    assert objective.broken(score) == ([str(constraint)] if (value > bound if most else value < bound) else [])
    if value > other if most else value < other:
        assert constraint.excess(value) >= constraint.excess(other)


def test_one_goal_with_a_constraint_takes_the_best_that_keeps_it_and_else_the_one_that_breaks_it_least():
    objective = Objective(Metric("accuracy", "maximize"), (OutcomeConstraint.parse("latency <= 20"),))

    def told(*pairs: tuple[float, float]) -> Scores:
        return {
            trial: objective.reported({"accuracy": accuracy, "latency": latency})
            for trial, (accuracy, latency) in enumerate(pairs)
        }

    scores = told((0.9, 30.0), (0.5, 20.0), (0.7, 10.0), (NAN, 1.0), (0.99, 25.0), (0.8, NAN))
    assert objective.rank(scores) == [2, 1, 4, 0, 3, 5]
    assert objective.front(scores) == [2]
    assert objective.front(told((0.9, 30.0), (0.1, 25.0), (0.99, 25.0), (0.8, NAN))) == [1]
    assert objective.broken(scores[0]) == ["latency <= 20"]


def test_a_report_that_lacks_a_goal_or_a_constrained_metric_is_worth_nothing():
    objective = Objective((Metric("a"), Metric("b")), (OutcomeConstraint.parse("c <= 2"),))
    assert objective.names == ("a", "b", "c")
    assert objective.reported({"a": 1.0, "b": 2.0, "c": 4.0, "d": 0.0}) == JointScore((1.0, 2.0), (1.0,))
    for lacking in "abc":
        assert objective.reported({name: 1.0 for name in "abc" if name != lacking}) is None


def test_constraints_weigh_by_their_bounds():
    constraints = tuple(map(OutcomeConstraint.parse, ["bytes <= 1000", "seconds <= 0.1", "zero <= 0"]))
    objective = Objective((Metric("a"), Metric("b")), constraints)

    def excess(bytes_: float, seconds: float, zero: float = 0.0) -> float:
        score = objective.reported({"a": 0.0, "b": 0.0, "bytes": bytes_, "seconds": seconds, "zero": zero})
        assert isinstance(score, JointScore)
        return score.violation

    assert excess(1500.0, 0.0) == 0.5
    assert excess(0.0, 0.2) == 1.0
    assert excess(1500.0, 0.2, 0.25) == 1.75
    assert excess(1000.0, 0.1, -3.0) == 0.0


@pytest.mark.parametrize("unit", [5e-324, 1e-310, 1.0, 4e307])
def test_distances_in_a_front_are_shares_however_small_or_large_the_numbers_are(unit):
    objective = Objective((Metric("a"), Metric("b")))
    points = [(-4.0, 4.0), (-2.0, 1.0), (0.0, 0.0), (4.0, -4.0)]
    places = objective.sort_keys({t: JointScore((a * unit, b * unit)) for t, (a, b) in enumerate(points)})
    assert [-places[trial][2] for trial in range(4)] == pytest.approx([INF, 0.5 + 0.5, 0.75 + 0.625, INF])


def test_a_front_of_many_trials_is_found_in_no_time():
    # Were each compared with each, this would take longer than a test may.
    count = 20_000
    objective = Objective((Metric("a"), Metric("b")))
    scores: Scores = {trial: JointScore((float(trial), float(-trial))) for trial in range(count)}
    assert objective.front(scores) == list(range(count))


def test_an_infinity_in_a_front_is_as_far_as_the_best_of_the_finite_numbers():
    objective = Objective((Metric("a"), Metric("b")))
    points = [(-INF, 3.0), (0.0, 2.0), (1.0, 1.0), (3.0, 0.0)]
    places = objective.sort_keys({trial: JointScore(point) for trial, point in enumerate(points)})
    assert [-places[trial][2] for trial in range(4)] == pytest.approx([INF, 1 / 3 + 2 / 3, 3 / 3 + 2 / 3, INF])


def test_of_three_goals_a_trial_is_beaten_by_any_before_it():
    objective = Objective((Metric("a"), Metric("b"), Metric("c")))
    points = [(2.0, 6.0, 6.0), (0.0, 5.0, 5.0), (1.0, 9.0, 0.0)]
    assert objective.front({trial: JointScore(point) for trial, point in enumerate(points)}) == [1, 2]
