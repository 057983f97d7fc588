"""What `curves` takes into account, and what it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from hpsearch.config.checks import InvalidKey
from hpsearch.errors import SweepError
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.asha import ASHA
from hpsearch.searchers import Observation, Past, Search, searcher_named
from hpsearch.searchers.base import Problem
from hpsearch.searchers.curves import CurveModel, CurveSearcher, Points, fitted, log_expected_improvement, loss
from hpsearch.searchers.history import History
from hpsearch.space import Categorical, IntUniform, LogNormal, Normal, Space, Uniform
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Failure, Report, Trial
from tests.rarely import rarely

PLANE = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)})


def problem(space: Space = PLANE, goal: str = "minimize", scope: str = "last", **search: object) -> Problem:
    metric = Metric("loss", goal, scope)  # type: ignore[arg-type]
    return Problem(space, Objective(metric), 3, Search(**search))  # type: ignore[arg-type]


def tell(
    searcher: CurveSearcher | History,
    number: int,
    params: Mapping[str, object],
    losses: Mapping[int, float],
    until: int,
) -> Trial:
    """A trial whose newest segment was to end at `until`, and did so where it reported it."""
    trial = Trial(number, dict(params), 0, "random")
    searcher.started(trial)
    reports = [Report(number, at, {"loss": loss}, 0.1) for at, loss in losses.items()]
    last = max(losses, default=0)
    searcher.observe(Observation(trial, last, until, reports, last >= until))
    return trial


def drawn(searcher: CurveSearcher, count: int, value, until=lambda number: 9) -> None:
    for number in range(count):
        params = PLANE.draw(1, number)
        length = until(number)
        tell(searcher, number, params, {at: value(params, at) for at in range(1, length + 1)}, length)


@pytest.mark.exhaustive
@pytest.mark.parametrize("goal", ["maximize", *rarely("minimize")])
def test_it_goes_where_the_ends_are_best_though_the_beginnings_are_not(goal):
    """Where x is large, curves begin well and end badly: of twenty trials half were seen to the end."""
    searcher = CurveSearcher(problem(goal=goal))
    sign = 1 if goal == "minimize" else -1
    drawn(searcher, 20, lambda p, at: sign * (p["x"] * (at - 3) + 0.1 * p["y"]), lambda n: 9 if n % 2 else 1)
    given = [searcher.suggest(number) for number in range(20, 26)]
    assert all(found is not None and found.params["x"] < 0.3 for found in given)


def test_short_trainings_tell_something():
    """Four trials ran to the end, all at bad points; what is good is known from short ones alone."""
    searcher = CurveSearcher(problem())
    far = {n: {"x": 0.7 + 0.1 * (n % 2), "y": n / 4} for n in range(4)}
    for number, params in far.items():
        tell(searcher, number, params, {at: params["x"] + 1 / at for at in range(1, 10)}, 9)
    for number in range(4, 24):
        params = PLANE.draw(1, number)
        tell(searcher, number, params, {1: abs(params["x"] - 0.2) + 1.0}, 1)
    given = [searcher.suggest(number) for number in range(24, 28)]
    assert all(found is not None and abs(found.params["x"] - 0.2) < 0.2 for found in given)


@pytest.mark.exhaustive
def test_trials_that_wait_or_run_are_not_tried_anew_beside_themselves():
    """Each suggestion is started and says nothing yet: the next one lies elsewhere."""
    searcher = CurveSearcher(problem())
    drawn(searcher, 12, lambda p, at: (p["x"] - 0.3) ** 2 + (p["y"] - 0.6) ** 2)
    given = []
    for number in range(12, 18):
        found = searcher.suggest(number)
        assert found is not None
        searcher.started(Trial(number, found.params, 0, "curves"))
        given.append((found.params["x"], found.params["y"]))
    apart = [math.dist(one, other) for place, one in enumerate(given) for other in given[:place]]
    assert min(apart) > 1e-3


STRANGE = Space.from_parameters(
    {
        "normal": Normal(0.0, 1e-3, step=1),
        "scale": LogNormal(0.0, 300.0),
        "huge": IntUniform(-(2**62), 2**62),
        "wide": Uniform(-1.7e308, 1.7e308),
        "layers": Categorical([[64], None, {"a": [1]}, 1, 1.0, True], probabilities=[0.4, 0.2, 0.2, 0.1, 0.1, 0.0]),
        "epochs": 3,
    }
)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    "losses",
    [[1e308, -1e308, 0.0], [math.inf, -math.inf, 1.0], [math.nan, 1.0, math.nan], [5e-324, 0.0, 1e-323], [7.0]],
)
def test_any_values_of_any_parameters_are_stood(losses):
    searcher = CurveSearcher(problem(STRANGE))
    for number in range(9):
        tell(searcher, number, STRANGE.draw(0, number), {1: losses[number % len(losses)]}, 1)
    for number in range(9, 12):
        found = searcher.suggest(number)
        assert found is not None
        assert STRANGE.check(found.params) == found.params
        tell(searcher, number, found.params, {}, 1)


def test_nothing_but_failures_says_nothing_and_a_failure_is_the_worst_end():
    searcher = CurveSearcher(problem())
    failed = Failure("raised", "no", "")
    for number in range(8):
        trial = Trial(number, {"x": number / 8, "y": 0.5}, 0, "random")
        searcher.started(trial)
        searcher.observe(Observation(trial, 0, 9, (), True, failed))
    found = searcher.suggest(8)
    assert found is not None
    assert found.origin == "random"
    for number in range(8, 16):
        tell(searcher, number, {"x": 0.9 + number / 200, "y": number / 16}, {1: 1.0, 9: 1.0 + number / 99}, 9)
    found = searcher.suggest(16)
    assert found is not None
    assert found.params["x"] > 0.6


def test_of_many_values_it_sees_as_many_as_the_option_says(monkeypatch):
    seen: list[int] = []
    whole = CurveSearcher._model_of

    def listening(self, curves):
        model, trials = whole(self, curves)
        seen.append(len(model._values))
        return model, trials

    monkeypatch.setattr(CurveSearcher, "_model_of", listening)
    for most in (1, 7, 30):
        searcher = CurveSearcher(problem(options={"values": most}))
        drawn(searcher, 40, lambda p, at: p["x"] / at, lambda n: 9 if n % 3 == 0 else 1)
        assert searcher.suggest(40) is not None
    assert seen == [1, 7, 30]


def test_its_options_are_checked():
    with pytest.raises(InvalidKey, match="isn't an option of curves, which takes values"):
        searcher_named("curves").check(problem(options={"value": 3}))
    with pytest.raises(InvalidKey, match="at least 1"):
        searcher_named("curves").check(problem(options={"values": 0}))
    with pytest.raises(InvalidKey, match="must hold a parameter that isn't constant"):
        searcher_named("curves").check(problem(Space.from_parameters({"a": 1, "b": [2]})))


def test_curves_hold_ends_of_segments_and_what_is_newest():
    history = History(Objective(Metric("loss", "minimize")))
    tell(history, 0, {"x": 1}, {1: 5.0, 2: 4.0, 3: 3.0}, 3)
    tell(history, 1, {"x": 2}, {1: 6.0, 2: math.nan}, 3)  # on its way
    tell(history, 2, {"x": 3}, {}, 3)
    history.observe(
        Observation(Trial(0, {"x": 1}, 0, "random"), 5, 9, [Report(0, at, {"loss": -at}, 0.1) for at in (4, 5)], False)
    )
    trial = tell(history, 3, {"x": 4}, {1: 9.0}, 3)
    history.observe(Observation(trial, 1, 3, (), True, Failure("raised", "no", "")))
    assert [(curve.trial, dict(curve.values)) for curve in history.curves()] == [
        (0, {3: 3.0, 5: -5.0}),
        (1, {2: 9.0}),
        (2, {}),
        (3, {1: 9.0, 5: 9.0}),
    ]
    history.reverted(Trial(0, {"x": 1}, 0, "random"), 2)
    assert dict(history.curves()[0].values) == {2: 4.0}


def test_a_curve_of_another_search_counts_wherever_a_segment_ended_on_its_way():
    history = History(Objective(Metric("loss", "minimize")))
    whole, short = {at: 1.0 / at for at in range(1, 10)}, {5: 0.5, 7: 0.6}
    history.recall([Past({"x": 1}, whole, 9), Past({"x": 2}, short, 8), Past({"x": 3}, {9: 0.25}, 9)])
    assert [dict(curve.values) for curve in history.curves()] == [{9: 1 / 9}, {8: 0.6}, {9: 0.25}]
    tell(history, 0, {"x": 4}, {1: 5.0, 2: 4.0, 3: 3.0}, 3)
    tell(history, 1, {"x": 5}, {at: 1.0 for at in range(1, 7)}, 6)
    assert [dict(curve.values) for curve in history.curves()] == [
        {3: 1 / 3, 6: 1 / 6, 9: 1 / 9},
        {6: 0.5, 8: 0.6},
        {9: 0.25},
        {3: 3.0},
        {6: 1.0},
    ]


def test_of_scope_best_a_curve_never_gets_worse():
    history = History(Objective(Metric("loss", "minimize", "best")))
    tell(history, 0, {"x": 1}, {1: 1.0, 2: 4.0, 3: 3.0}, 3)
    assert dict(history.curves()[0].values) == {3: 1.0}


def test_a_trial_that_ended_by_itself_was_trained_whole():
    history = History(Objective(Metric("loss", "minimize")))
    trial = Trial(0, {"x": 1}, 0, "random")
    history.started(trial)
    history.observe(Observation(trial, 4, 9, [Report(0, 4, {"loss": 2.0}, 0.1)], True))
    assert dict(history.curves()[0].values) == {9: 2.0}


def test_it_is_over_asha_where_nothing_else_is_named():
    given: dict[str, Any] = {
        "name": "one",
        "metric": Metric("loss"),
        "parameters": PLANE,
        "method": "curves",
        "run_cap": 9,
    }
    sweep = Sweep(max_iter=27, **given)
    assert sweep.early_terminate is not None
    assert sweep.early_terminate == ASHA(27, min_iter=3)
    assert Sweep.from_json(sweep.to_json()) == sweep
    with pytest.raises(SweepError, match="max_iter"):
        Sweep(**given)


STARTS = np.array([0, 1, 2])  # a number, a number, and a choice of three
VANISHING = -700.0  # the logarithm of what is nothing beside 1


def points(count: int, seed: int, trials: int | None = None) -> Points:
    chance = np.random.default_rng(seed)
    choice = np.eye(3)[chance.integers(3, size=count)] / np.sqrt(2.0)
    features = np.concatenate([chance.random((count, 2)), choice], axis=1)
    numbers = np.arange(count) if trials is None else chance.integers(trials, size=count)
    return Points(features, chance.random(count), numbers)


def logs(whole: float = 0.0, shape: float = 0.0, mean: float = 0.0, trial: float = -2.0) -> NDArray[np.float64]:
    return np.array([0.1, -0.2, 0.3, -0.4, whole, shape, mean, trial, -3.0])


def test_its_gradient_is_that_of_finite_differences():
    seen, values = points(30, 0, trials=12), np.random.default_rng(1).normal(size=30)
    at, step = logs(0.2, -0.5, -0.7), 1e-5
    _, gradient = loss(at, STARTS, seen, values)
    for place, unit in enumerate(np.eye(len(at)) * step):
        above, _ = loss(at + unit, STARTS, seen, values)
        below, _ = loss(at - unit, STARTS, seen, values)
        assert gradient[place] == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)


def test_without_curves_it_is_scikit_learns_process():
    seen, asked, values = points(20, 0), points(9, 1), np.random.default_rng(2).normal(size=20)
    at = logs(shape=VANISHING, mean=VANISHING, trial=VANISHING)
    asked = Points(asked.features, asked.progress, asked.trials + 100)
    mean, deviation = CurveModel(at, STARTS, seen, values).predict(asked)
    lengths = np.exp(at[[0, 1, 2, 2, 2]])
    kernel = ConstantKernel(1.0) * Matern(lengths, nu=2.5) + WhiteKernel(np.exp(-3.0) + 1e-8)
    peer = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(seen.features, values)
    expected, spread = peer.predict(asked.features, return_std=True)
    assert mean == pytest.approx(expected, abs=1e-6)
    assert deviation == pytest.approx(np.sqrt(spread**2 - np.exp(-3.0)), rel=1e-4)


def test_with_curves_it_is_the_dense_formula():
    seen, values = points(15, 0, trials=6), np.random.default_rng(2).normal(size=15)
    asked, at = points(5, 1, trials=6), logs(0.3, -0.2, -0.6)

    def kernel(one: Points, i: int, other: Points, j: int) -> float:
        def matern(distance: float) -> float:
            root = np.sqrt(5.0) * distance
            return float((1 + root + root**2 / 3) * np.exp(-root))

        near = matern(float(np.linalg.norm((one.features[i] - other.features[j]) / np.exp(at[[0, 1, 2, 2, 2]]))))
        early = matern(abs(one.progress[i] - other.progress[j]) / np.exp(at[3]))
        whole, shape, mean, trial = np.exp(at[4:8])
        return float(near * (whole + shape * early) + mean * early + trial * (one.trials[i] == other.trials[j]))

    covariance = np.array([[kernel(seen, i, seen, j) for j in range(15)] for i in range(15)])
    covariance += (np.exp(at[8]) + 1e-8) * np.eye(15)
    between = np.array([[kernel(asked, i, seen, j) for j in range(15)] for i in range(5)])
    mean, deviation = CurveModel(at, STARTS, seen, values).predict(asked)
    assert mean == pytest.approx(between @ np.linalg.solve(covariance, values))
    explained = np.einsum("ij,ji->i", between, np.linalg.solve(covariance, between.T))
    assert deviation**2 == pytest.approx(np.maximum(np.exp(at[4:7]).sum() - explained, 1e-10))


def test_what_is_expected_is_taken_as_seen():
    model = CurveModel(logs(), STARTS, points(12, 0), np.random.default_rng(0).normal(size=12))
    others = points(4, 3)
    others = Points(others.features, others.progress, others.trials + 100)
    before, unsure = model.predict(others)
    after, surer = model.also(others).predict(others)
    assert after == pytest.approx(before, abs=1e-8)
    assert (surer < unsure).all()


def test_a_fit_tells_what_matters_from_what_does_not():
    chance = np.random.default_rng(0)
    seen = Points(chance.random((60, 2)), np.ones(60), np.arange(60))
    values = np.sin(6 * seen.features[:, 0])
    found = fitted(np.array([0, 1]), seen, (values - values.mean()) / values.std())
    assert found[0] < found[1] - 1.0


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_it_stands_equal_points_and_equal_values(count, spread):
    one = points(1, 0)
    seen = Points(np.repeat(one.features, count, 0), np.ones(count), np.zeros(count, dtype=np.int64))
    values = spread * np.random.default_rng(0).normal(size=count)
    mean, deviation = CurveModel(fitted(STARTS, seen, values), STARTS, seen, values).predict(points(5, 1))
    assert np.isfinite(mean).all()
    assert (deviation > 0).all()
    assert np.isfinite(deviation).all()


@pytest.mark.parametrize("above", [-8.0, -3.0, -1.1, -0.9, 0.0, 2.0, 30.0])
def test_expected_improvement_is_its_integral(above):
    best, deviation = 0.5, 0.7
    mean = best + above * deviation
    width = mean + 12 * deviation
    improvement, _ = quad(lambda y: (y - best) * norm.pdf(y, mean, deviation), best, max(width, best + 12), epsabs=0)
    if above == 30.0:
        improvement = mean - best
    got = log_expected_improvement(np.array([mean]), np.array([deviation]), best)
    assert got[0] == pytest.approx(np.log(improvement), rel=1e-6)


def test_expected_improvement_falls_without_an_end():
    got = log_expected_improvement(np.array([-1e2, -1e3, -1e5, -1e9]), np.ones(4), 0.0)
    assert np.isfinite(got).all()
    assert (np.diff(got) < 0).all()
