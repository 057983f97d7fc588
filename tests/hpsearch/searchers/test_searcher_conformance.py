"""What every searcher does, whichever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from hpsearch.objective import Objective
from hpsearch.searchers import GridSearcher, Problem, RandomSearcher
from hpsearch.searchers.pbt import PBTSearcher
from hpsearch.searchers.qmc import QMC
from hpsearch.space import Categorical, IntUniform, LogNormal, LogUniform, Space, Uniform
from hpsearch.study.build import build_searcher
from hpsearch.sweep.parts import Metric
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.any_life import problem_of
from tests.hpsearch.support.documented import HillClimbing
from tests.hpsearch.support.first_then import FirstThen
from tests.hpsearch.support.structured import FINITE, STRUCTURES, UNBOUNDED, UNCONSTRAINED

SPACE = Space.from_parameters(
    {
        "lr": LogUniform(1e-4, 1.0, points=3),
        "model": {"hidden": IntUniform(32, 96, step=32), "layers": Categorical([[64], [64, 64]])},
        "dropout": Uniform(0, 0.5, step=0.25),
        "scale": LogNormal(points=1),
        "epochs": 3,
    }
)
FULL = {"lr": 0.1, "model.hidden": 64, "model.layers": [64], "dropout": 0.25, "scale": 1.0}
PARTIAL = {"lr": 0.5}


def random_sweep(**changes: Any) -> Sweep:
    given: dict[str, Any] = {"method": "random", "run_cap": 9}
    return Sweep(name="s", trainable="m:f", metric=Metric("loss"), parameters=SPACE, **(given | changes))


PROBLEM = partial(Problem, objective=Objective(Metric("loss")), seed=7)


@dataclass(frozen=True)
class Made:
    """How a searcher is made, and its space."""

    make: Callable[[], Any]
    space: Space = SPACE

    def __call__(self) -> Any:
        return self.make()


SEARCHERS = {
    "random": Made(lambda: RandomSearcher(problem_of(SPACE, 7))),
    "pbt": Made(lambda: PBTSearcher(PROBLEM(SPACE))),
    "grid": Made(lambda: GridSearcher(problem_of(SPACE))),
    "hill climbing before any result": Made(lambda: HillClimbing(PROBLEM(SPACE))),
    "points, then random": Made(lambda: FirstThen(RandomSearcher(problem_of(SPACE, 7)), [FULL, PARTIAL], SPACE, 7)),
    "points, then grid": Made(lambda: FirstThen(GridSearcher(problem_of(SPACE)), [FULL], SPACE, 7)),
    "from a random sweep": Made(lambda: build_searcher(random_sweep(points_to_try=(PARTIAL,), seed=3))),
    "from a grid sweep": Made(lambda: build_searcher(random_sweep(method="grid"))),
    "random over structures": Made(lambda: RandomSearcher(problem_of(STRUCTURES, 7)), STRUCTURES),
    "random without an end": Made(lambda: RandomSearcher(problem_of(UNBOUNDED, 7)), UNBOUNDED),
    "pbt over structures": Made(lambda: PBTSearcher(PROBLEM(STRUCTURES)), STRUCTURES),
    "qmc over structures": Made(lambda: QMC(PROBLEM(UNCONSTRAINED)), UNCONSTRAINED),
    "grid over structures": Made(lambda: GridSearcher(problem_of(FINITE)), FINITE),
    "points, then structures": Made(
        lambda: FirstThen(RandomSearcher(problem_of(STRUCTURES, 7)), [{"blocks": 1}, {"x": 0.95}], STRUCTURES, 7),
        STRUCTURES,
    ),
}

pytestmark = pytest.mark.parametrize("make", SEARCHERS.values(), ids=list(SEARCHERS))


def plain(value) -> bool:
    if isinstance(value, list):
        return type(value) is list and all(map(plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(map(plain, value.values()))
    return value is None or type(value) in (bool, int, float, str)


def test_the_same_searcher_suggests_the_same(make):
    one, other = make(), make()
    assert [one.suggest(n) for n in range(40)] == [other.suggest(n) for n in range(40)]


def test_a_searcher_made_anew_goes_on_where_the_last_one_stopped(make):
    whole = make()
    uninterrupted = [whole.suggest(n) for n in range(40)]
    for n in (0, 1, 2, 17, 39):
        assert make().suggest(n) == uninterrupted[n]


def test_asking_twice_gives_the_same(make):
    searcher = make()
    assert searcher.suggest(3) == searcher.suggest(3)


def test_values_are_plain_python_and_survive_json(make):
    searcher = make()
    for n in range(20):
        params = dict(searcher.suggest(n).params)
        assert plain(params)
        assert json.dumps(json.loads(json.dumps(params))) == json.dumps(params)


def test_params_lie_in_the_space_in_its_order(make):
    searcher = make()
    for n in range(20):
        params = searcher.suggest(n).params
        assert tuple(params) == make.space.columns([params] if make.space.conditional else [])
        assert make.space.check(params) == params


def test_the_size_is_the_number_of_suggestions(make):
    searcher = make()
    if searcher.size is None:
        assert searcher.suggest(10**9) is not None
    else:
        # The way to the last point of a sequence is long: test_first_trials.py goes it.
        assert searcher.suggest(min(searcher.size - 1, 10**6)) is not None
        assert searcher.suggest(searcher.size) is None
        assert searcher.suggest(searcher.size + 5) is None


def test_changing_a_suggestion_changes_no_other(make):
    searcher = make()
    before = [json.dumps(dict(searcher.suggest(n).params)) for n in range(10)]
    for n in range(10):
        params = searcher.suggest(n).params
        for value in params.values():
            if isinstance(value, list):
                value.append(1)
        params.clear()
    assert [json.dumps(dict(searcher.suggest(n).params)) for n in range(10)] == before


def test_the_origin_says_where_params_come_from(make):
    assert {make().suggest(n).origin for n in range(20)} <= {"random", "grid", "qmc", "points_to_try"}
