"""Harmonica: which trials a stage learns from, what it settles, and what is drawn then."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError
from hpsearch.searchers import Observation, Search
from hpsearch.searchers.spectral import BooleanSpace, Spectral
from hpsearch.space import Categorical, Constant, IntUniform, LogIntUniform, Space, Uniform
from hpsearch.trial import Params, Report, Trial
from tests.hpsearch.support.any_life import Asking, problem_of
from tests.hpsearch.support.spaces import spaces
from tests.hpsearch.support.staged_polynomial import BOOLEANS, staged_polynomial
from tests.hpsearch.support.steady import sweep_over
from tests.rarely import rarely

MANY = Space.from_parameters({f"b{place}": [False, True] for place in range(30)})


def sign(value: object) -> int:
    return 1 if value else -1


def three_matter(params: Params) -> float:
    """Least where b3 is on, and b7 and b9 are unlike."""
    return -3.0 * sign(params["b3"]) + 2.0 * sign(params["b7"]) * sign(params["b9"])


def lived(space: Space, value: Callable[[Params], float], count: int, goal: str = "minimize", **search: Any) -> Asking:
    """Let a search run, one trial after the other."""
    asking = Asking("spectral", problem_of(space, 3, goal, **search), 1, 0.0, value)
    asking.run(count)
    return asking


def drawn_late(asking: Asking, last: int) -> list[Params]:
    return [found.params for found in asking.suggestions[-last:] if found is not None]


@pytest.mark.parametrize("goal", ["maximize", *rarely("minimize")])
def test_what_matters_is_settled_and_the_rest_is_drawn(goal):
    def value(params: Params) -> float:
        return three_matter(params) if goal == "minimize" else -three_matter(params)

    late = drawn_late(lived(MANY, value, 120, goal), 20)
    assert all(params["b3"] and params["b7"] != params["b9"] for params in late)
    free = [name for name in MANY.names if len({params[name] for params in late}) == 2]
    assert len(free) >= 20


def test_of_noise_nothing_is_settled_for_long_and_every_point_stays_different():
    chance = iter(range(10**6))
    asking = lived(MANY, lambda _: math.sin(next(chance) * 12.9898) * 43758.5453 % 1, 60)
    points = [json.dumps(found.params) for found in asking.suggestions if found is not None]
    assert len(set(points)) == 60


def test_numbers_are_settled_by_parts_of_their_scale():
    space = Space.from_parameters({"x": Uniform(0, 1), "y": Uniform(0, 1), "z": Uniform(0, 1)})
    late = drawn_late(lived(space, lambda params: (params["x"] - 0.7) ** 2, 150), 30)
    assert sum(0.5 <= params["x"] <= 0.9 for params in late) >= 25
    assert max(params["y"] for params in late) - min(params["y"] for params in late) > 0.4


def test_one_diverged_trial_hides_nothing():
    numbers = iter(range(10**6))

    def value(params: Params) -> float:
        return 1e12 if next(numbers) == 5 else three_matter(params)

    assert all(params["b3"] for params in drawn_late(lived(MANY, value, 80), 20))


def test_where_what_is_left_was_tried_it_goes_back_a_stage_and_then_to_the_last_point():
    space = Space.from_parameters({"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1]})
    asking = lived(space, lambda params: params["a"] + params["b"], 40, options={"samples": 6})
    assert asking.suggestions[-1] is None
    assert len({json.dumps(found.params) for found in asking.suggestions if found is not None}) == 18


def test_under_rungs_it_learns_at_the_first_which_all_trials_reach():
    """Those that got further are the good ones: among them what makes them good can't be seen."""
    problem = problem_of(MANY, 3)
    searcher = Spectral(problem)
    for number in range(40):
        trial = Trial(number, MANY.draw(5, number), 0, "random")
        searcher.started(trial)
        value = three_matter(trial.params)
        searcher.observe(Observation(trial, 1, 1, [Report(number, 1, {"loss": value}, 0.1)], True))
        if value < -2:
            searcher.observe(Observation(trial, 9, 9, [Report(number, 9, {"loss": 1.0}, 0.1)], True))
    late = [searcher.suggest(number) for number in range(40, 50)]
    assert all(found is not None and found.params["b3"] for found in late)


@settings(deadline=None, max_examples=15)
@given(spaces(), st.integers(0, 2**32 - 1))
def test_in_any_space_it_settles_what_matters_and_suggests_it_again(space, seed):
    booleans = BooleanSpace(space)
    if not booleans.size:
        return

    def value(params: Params) -> float:
        code = booleans.encode(params)
        assert code is not None
        return float(code[0])

    asking = Asking("spectral", problem_of(space, seed, options={"degree": 2}), seed, 0.0, value)
    asking.run(30)
    given = [found.params for found in asking.suggestions if found is not None]
    assert len(set(map(json.dumps, given))) == len(given)
    assert all(json.dumps(space.check(params)) == json.dumps(params) for params in given)
    assert asking.repeated() == asking.suggestions


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        ({"x": Constant(1)}, {}, "parameters: must hold a parameter that isn't constant"),
        ({"x": Uniform(0, 1)}, {"sample": 3}, r"search\.options\.sample: isn't an option of spectral"),
        ({"x": Uniform(0, 1)}, {"samples": 3}, r"search\.options\.samples: must be at least 4, got 3"),
        ({"x": Uniform(0, 1)}, {"monomials": 9}, r"search\.options\.monomials: times degree \(3\) must be at most 20"),
        ({"x": Categorical(list(range(80)))}, {}, r"search\.options\.degree: must be less than 3"),
    ],
)
def test_what_cant_be_is_refused(space, options, message):
    with pytest.raises(SweepError, match=message):
        sweep_over(
            "spectral",
            parameters=Space.from_parameters(space),
            early_terminate=None,
            max_iter=1,
            run_cap=9,
            search=Search(options=options),
        )


