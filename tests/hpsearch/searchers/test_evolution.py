"""Regularized evolution: who is in the population, who becomes a parent, and what a child may be."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from hpsearch.config.checks import InvalidKey
from hpsearch.errors import SweepError
from hpsearch.objective import Metric, Objective
from hpsearch.searchers import Observation, Past, Problem, Search, Searcher, Suggestion, searcher_named
from hpsearch.searchers.evolution import Evolution
from hpsearch.space import Space, Uniform
from hpsearch.trial import Failure, Params, Report, Trial
from tests.hpsearch.support.steady import sweep_over

CELL = Space.from_parameters({f"edge_{place}": ["a", "b", "c", "d", "e"] for place in range(6)})
SPACE = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0), "c": ["a", "b", "c"], "k": 3})


def problem_of(space: Space = SPACE, goal: str = "minimize", seed: int = 0, **search: Any) -> Problem:
    return Problem(space, Objective(Metric("loss", goal)), seed, Search(**search))  # type: ignore[arg-type]


def told(searcher: Searcher, space: Space, values: Sequence[float | None]) -> list[Params]:
    """Tell it of trials drawn from the space; one without a value is under way."""
    points: list[Params] = [space.draw(99, number) for number in range(len(values))]
    for number, value in enumerate(values):
        trial = Trial(number, points[number], 0, "random")
        searcher.started(trial)
        if value is not None:
            searcher.observe(Observation(trial, 1, 1, [Report(number, 1, {"loss": value}, 0.1)], True))
    return points


def distance(one: Params, other: Params) -> int:
    return sum(json.dumps(one[name]) != json.dumps(other[name]) for name in one)


def asked(searcher: Searcher, number: int) -> Suggestion:
    suggestion = searcher.suggest(number)
    assert suggestion is not None
    return suggestion


def parents(values: Sequence[float | None], goal: str = "minimize", **options: int) -> set[int]:
    """Return the trials that differ from the children by one mutation."""
    found = set()
    for number in range(60):
        searcher = Evolution(problem_of(goal=goal, options=options, seed=number))
        points = told(searcher, SPACE, values)
        child = asked(searcher, len(values))
        assert child.origin == "evolution"
        (parent,) = (trial for trial, point in enumerate(points) if distance(point, child.params) == 1)
        found.add(parent)
    return found


def test_parents_are_among_the_newest_however_good_an_older_one_was():
    assert parents([-9.0, 1.0, 1.0, 1.0, 1.0], population=4, sample=1) == {1, 2, 3, 4}
    assert parents([1.0, 2.0, 3.0], population=20, sample=1) == {0, 1, 2}


@pytest.mark.parametrize(("goal", "best"), [("minimize", 1), ("maximize", 3)])
def test_a_parent_is_the_best_of_its_sample(goal, best):
    values = [2.0, 1.0, 3.0, 4.0, 2.5]
    assert best in parents(values, goal, population=5, sample=5)
    worst = 3 if goal == "minimize" else 1
    assert worst not in parents(values, goal, population=5, sample=5)  # alone in a sample of five: 1 in 3,125


def test_trials_under_way_are_not_in_the_population_and_failed_ones_are_its_worst():
    assert parents([1.0, None, 2.0, None], population=2, sample=1) == {0, 2}
    searcher = Evolution(problem_of(options={"population": 2, "sample": 2}))
    told(searcher, SPACE, [5.0])
    failed = Trial(1, SPACE.draw(99, 1), 0, "random")
    searcher.started(failed)
    searcher.observe(Observation(failed, 1, 1, (), True, Failure("raised", "no", "")))
    worst, good = searcher._history.evidence()[1].value, searcher._history.evidence()[0].value
    assert worst == good == 5.0


def test_infinities_are_the_worst_or_the_best_and_not_equal_to_the_finite_ones():
    chosen = [parent_of([math.inf, 1.0, 2.0], seed) for seed in range(30)]
    assert 0 not in chosen  # alone in a sample of seven: 1 in 2,187
    chosen = [parent_of([1.0, -math.inf, 2.0], seed) for seed in range(30)]
    assert chosen.count(1) > 25  # not in a sample of seven: 1 in 17


def parent_of(values: Sequence[float | None], seed: int) -> int:
    searcher = Evolution(problem_of(options={"population": 7, "sample": 7}, seed=seed))
    points = told(searcher, SPACE, values)
    child = asked(searcher, len(values)).params
    return next(trial for trial, point in enumerate(points) if distance(point, child) == 1)


def test_where_all_next_to_the_population_were_tried_a_child_is_a_mutation_further():
    space = Space.from_parameters({"a": [1, 2], "b": [1, 2], "c": [1, 2]})
    first = {"a": 1, "b": 1, "c": 1}
    next_to_it = [{**first, name: 2} for name in first]
    origins = []
    for seed in range(40):
        searcher = Evolution(problem_of(space, options={"population": 1, "sample": 1}, seed=seed))
        for number, params in enumerate([*next_to_it, first]):
            searcher.started(Trial(number, params, 0, "random"))
        searcher.observe(Observation(Trial(3, first, 0, "random"), 1, 1, [Report(3, 1, {"loss": 1.0}, 0.1)], True))
        child = asked(searcher, 4)
        origins.append(child.origin)
        assert distance(child.params, first) >= 2
    assert origins.count("evolution") > 30


def test_the_first_population_is_drawn_unless_the_sweep_or_past_trials_say_less():
    assert Evolution(problem_of()).draws_first == 20
    assert Evolution(problem_of(options={"population": 12})).draws_first == 12
    assert Evolution(problem_of(options={"population": 30}, startup=4)).draws_first == 4
    searcher = Evolution(problem_of())
    searcher.recall([Past(SPACE.draw(5, number), {1: float(number)}, 1) for number in range(12)])
    assert searcher.draws_first == 8


def test_what_was_recalled_fills_the_population():
    searcher = Evolution(problem_of(options={"population": 5, "sample": 5}))
    points = [SPACE.draw(5, number) for number in range(8)]
    searcher.recall([Past(point, {1: float(number)}, 1) for number, point in enumerate(points)])
    children = [asked(searcher, number).params for number in range(40)]
    by = [next(place for place, point in enumerate(points) if distance(point, child) == 1) for child in children]
    assert set(by) <= {3, 4, 5, 6, 7}
    assert by.count(3) > 20


def test_under_rungs_only_those_that_got_furthest_have_children():
    searcher = Evolution(problem_of(options={"population": 4, "sample": 1}))
    points = told(searcher, SPACE, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    for number in (1, 3):
        trial = Trial(number, points[number], 0, "random")
        searcher.observe(Observation(trial, 3, 3, [Report(number, 3, {"loss": 0.1}, 0.1)], True))
    children = [asked(searcher, number).params for number in range(6, 40)]
    assert {next(t for t, point in enumerate(points) if distance(point, child) == 1) for child in children} == {1, 3}


def test_on_a_cell_it_finds_the_best_long_before_all_were_tried():
    """Of 15,625 cells the one of the least loss; a draw has the mean loss of 4.8, and 300 draws a best of about 2."""
    best = []
    for seed in range(5):
        searcher = searcher_named("evolution").build(problem_of(CELL, seed=seed))
        losses = []
        for number in range(200):
            drawn = number < searcher.draws_first
            params = CELL.draw(seed, number) if drawn else asked(searcher, number).params
            losses.append(float(sum(value != "c" for value in params.values())))
            trial = Trial(number, params, 0, "test")
            searcher.started(trial)
            searcher.observe(Observation(trial, 1, 1, [Report(number, 1, {"loss": losses[-1]}, 0.1)], True))
        best.append(min(losses))
    assert best == [0.0] * 5


@pytest.mark.parametrize(
    ("space", "options", "told"),
    [
        (
            SPACE,
            {"population": 5, "sample": 6},
            r"search\.options\.sample: must be at most the population \(5\), got 6",
        ),
        (SPACE, {"population": 0}, r"search\.options\.population: must be at least 1, got 0"),
        (SPACE, {"sample": 2.5}, r"search\.options\.sample: must be"),
        (SPACE, {"populaton": 9}, r"search\.options\.populaton: isn't an option of evolution"),
        (
            Space.from_parameters({"k": 3, "c": ["a", "a"]}),
            {},
            r"parameters: must hold a parameter that isn't constant",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(space, options, told):
    with pytest.raises(SweepError, match=told):
        sweep_over(
            "evolution", parameters=space, early_terminate=None, max_iter=1, run_cap=9, search=Search(options=options)
        )
    with pytest.raises(InvalidKey):
        Evolution.check(problem_of(space, options=options))
