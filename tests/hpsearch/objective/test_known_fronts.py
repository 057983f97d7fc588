"""Fronts of trials, of which some are known to be a front already."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hpsearch.objective import Metric, Objective, OutcomeConstraint
from hpsearch.trial import JointScore, Score

VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, math.nan])
EXCESSES = st.sampled_from([-1.0, -1.0, 0.0, 0.0, 1.0, 2.0])


def objective_of(goals: int) -> Objective:
    metrics = tuple(Metric(f"m{goal}", "minimize" if goal else "maximize") for goal in range(goals))
    return Objective(metrics, (OutcomeConstraint("bytes", 1.0, True),))


def scores_of(goals: int) -> st.SearchStrategy[dict[int, Score | None]]:
    joint = st.builds(JointScore, st.tuples(*[VALUES] * goals), st.tuples(EXCESSES))
    return st.lists(joint | joint | joint | st.none(), max_size=12).map(lambda scores: dict(enumerate(scores)))


def slow_front(objective: Objective, scores: dict[int, Score | None]) -> list[int]:
    """Compare each with each: feasible ones by their values, others by how much they break."""
    whole = {
        trial: score
        for trial, score in scores.items()
        if isinstance(score, JointScore) and not any(map(math.isnan, score.values))
    }
    feasible = {trial: score.values for trial, score in whole.items() if score.excesses[0] <= 0}
    if not feasible:
        return sorted(whole, key=lambda trial: (whole[trial].excesses[0], trial))[:1]
    signed = {trial: (-values[0], *values[1:]) for trial, values in feasible.items()}
    return sorted(
        trial
        for trial, values in signed.items()
        if not any(
            all(a <= b for a, b in zip(other, values, strict=True)) and other != values for other in signed.values()
        )
    )


@given(st.integers(2, 3).flatmap(lambda goals: st.tuples(st.just(goals), scores_of(goals))))
def test_a_front_is_what_no_other_one_is_better_than(case: tuple[int, dict[int, Score | None]]) -> None:
    goals, scores = case
    objective = objective_of(goals)
    assert objective.front(scores) == slow_front(objective, scores)


@given(st.integers(2, 3).flatmap(lambda goals: st.tuples(st.just(goals), scores_of(goals), scores_of(goals))))
def test_a_front_that_is_known_changes_nothing(
    case: tuple[int, dict[int, Score | None], dict[int, Score | None]],
) -> None:
    goals, former, later = case
    objective = objective_of(goals)
    scores = former | {trial + 6: score for trial, score in later.items()}
    known = {trial for trial in slow_front(objective, former) if scores[trial] is former[trial]}
    assert objective.front(scores, known) == slow_front(objective, scores)
