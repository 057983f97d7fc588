"""Distributions of Optuna and Ray Tune as parameters."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna import distributions as optuna

import hpsearch
from hpsearch.config.checks import InvalidKey
from hpsearch.space import Categorical, IntUniform, LogIntUniform, LogUniform, Normal, Space, Uniform

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Tune's own, on import
    from ray import tune


def converted(distribution: Any) -> Any:
    space = Space.from_parameters({"group": {"x": distribution}})
    parameter = space.find("group.x")
    assert parameter is not None
    return parameter.distribution


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (optuna.FloatDistribution(0.5, 2), Uniform(0.5, 2)),
        (optuna.FloatDistribution(0.5, 2, step=0.25), Uniform(0.5, 2, 0.25)),
        (optuna.FloatDistribution(1e-4, 1, log=True), LogUniform(1e-4, 1)),
        (optuna.IntDistribution(1, 9), IntUniform(1, 9)),
        (optuna.IntDistribution(-4, 8, step=4), IntUniform(-4, 8, 4)),
        (optuna.IntDistribution(1, 256, log=True), LogIntUniform(1, 256)),
        (optuna.CategoricalDistribution(("sgd", None, 1)), Categorical(["sgd", None, 1])),
        (tune.uniform(0.5, 2), Uniform(0.5, 2)),
        (tune.quniform(0.5, 2, 0.25), Uniform(0.5, 2, 0.25)),
        (tune.loguniform(1e-4, 1), LogUniform(1e-4, 1)),
        (tune.qloguniform(1e-4, 1, 1e-4), LogUniform(1e-4, 1, 1e-4)),
        (tune.randn(2, 3), Normal(2, 3)),
        (tune.qrandn(2, 3, 0.5), Normal(2, 3, 0.5)),
        (tune.randint(1, 9), IntUniform(1, 8)),
        (tune.qrandint(4, 16, 4), IntUniform(4, 16, 4)),
        (tune.qrandint(1, 9, 1), IntUniform(1, 8)),
        (tune.lograndint(1, 256), LogIntUniform(1, 255)),
        (tune.qlograndint(4, 64, 4), LogIntUniform(4, 64, 4)),
        (tune.choice([16, 32]), Categorical([16, 32])),
        (tune.grid_search([16, 32]), Categorical([16, 32])),
    ],
    ids=repr,
)
def test_each_becomes_its_counterpart(theirs: Any, ours: Any) -> None:
    assert converted(theirs) == ours


@given(st.integers(-5, 5), st.integers(2, 6), st.integers(1, 4))
def test_the_values_are_those_of_the_other_tool(first: int, count: int, step: int) -> None:
    theirs = optuna.IntDistribution(first * step, (first + count) * step, step=step)
    ours = converted(theirs).every_value()
    assert ours == [value for value in range(theirs.low, theirs.high + 1) if theirs._contains(value)]
    in_tune = tune.qrandint(first * step, (first + count) * step, step)
    assert {int(value) for value in in_tune.sample(size=200, random_state=0)} <= set(converted(in_tune).every_value())


@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        (optuna.IntDistribution(1, 9, step=2), r"parameters\.group\.x\.step: must divide low.*low=1, step=2"),
        (optuna.FloatDistribution(0.1, 1.1, step=0.5), r"parameters\.group\.x\.step: must divide low"),
        (tune.sample_from(lambda spec: 1), r"parameters\.group\.x: .*got Ray Tune's Function"),
    ],
    ids=repr,
)
def test_what_has_no_counterpart_is_refused(theirs: Any, problem: str) -> None:
    with pytest.raises(InvalidKey, match=problem):
        hpsearch.Sweep(name="s", metric=hpsearch.Metric("loss"), method="random", parameters={"group": {"x": theirs}})


def test_a_search_takes_them(tmp_path: Any) -> None:
    study = hpsearch.search(
        lambda trial: trial.report({"loss": trial.params["lr"] * trial.params["width"]}),
        {"lr": optuna.FloatDistribution(0.5, 1), "width": tune.grid_search([1, 2])},
        metric="loss",
        run_cap=4,
        max_iter=1,
        directory=tmp_path / "study",
        backend="inline",
        progress=False,
    )
    assert all(0.5 <= trial.params["lr"] <= 1 and trial.params["width"] in (1, 2) for trial in study.trials)
