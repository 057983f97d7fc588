"""A space as Optuna has it: every point of it goes there and comes back, however odd its ranges are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hpsearch.objective import Metric, Objective
from hpsearch.searchers import Observation, Problem, Search, searcher_named
from hpsearch.searchers.optuna_mirror import mirrored
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.space import IntUniform, LogIntUniform, LogUniform, Space, Uniform
from hpsearch.trial import Report, Trial, Value

ODD = [
    Uniform(1.2000000000000002, 1.8462172813056483, step=0.08077716016320602),
    Uniform(-9.432544556092168, -0.1, step=0.30104982439006994),
    Uniform(7.240076990782335e-12, 7.240077054133009e-12, step=4.5250481220671145e-17),
    Uniform(-1.7e308, 9e9, step=1e307),
    Uniform(-1.7e308, 1.7e308),
    Uniform(0.0, 5e-324),
    LogUniform(1.503410272502004e-27, 1.5034102725020041e-27),
    LogUniform(1.1210040335671574e126, 1.1210040335672695e126),
    IntUniform(0, 2**40),
    IntUniform(-(2**40), 2**40, step=7),
    LogIntUniform(1, 2**40),
]


def decoded(theirs: OptunaSpace, point: Mapping[str, Any]) -> dict[str, Value]:
    return theirs.build(lambda name, _: point[name])


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_points_of_odd_ranges_go_to_optuna_and_come_back(odd):
    space = Space.from_parameters({"x": odd})
    theirs = OptunaSpace(space)
    for number in range(20):
        params = space.draw(1, number)
        point = theirs.encode(params)
        assert point is not None
        mirrored(point, 1.0, theirs.distributions, {})  # it may stand there
        assert decoded(theirs, point)["x"] == pytest.approx(params["x"], rel=1e-9)


@pytest.mark.parametrize("odd", ODD[:2], ids=str)
def test_every_multiple_of_a_step_may_be_suggested(odd):
    space = Space.from_parameters({"x": odd})
    theirs = OptunaSpace(space)
    points = space.every_point(1000)
    assert points is not None
    assert [decoded(theirs, theirs.encode(point) or {}) for point in points] == points


@pytest.mark.some_cases(11)
@pytest.mark.parametrize("method", ["tpe", "gp", "optuna.samplers:NSGAIISampler"])
@pytest.mark.parametrize("odd", ODD, ids=str)
def test_suggestions_lie_in_odd_ranges(method, odd):
    space = Space.from_parameters({"x": odd, "y": Uniform(0.0, 1.0)})
    problem = Problem(space, Objective(Metric("loss")), 1, Search())
    searcher = searcher_named(method).build(problem)
    for number in range(3):
        params = space.draw(1, number)
        trial = Trial(number, params, 0, "random")
        searcher.started(trial)
        searcher.observe(Observation(trial, 1, 1, [Report(number, 1, {"loss": params["y"]}, 0.1)], True))
    suggestion = searcher.suggest(3)
    assert suggestion is not None
    assert space.check(suggestion.params) == suggestion.params
