from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hpsearch.errors import SweepError
from hpsearch.searchers import KNOWN, GridSearcher, RandomSearcher, Searcher, SearcherCapabilities, Suggestion
from hpsearch.seeds import trial_seed
from hpsearch.space import IntUniform, Space, Uniform
from hpsearch.trial import Trial
from tests.hpsearch.support.any_life import problem_of
from tests.hpsearch.support.first_then import FirstThen

SPACE = Space.from_parameters({"x": Uniform(0, 1), "n": IntUniform(1, 3)})
GRID = Space.from_parameters({"n": IntUniform(1, 3), "k": ["a", "b"]})


def test_random_trials_depend_on_seed_and_number_alone():
    forward = [RandomSearcher(problem_of(SPACE, 1)).suggest(n) for n in range(5)]
    searcher = RandomSearcher(problem_of(SPACE, 1))
    assert [searcher.suggest(n) for n in (4, 3, 2, 1, 0)] == forward[::-1]
    assert RandomSearcher(problem_of(SPACE, 2)).suggest(0) != forward[0]
    assert len({suggestion.params["x"] for suggestion in forward}) == 5


def test_points_leave_all_other_random_trials_as_they_are():
    plain = RandomSearcher(problem_of(SPACE, 1))
    tried = FirstThen(plain, [{"x": 0.5}, {"x": 0.25, "n": 2}], SPACE, 1)
    drawn = dict(plain.suggest(0).params)
    assert tried.suggest(0) == Suggestion(drawn | {"x": 0.5}, "points_to_try")
    assert tried.suggest(1) == Suggestion({"x": 0.25, "n": 2}, "points_to_try")
    assert [tried.suggest(n) for n in range(2, 9)] == [plain.suggest(n) for n in range(2, 9)]


def test_points_push_nothing_out_of_a_grid():
    grid = GridSearcher(problem_of(GRID))
    tried = FirstThen(grid, [{"n": 2, "k": "b"}], GRID, 0)
    assert tried.size == 7
    assert [tried.suggest(n) for n in range(1, 8)] == [grid.suggest(n) for n in range(7)]


def test_a_grid_tries_each_combination_once_the_first_parameter_slowest():
    grid = GridSearcher(problem_of(GRID))
    points = [grid.suggest(n) for n in range(grid.size)]
    in_order = [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b")]
    assert points == [Suggestion({"n": n, "k": k}, "grid") for n, k in in_order]


def test_a_grid_needs_points_for_a_continuous_parameter():
    with pytest.raises(SweepError, match=r"x\.points: is required"):
        GridSearcher(problem_of(SPACE))


def test_points_outside_the_space_are_refused():
    with pytest.raises(SweepError, match=r"x: must be between 0\.0 and 1\.0, got 2\.0"):
        FirstThen(RandomSearcher(problem_of(SPACE, 0)), [{"x": 2}], SPACE, 0)


def test_trial_seeds_fit_numpy_and_differ():
    seeds = [trial_seed(0, number) for number in range(2000)]
    assert len(set(seeds)) == 2000  # a collision among 2,000 hashes of 32 bits has odds of 1 to 2,000
    assert all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
    assert trial_seed(1, 0) != trial_seed(0, 0)
    assert trial_seed(0, 0) == seeds[0]
    np.random.default_rng(seeds[0])
    assert all(abs(a - b) > 1 for a, b in pairwise(seeds))


def test_trial_seeds_stay_what_they_are():
    # They stand in journals: another hash would give resumed trials other random numbers.
    assert [trial_seed(0, 0), trial_seed(0, 1), trial_seed(42, 7)] == [1843984779, 2710342676, 1769625808]


def test_random_explores_by_draws_that_it_suggests_nowhere():
    space = Space.from_parameters({"x": Uniform(0.0, 1.0)})
    searcher = RandomSearcher(problem_of(space, 7))
    assert RandomSearcher.capabilities.explores
    parent = Trial(0, {"x": 0.5}, 1, "random")
    explored = [searcher.explore(number, parent) for number in range(50)]
    assert explored == [RandomSearcher(problem_of(space, 7)).explore(number, parent) for number in range(50)]
    assert all(space.check(suggestion.params) == suggestion.params for suggestion in explored)
    drawn = [searcher.suggest(number).params["x"] for number in range(50)]
    assert not {suggestion.params["x"] for suggestion in explored} & set(drawn)
    assert searcher.explore(3, parent) != RandomSearcher(problem_of(space, 8)).explore(3, parent)


def test_a_searcher_that_does_not_explore_says_so():
    space = Space.from_parameters({"x": [1, 2]})
    assert not GridSearcher.capabilities.explores
    with pytest.raises(NotImplementedError, match="GridSearcher has no params for forked trials"):
        GridSearcher(problem_of(space)).explore(1, Trial(0, {"x": 1}, 1, "grid"))


def test_a_searcher_defines_what_it_suggests():
    assert Searcher.__abstractmethods__ == {"suggest"}
    assert {type(searcher.capabilities) for searcher in KNOWN.values()} == {SearcherCapabilities}
