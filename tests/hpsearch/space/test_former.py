"""The law of the first versions, held to values that they gave."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpsearch.errors import SweepError
from hpsearch.searchers import GridSearcher, RandomSearcher, Searcher, Suggestion
from hpsearch.space import (
    Categorical,
    Distribution,
    FormerSpace,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from hpsearch.study.build import build_searcher
from hpsearch.sweep.sweep import Metric, Sweep
from hpsearch.trial import Value
from tests.hpsearch.support.first_then import FirstThen

RANDOM = Space.from_parameters(
    {
        "lr": LogUniform(1e-4, 1.0),
        "opt": {"momentum": Uniform(0.0, 0.99), "name": ["adam", "sgd"]},
        "const": 3,
        "depth": IntUniform(1, 4),
        "width": LogIntUniform(16, 512, step=16),
        "units": LogIntUniform(1, 1000),
        "noise": Normal(0.0, 0.5),
        "decay": LogNormal(-3.0, 1.0),
        "drop": Uniform(0.0, 0.5, step=0.1),
        "act": Categorical(["relu", "gelu"], [0.8, 0.2]),
    }
)
DRAWN = [
    (
        *(0.035305856304085934, 0.2670888466262316, "adam", 3, 1, 272, 547),
        *(0.6520000225650686, 0.12835966958506292, 0.3, "gelu"),
    ),
    (
        *(0.0004490247336565192, 0.6072647618277384, "adam", 3, 3, 176, 8),
        *(-0.32819065381518664, 0.010291097492775972, 0.4, "gelu"),
    ),
]
GRIDS: dict[str, tuple[Distribution, list[Value]]] = {
    "lr": (LogUniform(0.001, 1.0, points=3), [0.001, 0.0316227766017, 1.0]),
    "x": (Uniform(-1.0, 1.0, points=4), [-1.0, -0.333333333333, 0.333333333333, 1.0]),
    "big": (Uniform(1e13, 1e13 + 4, points=5), [1e13, 1e13 + 4]),
    "n": (IntUniform(1, 8, points=3), [1, 4, 8]),
    "q": (LogUniform(20.0, 100.0, step=32), [32, 64, 96]),
    "u": (LogIntUniform(1, 100, points=4), [1, 5, 22, 100]),
}


def sweep(space: Space, **changes: Any) -> Sweep:
    given: dict[str, Any] = {"method": "random", "run_cap": 9} | changes
    return Sweep(name="s", trainable="m:f", metric=Metric("loss"), parameters=space, **given)


def values_of(searcher: Searcher | FirstThen, number: int) -> tuple[Value, ...]:
    suggestion = searcher.suggest(number)
    assert isinstance(suggestion, Suggestion)
    return tuple(suggestion.params.values())


def of_a_former_version(one: Sweep) -> Sweep:
    """Give a sweep as it comes back from a study that holds no `draws`."""
    stored = json.loads(json.dumps(one.to_json()))
    del stored["draws"]
    return Sweep.from_json(stored)


def test_a_sweep_without_a_law_draws_as_the_versions_that_wrote_none():
    for seed, number, values in ((0, 0, DRAWN[0]), (7, 12, DRAWN[1])):
        former = of_a_former_version(sweep(RANDOM, seed=seed))
        assert values_of(build_searcher(former), number) == values
        again = Sweep.from_json(former.to_json())
        assert values_of(build_searcher(again), number) == values
        assert values_of(RandomSearcher(RANDOM, seed), number) != values


def test_a_point_is_completed_by_the_law_of_its_sweep():
    former = of_a_former_version(sweep(RANDOM, points_to_try=({"lr": 0.5},)))
    first = FirstThen(build_searcher(former), former.points_to_try, former.parameters, former.seed)
    assert values_of(first, 0) == (0.5, *DRAWN[0][1:])


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_without_a_law_has_the_points_of_the_versions_that_wrote_none(name):
    distribution, values = GRIDS[name]
    former = of_a_former_version(sweep(Space.from_parameters({name: distribution}), method="grid"))
    searcher = build_searcher(former)
    assert searcher.size == len(values)
    assert [values_of(searcher, number) for number in range(len(values))] == [(value,) for value in values]


def test_the_law_survives_json_and_is_no_difference():
    today = sweep(RANDOM)
    former = of_a_former_version(today)
    assert type(Sweep.from_json(today.to_json()).parameters) is Space
    assert type(Sweep.from_json(former.to_json()).parameters) is FormerSpace
    assert former.difference(today) == today.difference(former) == []


def test_a_law_that_this_version_does_not_know_is_one_error():
    with pytest.raises(SweepError, match=r"a sweep of this version of hpsearch.*draws must be 1 or 2, got 3"):
        Sweep.from_json({**sweep(RANDOM).to_json(), "draws": 3})


def test_today_and_former_spaces_differ_in_law_alone():
    former = FormerSpace(Space.from_parameters({"n": IntUniform(1, 3)}).declared)
    assert [values_of(GridSearcher(former), number) for number in range(3)] == [(1,), (2,), (3,)]
    assert former.to_json() == Space(former.declared).to_json()
