"""The Gaussian process of `curves`, against formulas and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from hpsearch.searchers.curve_model import CurveModel, Points, fitted, log_expected_improvement, loss

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
