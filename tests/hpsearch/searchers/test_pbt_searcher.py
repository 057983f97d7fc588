"""What a copy of a good trial differs in, under population based training."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.pbt import PBT
from hpsearch.searchers import Search
from hpsearch.searchers.base import Problem
from hpsearch.searchers.pbt import PBTSearcher
from hpsearch.space import (
    Categorical,
    Cell,
    Chain,
    Choice,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Trial
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.spaces import spaces


def searcher(space: Space, seed: int = 3, **options: Any) -> PBTSearcher:
    return PBTSearcher(Problem(space, Objective(Metric("loss")), seed, Search(options=options)))


def explored(distribution: Distribution, value: Any, **options: Any) -> set[Any]:
    """Return the values of 59 forks of a trial with this value."""
    space = Space.from_parameters({"x": distribution})
    given = searcher(space, **{"resample": 0, **options})
    return {given.explore(n, Trial(0, {"x": value}, 0, "random")).params["x"] for n in range(1, 60)}


@pytest.mark.parametrize(
    ("distribution", "value", "moved"),
    [
        (LogUniform(1e-4, 1.0), 0.01, [0.008, 0.012]),
        (LogUniform(1e-4, 1.0), 0.9, [0.72, 1.0]),
        (Uniform(0.0, 1.0), 0.5, [0.4, 0.6]),
        (Uniform(0.0, 1.0), 0.0, [0.0, 0.02]),  # a factor wouldn't move it
        (Uniform(-1.0, 1.0), 0.0, [-0.04, 0.04]),
        (Uniform(-10.0, -1.0), -5.0, [-6.0, -4.0]),
        (Uniform(0.0, 0.5, step=0.1), 0.1, [0.0, 0.2]),
        (Uniform(0.0, 0.5, step=0.1), 0.0, [0.0, 0.1]),
        (IntUniform(1, 100), 50, [40, 60]),
        (IntUniform(1, 4), 2, [1, 3]),
        (IntUniform(32, 96, step=32), 96, [64, 96]),
        (LogIntUniform(1, 1000), 100, [80, 120]),
        (LogIntUniform(1, 1000), 1, [1, 2]),
        (Normal(0.0, 1.0), 0.0, [-0.08, 0.08]),
        (LogNormal(0.0, 1.0), 2.0, [1.6, 2.4]),
        (LogNormal(0.0, 1.0, step=1), 0, [0, 1]),
        (Categorical([16, 32, 64]), 32, [16, 64]),
        (Categorical([0.9, 0.5, 0.1]), 0.9, [0.9, 0.5]),
        (Categorical([16, 64, 32]), 64, [64]),  # in no order
        (Categorical(["sgd", "adam"]), "adam", ["adam"]),
        (Categorical([True, False]), True, [True]),
    ],
)
def test_a_parameter_moves_on_its_own_range(distribution, value, moved):
    found = sorted(explored(distribution, value))
    assert found == (moved if isinstance(value, str | bool) else pytest.approx(sorted(moved), rel=1e-12))


@pytest.mark.parametrize(
    ("distribution", "value", "moved"),
    [
        (IntUniform(-(2**60), -(2**60) + 4), -(2**60) + 1, {-(2**60), -(2**60) + 2}),
        (LogIntUniform(2**60, 2**60 + 100), 2**60 + 98, {2**60, 2**60 + 99, 2**60 + 100}),
        (Normal(0.0, 1e302, step=1e-9), 1e-9, {-(2**40) * 1e-9, 2**40 * 1e-9}),
    ],
)
def test_a_number_moves_the_right_way_where_floats_cannot_tell_neighbours_apart(distribution, value, moved):
    found = explored(distribution, value)
    assert found <= moved
    assert min(found) < value < max(found)


def test_factors_and_the_share_that_is_drawn_anew_are_told():
    assert explored(LogUniform(1e-4, 1.0), 0.01, shrink=0.5, grow=2) == {0.005, 0.02}
    assert explored(LogUniform(1e-4, 1.0), 0.01, shrink=1, grow=1) == {0.01}
    assert explored(Categorical(["a", "b", "c"]), "a", resample=1) == {"a", "b", "c"}
    anew = explored(LogUniform(1e-4, 1.0), 0.01, resample=0.25) - {0.008, 0.012}
    assert 7 <= len(anew) <= 25  # of 59, 15 on average


def test_what_is_fixed_is_the_parents():
    space = Space.from_parameters({"lr": LogUniform(1e-4, 1.0), "model": {"width": IntUniform(1, 512)}, "epochs": 3})
    parent = Trial(0, {"lr": 0.1, "model.width": 77, "epochs": 3}, 0, "random")
    forks = [searcher(space, fixed=["model.width"]).explore(n, parent).params for n in range(1, 40)]
    assert {fork["model.width"] for fork in forks} == {77}
    assert len({fork["lr"] for fork in forks}) > 2


@settings(deadline=None, max_examples=40)
@given(spaces(), st.integers(0, 2**32 - 1), st.integers(1, 10**6), st.floats(0, 1))
def test_a_fork_lies_in_the_space_and_hangs_on_seed_number_and_parent_alone(space, seed, number, resample):
    given = searcher(space, seed, resample=resample)
    parent = Trial(0, given.suggest(0).params, 0, "random")
    fork = given.explore(number, parent)
    assert space.check(fork.params) == fork.params
    assert tuple(fork.params) == space.names
    assert searcher(space, seed, resample=resample).explore(number, parent) == fork


def sweep(**changes: Any) -> Sweep:
    given: dict[str, Any] = {"method": "pbt", "early_terminate": PBT(9), "run_cap": None}
    return sweep_of(**{**given, **changes})


def test_over_pbt_max_iter_is_all_that_must_be_said():
    assert sweep(early_terminate=None, max_iter=9).early_terminate == PBT(9)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method": "tpe"}, r"method: must be a searcher that explores, .*got tpe\s+pbt and random do"),
        ({"method": "grid"}, r"method: must be a searcher that explores, .*got grid"),
        (
            {"early_terminate": ASHA(9), "run_cap": 9},
            r"early_terminate\.type: must be one that forks .*asha",
        ),
        ({"search": Search(lag=2)}, r"search: must have only options with method pbt"),
        (
            {"method": "random", "search": Search(options={"resample": 1})},
            r"search: must not be given with method random",
        ),
        ({"search": Search(options={"fix": ["x"]})}, r"search\.options\.fix: isn't an option of pbt"),
        (
            {"search": Search(options={"fixed": ["y"]})},
            r"search\.options\.fixed\[0\]: must be a parameter, or hold some, got 'y'",
        ),
        ({"search": Search(options={"fixed": ["x"]})}, r"search\.options\.fixed: must leave a parameter"),
        ({"search": Search(options={"fixed": "x"})}, r"search\.options\.fixed: must be a list"),
        ({"search": Search(options={"resample": 1.5})}, r"search\.options\.resample: must be at most 1, got 1\.5"),
        ({"search": Search(options={"grow": 0.5})}, r"search\.options\.grow: must be at least 1, got 0\.5"),
        ({"metric": Metric("loss", scope="best")}, r"metric\.scope: must be last where early_terminate is of type pbt"),
    ],
)
def test_what_can_not_be_is_refused_by_its_key(changes, told):
    with pytest.raises(SweepError, match=told):
        sweep(**changes)


def test_random_beside_pbt_draws_anew():
    assert sweep(method="random").early_terminate == PBT(9)


def test_a_fork_keeps_the_network_whose_weights_it_takes_over():
    space = Space.from_parameters(
        {
            "lr": Uniform(0.0, 1.0),
            "cell": Cell(["a", "b", "c"], 2, "node"),
            "layers": Chain({"conv": {"k": IntUniform(1, 9)}, "pool": {}}, 1, 3),
            "optimizer": Choice({"sgd": {"momentum": Uniform(0.0, 1.0)}, "adam": {}}),
        }
    )
    searcher = PBTSearcher.build(Problem(space, Objective(Metric("loss")), 0, Search()))
    for number in range(40):
        parent = Trial(0, space.draw(1, number), 0, "random")
        child = searcher.explore(number, parent).params
        assert space.check(child) == child
        moved = {name for name in child if child[name] != parent.params[name]}
        assert moved <= {"lr", "optimizer.sgd.momentum"}
        assert "lr" in moved