@pytest.mark.exhaustive
def test_after_the_papers_three_stages_it_is_ahead_of_random_draws():
    space = Space.from_parameters({f"b{place}": [False, True] for place in range(BOOLEANS)})
    best = []
    for seed in range(2):
        _, of_row = staged_polynomial(seed)

        def value(params: Params, of_row: Callable[[Sequence[int]], float] = of_row) -> float:
            return of_row([sign(params[f"b{place}"]) for place in range(BOOLEANS)])

        asking = Asking("spectral", problem_of(space, seed, options={"samples": 300}), seed, 0.0, value)
        asking.run(1000)
        found = min(value(one.params) for one in asking.suggestions if one is not None)
        drawn = min(value(space.draw(seed, number)) for number in range(1000))
        best.append(drawn - found)
    assert sum(best) > 0
    assert sum(difference > 0 for difference in best) >= 2


def codes(distribution: object, values: list[object]) -> list[tuple[int, ...]]:
    space = BooleanSpace(Space.from_parameters({"x": distribution}))
    found = [space.encode({"x": value}) for value in values]
    return [() if code is None else tuple(code.tolist()) for code in found]


def test_a_number_has_the_bits_of_its_eighth():
    places = [0.0, 0.13, 0.3, 0.4, 0.6, 0.7, 0.8, 1.0]
    assert codes(Uniform(0, 1), [*places]) == list(itertools.product((-1, 1), repeat=3))


@pytest.mark.parametrize(
    ("distribution", "count"),
    [(IntUniform(1, 2), 1), (IntUniform(1, 3), 2), (IntUniform(1, 8), 3), (Uniform(0, 1, step=0.25), 3)],
)
def test_few_values_have_as_many_booleans_as_tell_them_apart(distribution, count):
    values = distribution.every_value()
    found = codes(distribution, values)
    assert len(set(found)) == len(values)
    assert {len(code) for code in found} == {count}


def test_of_two_choices_one_boolean_says_which_and_of_more_each_has_its_own():
    assert codes(["a", "b"], ["a", "b"]) == [(-1,), (1,)]
    assert codes([1, 1.0, True], [1, 1.0, True]) == [(1, -1, -1), (-1, 1, -1), (-1, -1, 1)]
    assert codes(Categorical(["a", "b", "c"], [0.5, 0.5, 0]), ["a", "b", "c"]) == [(-1,), (1,), ()]


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 2**32 - 1))
def test_what_is_drawn_has_the_settled_booleans(space, seed):
    booleans = BooleanSpace(space)
    code = booleans.encode(space.draw(seed, 0))
    assert code is not None
    assert len(code) == booleans.size
    chance = random.Random(seed)
    places = sorted(chance.sample(range(booleans.size), chance.randint(0, booleans.size)))
    settled = {place: int(code[place]) for place in places}
    drawn = booleans.draw(settled, seed)
    assert json.dumps(space.check(drawn)) == json.dumps(drawn)
    assert tuple(drawn) == space.names
    assert json.dumps(booleans.draw(settled, seed)) == json.dumps(drawn)
    found = booleans.encode(drawn)
    assert found is not None
    assert {place: int(found[place]) for place in places} == settled


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 2**32 - 1))
def test_patterns_are_what_points_can_have(space, seed):
    booleans = BooleanSpace(space)
    chance = random.Random(seed)
    places = sorted(chance.sample(range(booleans.size), min(booleans.size, 4)))
    patterns = booleans.patterns(places, {})
    assert sum(pattern.shape[1] for pattern in patterns) == len(places)
    row = [int(one) for pattern in patterns for one in pattern[chance.randrange(len(pattern))]]
    found = booleans.encode(booleans.draw(dict(zip(places, row, strict=True)), seed))
    assert found is not None
    assert [int(found[place]) for place in places] == row


def test_cells_that_no_value_lies_in_are_no_pattern():
    few = BooleanSpace(Space.from_parameters({"n": LogIntUniform(1, 20)}))  # 1 takes more than a fifth of the scale
    assert len(few.patterns(range(few.size), {})[0]) < 8
    assert few.draw({0: 1}, 3)["n"] > few.draw({0: -1}, 3)["n"]


def test_settled_or_not_draws_follow_the_distribution():
    space = Space.from_parameters({"c": Categorical(["a", "b", "c"], [0.7, 0.2, 0.1])})
    booleans = BooleanSpace(space)
    drawn = [booleans.draw({0: -1}, seed)["c"] for seed in range(3000)]
    assert "a" not in drawn
    assert 0.6 < drawn.count("b") / len(drawn) < 0.73
