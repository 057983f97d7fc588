"""Searches over parameters that hang on each other: what is refused, what is avoided, and what is learnt."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator

import pytest

from hpsearch.config.checks import InvalidKey
from hpsearch.searchers import Observation, searcher_named
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.space import (
    Categorical,
    Chain,
    Choice,
    Derived,
    IntUniform,
    LogUniform,
    Ordinal,
    Repeat,
    Space,
    Uniform,
    When,
)
from hpsearch.trial import Params, Report, Trial
from tests.hpsearch.support.any_life import Asking, problem_of
from tests.hpsearch.support.structured import FINITE, NUMERIC, STRUCTURES, UNBOUNDED
from tests.rarely import rarely

GRID = Space.from_parameters({"blocks": Repeat([1, 2], 1)})
SAME = Space.from_parameters({"a": [1, 2], "b": [1, 2]}, ["a <= b"])
HANGING = Space.from_parameters({"a": [1, 2], "b": When("a == 2", [1, 2])})


@pytest.mark.parametrize(
    ("method", "space", "problem"),
    [
        (
            "grid",
            GRID,
            r"parameters\.\S+\.max: is required where the method is grid.*\n.*or take random",
        ),
        (
            "gp",
            UNBOUNDED,
            r"parameters\.\S+\.max: is required where the method is gp.*\n.*random, tpe or",
        ),
        ("optuna.samplers:TPESampler", UNBOUNDED, r"\S+\.max: is required .*\n.*random, tpe or"),
        ("qmc", GRID, r"parameters\.\S+\.max: is required .* qmc.*\n.*random, tpe or"),
        ("cmaes", GRID, r"parameters\.\S+\.max: is required .* cmaes.*\n.*random, tpe or"),
        ("cmaes", STRUCTURES, r"method: must be another one than cmaes.* where optimizer is a choice\n.*tpe, gp or"),
        ("qmc", NUMERIC, r"constraints: must not be given for qmc.*\n.*random, tpe or evolution"),
        ("spectral", SAME, r"constraints: must not be given for spectral.*\n.*random, tpe or evolution"),
        ("spectral", HANGING, r"parameters: must be parameters that every trial has.* but b doesn't.*\n.*tpe, gp or"),
    ],
)
def test_what_cannot_be_searched_is_refused_and_others_are_named(method, space, problem):
    with pytest.raises(InvalidKey, match=problem):
        searcher_named(method).check(problem_of(space))


@pytest.mark.parametrize("method", ["random", "tpe", "evolution", "pbt", *rarely("bohb")])
def test_blocks_without_an_end_are_searched(method):
    searcher_named(method).check(problem_of(UNBOUNDED))
    found = Asking(method, problem_of(UNBOUNDED), value=lambda params: -params["layers"]).run(20)
    assert all(one is not None and UNBOUNDED.check(one.params) == one.params for one in found)
    assert len({json.dumps(one and one.params) for one in found}) == 20


def test_a_grid_holds_each_point_once():
    searcher = searcher_named("grid").build(problem_of(FINITE))
    size = searcher.size
    assert size is not None
    found = [one.params for number in range(size) if (one := searcher.suggest(number)) is not None]
    assert sorted(map(FINITE.key, found)) == sorted(map(FINITE.key, FINITE.every_point(1000) or []))
    assert searcher.suggest(size) is None


@pytest.mark.parametrize(("method", "count"), [("tpe", 30), *rarely(("gp", 16))])
def test_a_model_goes_on_where_the_best_that_it_hopes_for_breaks_a_constraint(method, count):
    """It is told of what it suggested in vain, or each further suggestion would be the same, and in the end a draw."""
    space = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)}, ["x + y <= 1"])
    asking = Asking(method, problem_of(space), value=lambda params: -float(params["x"] + 0.9 * params["y"]))
    origins = [one and one.origin for one in asking.run(count)]
    assert origins.count(method) >= count / 2


@pytest.mark.parametrize("name", ["NSGAIISampler", *rarely("RandomSampler", "QMCSampler", "TPESampler")])
def test_any_sampler_keeps_constraints(name):
    method = f"optuna.samplers:{name}"
    asking = Asking(method, problem_of(STRUCTURES), value=lambda params: float(len(params)))
    found = [one for one in asking.run(25) if one is not None]
    assert all(STRUCTURES.check(one.params) == one.params for one in found)
    assert sum(one.origin == method for one in found) > 20
    assert asking.repeated() == asking.suggestions


@pytest.mark.parametrize("method", ["tpe", "evolution", *rarely("bohb", "gp")])
def test_a_condition_that_has_no_value_is_a_point_that_is_not_suggested(method):
    space = Space.from_parameters({"x": IntUniform(0, 3), "y": When("1 / x > 0.4", Uniform(0.0, 1.0))})
    found = Asking(method, problem_of(space), value=lambda params: float(params["x"])).run(10)
    assert all(one is not None and one.params["x"] > 0 for one in found)


def points(space: Space, count: int) -> Iterator[Params]:
    tried = TriedConfigurations(space)
    for number in range(count):
        drawn = tried.draw(3, number)
        assert drawn is not None
        tried.add(drawn)
        yield drawn


@pytest.mark.parametrize(
    "space",
    [
        Space.from_parameters({"r": Repeat(["a", "b"], 0)}),
        Space.from_parameters(
            {"m": Categorical(["a", "b"], [0.999, 0.001]), "lr": When("m == 'b'", LogUniform(1e-3, 1.0))}
        ),
    ],
)
def test_a_point_that_is_drawn_almost_always_is_tried_once(space):
    """No list of all points says which are left: there is no end of them."""
    assert len({space.key(point) for point in points(space, 30)}) == 30


BRANCHES = Space.from_parameters(
    {
        "kind": Choice(
            {
                "a": {"x": Uniform(0.0, 1.0)},
                "b": {"x": Uniform(0.0, 1.0), "deep": Choice({"p": {"y": LogUniform(1e-3, 1.0)}, "q": {}})},
                "c": {"n": IntUniform(0, 99)},
                "d": {},
            }
        )
    }
)


def loss(params: Params) -> float:
    """It is 0 in one branch of a branch, at one value of its number; elsewhere 0.5 or more."""
    match params["kind"]:
        case "a":
            return 0.6 + 0.4 * abs(float(params["kind.a.x"]) - 0.2)
        case "c":
            return 0.7 + float(params["kind.c.n"]) / 100
        case "d":
            return 0.8
    inner = 0.3 * abs(math.log10(params["kind.b.deep.p.y"]) + 2) if params["kind.b.deep"] == "p" else 0.5
    return float(abs(params["kind.b.x"] - 0.8) + inner)


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("evolution", 80),
        *(pytest.param(*slow, marks=pytest.mark.exhaustive) for slow in (("tpe", 40), ("gp", 16))),
    ],
)
def test_the_best_branch_and_its_own_number_are_found(method, count):
    """In the mean over a few searches the later suggestions are far better than draws, and so is the best of them."""
    late, best, drawn = [], [], []
    for seed in range(2 if method == "gp" else 4):
        found = [
            loss(one.params) for one in Asking(method, problem_of(BRANCHES, seed), seed, value=loss).run(count) if one
        ]
        late.append(statistics.mean(found[count // 2 :]))
        best.append(min(found))
        drawn.append([loss(BRANCHES.draw(seed, number)) for number in range(count)])
    assert statistics.mean(late) < 0.75 * statistics.mean(map(statistics.mean, drawn))
    assert statistics.mean(best) < 0.75 * statistics.mean(map(min, drawn))


@pytest.mark.filterwarnings("error")
def test_of_a_long_chain_tpe_suggests_without_a_word(caplog):
    """The parameters of each layer's branches are a group of their own."""
    layer = {"conv": {"width": Ordinal([8, 16, 32]), "kernel": [3, 5]}, "pool": {"kernel": [2, 3]}, "skip": {}}
    space = Space.from_parameters({"lr": LogUniform(1e-4, 1.0), "layers": Chain(layer, 1, 10), "n": Derived("layers")})
    searcher = searcher_named("tpe").build(problem_of(space))
    for number in range(60):
        trial = Trial(number, space.draw(1, number), 0, "random")
        searcher.started(trial)
        report = Report(number, 1, {"loss": abs(trial.params["layers"] - 7) + trial.params["lr"]}, 0.1)
        searcher.observe(Observation(trial, 1, 1, [report], True))
    found = searcher.suggest(60)
    assert found is not None
    assert found.origin == "tpe"
    assert space.check(found.params) == found.params
    assert not caplog.records
