"""Sparse polynomials over booleans: found from few samples, and none where there is only noise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.searchers.spectral import Monomial, minimizer, monomials, sparse_polynomial
from tests.hpsearch.support.staged_polynomial import BOOLEANS, PRODUCTS, staged_polynomial


def drawn(seed: int, count: int = 300, booleans: int = BOOLEANS) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array([-1, 1], dtype=np.int8), size=(count, booleans))


def value(polynomial: dict[Monomial, float], samples: np.ndarray) -> np.ndarray:
    parts = [one * samples[:, list(product)].prod(axis=1) for product, one in polynomial.items()]
    return sum(parts, np.zeros(len(samples)))


def recovered(seeds: range) -> int:
    """Count the seeds whose first stage is found below two others and noise, with its five monomials and no other."""
    found = 0
    for seed in seeds:
        first, of_row = staged_polynomial(seed)
        samples = drawn(seed)
        values = np.array([of_row(row) for row in samples.tolist()])
        values += np.random.default_rng(seed).uniform(0, 4, len(samples))
        found += sparse_polynomial(samples, values, PRODUCTS, 5).keys() == first.keys()
    return found


@pytest.mark.exhaustive
def test_the_first_stage_of_the_authors_example_is_found_from_300_samples():
    assert recovered(range(1)) == 1


@pytest.mark.exhaustive
def test_in_19_of_20_cases_it_is():
    assert recovered(range(20)) >= 19


@pytest.mark.exhaustive
def test_what_has_no_noise_is_found_to_the_coefficient_and_nothing_else():
    true = {(2, 8): 10.0, (15,): 10.0, (46,): -10.0, (3, 6, 9): 7.0}
    samples = drawn(1)
    found = sparse_polynomial(samples, value(true, samples), PRODUCTS, 6)
    assert found.keys() == true.keys()
    assert all(math.isclose(found[product], true[product], rel_tol=1e-6) for product in true)


def test_of_noise_mostly_nothing_stands_out():
    products = monomials(range(20), 3, {})
    found = [
        sparse_polynomial(drawn(seed, 40, 20), np.random.default_rng(seed + 100).normal(size=40), products, 5)
        for seed in range(40)
    ]
    assert sum(map(bool, found)) <= 20


@pytest.mark.parametrize("values", [np.zeros(8), np.full(8, 1e300)])
def test_of_equal_values_there_is_nothing_to_say(values):
    assert sparse_polynomial(drawn(0, 8, 4), values, monomials(range(4), 2, {}), 3) == {}


def test_what_is_the_same_in_all_samples_is_no_part_of_it():
    samples = drawn(0, 60, 5)
    samples[:, 2] = 1
    found = sparse_polynomial(samples, 3.0 * samples[:, 0] * samples[:, 2], monomials(range(5), 2, {}), 3)
    assert found.keys() == {(0,)}  # and not (0, 2), which is the same there


def test_products_of_alternatives_say_nothing_new():
    assert monomials([0, 1, 3], 2, {0: 0, 1: 0, 2: 0}) == [(0,), (1,), (3,), (0, 3), (1, 3)]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_the_minimizer_is_the_best_of_all_rows(seed):
    chance = np.random.default_rng(seed)
    places = sorted(chance.choice(12, 6, replace=False).tolist())
    polynomial = {
        tuple(sorted(chance.choice(places, size, replace=False).tolist())): float(chance.normal()) for size in (1, 2, 3)
    }
    rows = [np.unique(chance.choice(np.array([-1, 1]), (4, 3)), axis=0).astype(np.int8) for _ in range(2)]
    best = minimizer(polynomial, places, rows)
    assert list(best) == places

    def worth(row: np.ndarray) -> float:
        at = dict(zip(places, row, strict=True))
        return sum((one * math.prod(int(at[place]) for place in product) for product, one in polynomial.items()), 0.0)

    everything = [np.concatenate(pair) for pair in itertools.product(*rows)]
    assert math.isclose(worth(np.array(list(best.values()))), min(map(worth, everything)), abs_tol=1e-12)
    assert any((row == list(best.values())).all() for row in everything)


def test_where_all_is_settled_there_is_nothing_to_say():
    assert sparse_polynomial(drawn(0, 8, 4), np.arange(8.0), monomials([], 3, {}), 3) == {}
