"""What every searcher does, whichever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpsearch.objective import Objective
from hpsearch.searchers import GridSearcher, Problem, RandomSearcher
from hpsearch.searchers.pbt import PBTSearcher
from hpsearch.space import Categorical, IntUniform, LogNormal, LogUniform, Space, Uniform
from hpsearch.study.build import build_searcher
from hpsearch.sweep.sweep import Metric, Sweep
from tests.hpsearch.support.first_then import FirstThen

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


SEARCHERS = {
    "random": lambda: RandomSearcher(SPACE, 7),
    "pbt": lambda: PBTSearcher(Problem(SPACE, Objective(Metric("loss")), 7)),
    "grid": lambda: GridSearcher(SPACE),
    "points, then random": lambda: FirstThen(RandomSearcher(SPACE, 7), [FULL, PARTIAL], SPACE, 7),
    "points, then grid": lambda: FirstThen(GridSearcher(SPACE), [FULL], SPACE, 7),
    "from a random sweep": lambda: build_searcher(random_sweep(points_to_try=(PARTIAL,), seed=3)),
    "from a grid sweep": lambda: build_searcher(random_sweep(method="grid")),
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
        assert tuple(params) == SPACE.names
        assert SPACE.check(params) == params


def test_the_size_is_the_number_of_suggestions(make):
    searcher = make()
    if searcher.size is None:
        assert searcher.suggest(10**9) is not None
    else:
        assert searcher.suggest(searcher.size - 1) is not None
        assert searcher.suggest(searcher.size) is None
        assert searcher.suggest(searcher.size + 5) is None


def test_changing_a_suggestion_changes_no_other(make):
    searcher = make()
    before = [json.dumps(dict(searcher.suggest(n).params)) for n in range(10)]
    for n in range(10):
        searcher.suggest(n).params["model.layers"].append(1)
    assert [json.dumps(dict(searcher.suggest(n).params)) for n in range(10)] == before


def test_the_origin_says_where_params_come_from(make):
    assert {make().suggest(n).origin for n in range(20)} <= {"random", "grid", "points_to_try"}
