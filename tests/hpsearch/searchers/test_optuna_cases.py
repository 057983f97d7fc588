"""Optuna's own test cases of samplers, on our searchers behind an adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.testing.pytest_samplers import BasicSamplerTestCase, RelativeSamplerTestCase

from hpsearch.searchers import Search
from tests.hpsearch.support.optuna_adapter import SearcherSampler


@dataclass(frozen=True)
class Case:
    """A searcher to be held to them.

    Args:
        search: Few draws at first: the cases have few trials.
        skipped: Names of cases to why they don't hold.
        proposed: How many of twenty points are its own, at least.
    """

    search: Search
    skipped: Mapping[str, str] = field(default_factory=dict)
    proposed: int = 18


CASES = {
    "evolution": Case(Search(startup=1)),
    "spectral": Case(Search(startup=1, options={"samples": 4}), proposed=10),  # it draws until something stands out
}


@pytest.fixture(params=["evolution", "spectral"])
def method(request: pytest.FixtureRequest) -> str:
    reason = CASES[request.param].skipped.get(request.node.originalname)
    if reason is not None:
        pytest.skip(reason)
    return str(request.param)


@pytest.mark.exhaustive  # two minutes; what our searchers promise is in test_learning_conformance.py
class TestOptunasCases(BasicSamplerTestCase, RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self, method: str) -> Callable[[], SearcherSampler]:
        return lambda: SearcherSampler(method, CASES[method].search)


def test_behind_the_adapter_the_searcher_suggests_and_nobody_draws_in_its_place(method):
    sampler = SearcherSampler(method, CASES[method].search)
    study = optuna.create_study(sampler=sampler)
    space = {
        "x": FloatDistribution(-1.0, 1.0),
        "n": IntDistribution(3, 9, step=2),
        "c": CategoricalDistribution(["a", "b"]),
    }
    for _ in range(20):
        trial = study.ask(space)
        study.tell(trial, trial.params["x"] ** 2 + trial.params["n"])
    assert sampler.origins[1:].count(method) >= CASES[method].proposed
    assert {trial.params["n"] for trial in study.trials} <= {3, 5, 7, 9}


LEARNING = [("evolution", "minimize"), ("spectral", "maximize")]
RARELY = [("evolution", "maximize"), ("spectral", "minimize")]


@pytest.mark.parametrize(
    ("method", "direction"), [*LEARNING, *(pytest.param(*rest, marks=pytest.mark.exhaustive) for rest in RARELY)]
)
def test_behind_the_adapter_the_searcher_learns(method, direction):
    study = optuna.create_study(sampler=SearcherSampler(method, CASES[method].search), direction=direction)
    sign = 1 if direction == "minimize" else -1
    study.optimize(lambda trial: sign * abs(trial.suggest_float("x", 0.0, 1.0) - 0.3), n_trials=60)
    late = [abs(trial.params["x"] - 0.3) for trial in study.trials[30:]]
    assert sum(late) / len(late) < 0.2  # of draws it is 0.29
