"""Searchers where several metrics decide, or outcomes are constrained: what they see, and that they find something."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.objective import Metric, Objective, OutcomeConstraint, excesses_of, hypervolume, is_valid, values_of
from hpsearch.searchers import Observation, Problem, Search, searcher_named
from hpsearch.searchers.learning import LearningSearcher
from hpsearch.searchers.optuna_samplers import OptunaSearcher
from hpsearch.space import Chain, Choice, IntUniform, Space, Uniform
from hpsearch.trial import Failure, JointScore, Params, Report, Score, Trial
from tests.hpsearch.support.any_life import Asking, problem_of
from tests.rarely import rarely

PLANE = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)})

BOTH = Objective(
    (Metric("loss"), Metric("gain", "maximize")),
    tuple(map(OutcomeConstraint.parse, ("ms <= 2", "ms >= -3", "loss <= 1e3", "size <= 0"))),
)
"""Two goals that go opposite ways, and constraints, one of them on a goal."""

ONE = Objective(Metric("loss", "maximize"), (OutcomeConstraint.parse("ms <= 2"),))

SAMPLERS = ("tpe", "bohb", "gp", "nsga2", "optuna.samplers:NSGAIIISampler")
TAKERS = (*SAMPLERS, "evolution")

numbers = st.sampled_from(
    [0.0, 1.0, 2.0, -1.0, 5.0, 1e-300, 1e300, -1e300, 1e-9, math.nan, math.inf, -math.inf]
) | st.floats(-10, 10)
reports = st.lists(st.fixed_dictionaries({name: numbers for name in BOTH.names}) | st.none(), min_size=1, max_size=12)
"""What trials report; None: they fail."""


def told(method: str, objective: Objective, given: list[dict[str, float] | None]) -> LearningSearcher:
    """Return a searcher that has observed these trials."""
    searcher = searcher_named(method).build(Problem(PLANE, objective, 3, Search()))
    assert isinstance(searcher, LearningSearcher)
    for number, metrics in enumerate(given):
        trial = Trial(number, {"x": number / 100, "y": 0.5}, 0, "random")
        searcher.started(trial)
        failure = Failure("raised", "no", "") if metrics is None else None
        found = [] if metrics is None else [Report(number, 1, metrics, 0.0)]
        searcher.observe(Observation(trial, 1, 1, found, True, failure))
    return searcher


def seen_of(searcher: LearningSearcher) -> dict[int, Score]:
    """Return the scores that its model sees, by trial."""
    return {known.trial: known.value for known in searcher._evidence() if known.value is not None}


@pytest.mark.parametrize("objective", [BOTH, ONE], ids=["two goals", "one goal"])
@settings(max_examples=60, deadline=None)
@given(given=reports)
def test_a_model_sees_who_breaks_constraints_and_what_is_better(
    objective: Objective, given: list[dict[str, float] | None]
) -> None:
    raw = [None if metrics is None else objective.reported(metrics) for metrics in given]
    valid = {number: score for number, score in enumerate(raw) if is_valid(score)}
    seen = seen_of(told("tpe", objective, given))
    if not seen:
        columns = list(zip(*map(values_of, valid.values()), strict=True))
        assert not valid or any(not any(map(math.isfinite, column)) for column in columns)
        return
    assert seen.keys() == set(range(len(given)))
    for score in seen.values():
        assert all(math.isfinite(value * value) for value in values_of(score))
        assert all(map(math.isfinite, excesses_of(score)))
    for number, score in valid.items():
        signs = [(excess > 0, excess <= 0) for excess in excesses_of(score)]
        assert [(excess > 0, excess <= 0) for excess in excesses_of(seen[number])] == signs
        assert objective.is_feasible(seen[number]) == objective.is_feasible(score)
    for number in set(seen) - set(valid):  # it is no better than any other, in nothing
        for other in seen.values():
            pairs = zip(objective.point(other), objective.point(seen[number]), strict=True)
            assert all(one <= worst for one, worst in pairs)
            assert all(one <= worst for one, worst in zip(excesses_of(other), excesses_of(seen[number]), strict=True))
    # Of two goals or one: what is better or equal in each isn't worse for the model.
    for one in valid:
        for other in valid:
            before = zip(objective.point(valid[one]), objective.point(valid[other]), strict=True)
            if all(a <= b for a, b in before):
                after = zip(objective.point(seen[one]), objective.point(seen[other]), strict=True)
                assert all(a <= b for a, b in after)


def test_an_infinite_excess_breaks_its_constraint_and_an_infinite_slack_keeps_it() -> None:
    given = [{"loss": 1.0, "ms": ms} for ms in (math.inf, 1.0, -math.inf, 6.0)]
    assert seen_of(told("tpe", ONE, list(given[:1]))) == {0: JointScore((1.0,), (1.0,))}
    assert seen_of(told("tpe", ONE, [*given])) == {
        number: JointScore((1.0,), (excess,)) for number, excess in enumerate([2.0, -0.5, -1.0, 2.0])
    }
    # All that is known breaks it, but for the one without a lower end.
    assert [score.feasible for score in rows_of(seen_of(told("tpe", ONE, [given[2], given[3]])))] == [True, False]


def test_a_small_excess_beside_a_huge_one_breaks_its_constraint_still() -> None:
    small = math.nextafter(2.0, 3.0)
    seen = seen_of(told("tpe", ONE, [{"loss": 1.0, "ms": ms} for ms in (1e300, small, 2.0)]))
    assert [score.feasible for score in rows_of(seen)] == [False, False, True]
    bound = Objective(Metric("loss"), (OutcomeConstraint.parse("ms <= 0"),))
    seen = seen_of(told("tpe", bound, [{"loss": 1.0, "ms": ms} for ms in (1e300, 1e-300, 0.0)]))
    assert [score.feasible for score in rows_of(seen)] == [False, False, True]


class _Row:
    def __init__(self, score: Score) -> None:
        self.feasible = not (isinstance(score, JointScore) and score.violation)


def rows_of(seen: Mapping[int, Score]) -> list[_Row]:
    return [_Row(score) for _, score in sorted(seen.items())]


@pytest.mark.parametrize("objective", [BOTH, ONE], ids=["two goals", "one goal"])
@pytest.mark.parametrize("method", ["tpe", "nsga2"])
@settings(max_examples=30, deadline=None)
@given(given=reports)
def test_the_best_trials_of_optunas_study_are_our_front(
    method: str, objective: Objective, given: list[dict[str, float] | None]
) -> None:
    searcher = told(method, objective, given)
    assert isinstance(searcher, OptunaSearcher)
    study, _ = searcher._study(0)
    assert [direction.name.lower() for direction in study.directions] == [goal.goal for goal in objective.goals]
    trials = list(searcher._mirrored().values())
    study.add_trials(trials)
    seen = seen_of(searcher)
    ours = [number for number in objective.front(seen) if objective.is_feasible(seen[number])]
    if not objective.several and ours:  # of equal ones Optuna gives all
        ours = [number for number, score in seen.items() if score_equals(objective, score, seen[ours[0]])]
    assert [trial.number for trial in study.best_trials] == ours
    for number, score in seen.items():
        mirrored = study.trials[number]
        assert tuple(mirrored.values) == values_of(score)
        assert tuple(mirrored.constraints.values()) == excesses_of(score)


def score_equals(objective: Objective, one: Score, other: Score) -> bool:
    return objective.is_feasible(one) and values_of(one) == values_of(other)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("tpe", "two goals"),
        ("nsga2", "constrained"),
        ("evolution", "two goals"),
        ("evolution", "constrained"),
        *rarely(("tpe", "constrained"), ("nsga2", "two goals")),
        *rarely(*((method, kind) for method in ("bohb", SAMPLERS[-1]) for kind in ("two goals", "constrained"))),
    ],
)
def test_after_reverts_drops_and_failures_a_replay_gives_the_same_suggestions(method: str, kind: str) -> None:
    searched = False
    for seed in range(4):
        asking = Asking(method, problem_of(PLANE, seed, "maximize", kind), seed, 0.5)
        asking.run(35)
        assert asking.repeated() == asking.suggestions
        happened = {name for name, _ in asking.calls}
        assert {"reverted", "dropped", "observe"} <= happened
        searched |= any(found is not None and found.origin != "random" for found in asking.suggestions)
    assert searched


def test_what_was_taken_back_counts_no_more() -> None:
    """A trial that stood in front of all others is seen as it was before, or isn't seen."""
    problem = Problem(PLANE, BOTH, 3, Search())
    searcher = searcher_named("tpe").build(problem)
    assert isinstance(searcher, LearningSearcher)
    trials = [Trial(number, {"x": number / 10, "y": 0.5}, 0, "random") for number in range(3)]
    for trial in trials:
        searcher.started(trial)
        for at, gain in ((1, 1.0 + trial.number), (2, 10.0 + trial.number)):
            metrics = {"loss": 1.0, "gain": gain, "ms": 1.0, "size": 0.0}
            searcher.observe(Observation(trial, at, at, [Report(trial.number, at, metrics, 0.0)], True))
    assert {number: values_of(score) for number, score in seen_of(searcher).items()} == {
        0: (1.0, 10.0),
        1: (1.0, 11.0),
        2: (1.0, 12.0),
    }
    searcher.reverted(trials[2], 1)
    searcher.dropped(trials[1])
    # At the length of 2 iterations the first one is known, the second is under way, the third is neither.
    assert [known.trial for known in searcher._evidence()] == [0, 1]
    assert seen_of(searcher).keys() == {0}
    searcher.reverted(trials[0], 1)
    assert {number: values_of(score) for number, score in seen_of(searcher).items()} == {0: (1.0, 1.0), 2: (1.0, 3.0)}


def schaffer(params: Params) -> dict[str, float]:
    """Two hills whose tops are at x = 0.2 and 0.4, far down where y isn't 0."""
    return {
        "loss": (params["x"] - 0.2) ** 2 + params["y"],
        "cost": (params["x"] - 0.4) ** 2 + params["y"],
    }


LEARNERS = ["evolution", *rarely("nsga2", "tpe", "bohb", "gp")]


def suggested(
    method: str, kind: str, value: Callable[[Params], dict[str, float]], space: Space = PLANE
) -> Iterator[list[dict[str, float]]]:
    """Yield the reports of all trials of a search, for several seeds."""
    count = 13 if method == "gp" else 60
    options = {"population_size": 8} if method == "nsga2" else None
    for seed in range(1 if method == "gp" else 5):
        asking = Asking(method, problem_of(space, seed, kind=kind, options=options), seed, value=value)
        given = [one.params for one in asking.run(count) if one is not None]
        assert all(space.check(params) == params for params in given)
        assert len({space.key(params) for params in given}) == len(given) == count
        yield [value(params) for params in given]


def late(given: list[dict[str, float]], worth: Callable[[dict[str, float]], float]) -> float:
    """Return the mean of the last third."""
    return statistics.mean(map(worth, given[len(given) * 2 // 3 :]))


@pytest.mark.parametrize("method", ["nsga2", "evolution", *rarely("tpe", "bohb", "gp")])
def test_a_searcher_that_learns_finds_a_larger_front_than_draws_do(method: str) -> None:
    def volume(of: str) -> float:
        found = suggested(of, "two goals", schaffer)
        return statistics.median(
            hypervolume([(one["loss"], one["cost"]) for one in given], (0.2, 0.2)) for given in found
        )

    assert volume(method) > 1.1 * volume("random")


@pytest.mark.parametrize("method", LEARNERS)
def test_a_searcher_that_learns_goes_where_a_constraint_is_kept(method: str) -> None:
    """Without the constraint x = 0 were best, with it 0.7 is; what breaks it is worth as much as the worst."""

    def value(params: Params) -> dict[str, float]:
        return {"loss": params["x"] + params["y"], "cost": 1.2 - params["x"]}

    def loss(of: str) -> float:
        found = suggested(of, "constrained", value)
        return statistics.median(late(given, lambda one: one["loss"] if one["cost"] <= 0.5 else 2.0) for given in found)

    assert loss(method) < 0.9 * loss("random")


LAYERED = Space.from_parameters(
    {
        "optimizer": Choice({"sgd": {"momentum": Uniform(0.0, 1.0)}, "adam": {"beta": Uniform(0.0, 1.0)}}),
        "layers": Chain({"conv": {"width": IntUniform(1, 8)}, "pool": {}}, 1, 3),
    }
)


def layered(params: Mapping[str, Any]) -> dict[str, float]:
    """The more layers the less loss and the more cost; sgd with little momentum is best at any number of them."""
    layers = params["layers"]
    waste = params.get("optimizer.sgd.momentum", 1.0)
    return {"loss": 3.0 - layers + waste, "cost": layers + waste}


@pytest.mark.parametrize("method", ["evolution", *rarely("tpe", "nsga2")])
def test_spaces_with_structure_are_searched_for_a_front(method: str) -> None:
    def waste(of: str) -> float:
        found = suggested(of, "two goals", layered, LAYERED)
        return statistics.median(late(given, lambda one: one["loss"] + one["cost"] - 3.0) for given in found)

    assert waste(method) < 0.85 * waste("random")


@pytest.mark.parametrize("method", LEARNERS)
def test_either_goal_leads_the_search_the_right_way(method: str) -> None:
    def mean_of_x(best: float) -> float:
        def value(params: Params) -> dict[str, float]:
            distance = abs(params["x"] - best)
            return {"loss": distance, "cost": distance, "x": params["x"]}

        return statistics.median(late(given, lambda one: one["x"]) for given in suggested(method, "two goals", value))

    assert mean_of_x(0.2) < 0.45
    assert mean_of_x(0.8) > 0.55


def test_optunas_own_front_takes_the_same_constraints() -> None:
    """Of what breaks a constraint Optuna says nothing: nothing is left of a study in which all do."""
    searcher = told("tpe", ONE, [{"loss": 1.0, "ms": ms} for ms in (3.0, math.inf)])
    assert isinstance(searcher, OptunaSearcher)
    study, _ = searcher._study(0)
    study.add_trials(list(searcher._mirrored().values()))
    assert study.best_trials == []
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)
