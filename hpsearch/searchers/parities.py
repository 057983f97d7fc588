"""Sparse polynomials of low degree over booleans, found from few samples.

Hazan, Klivans and Yuan, "Hyperparameter Optimization: A Spectral Approach", ICLR 2018, section 3. Booleans
are -1 and 1. Pure: arrays in, arrays out.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Monomial", "minimizer", "monomials", "sparse_polynomial"]

Monomial = tuple[int, ...]
"""The booleans that are multiplied, by their places, which rise."""


def monomials(free: Sequence[int], degree: int, alternatives: Mapping[int, int]) -> list[Monomial]:
    """Give the products of up to `degree` of the free booleans, the shortest first.

    Args:
        free: Places.
        degree: At least 1.
        alternatives: Of booleans of which exactly one is 1, the group: products of two of them say nothing new.
    """
    return [
        product
        for size in range(1, degree + 1)
        for product in itertools.combinations(free, size)
        if _is_new(product, alternatives)
    ]


def _is_new(product: Monomial, alternatives: Mapping[int, int]) -> bool:
    groups = [alternatives[place] for place in product if place in alternatives]
    return len(groups) == len(set(groups))


def sparse_polynomial(
    samples: NDArray[np.int8], values: NDArray[np.float64], products: Sequence[Monomial], most: int
) -> dict[Monomial, float]:
    """Give the monomials that explain the values best, with their coefficients.

    The LASSO's path says which are worth a look, as its penalty falls (least angle regression, Efron et al., Annals of
    Statistics 2004): the first that enter, three times as many as are wanted. Least squares over these say how much
    each counts, which the penalty has shrunk.

    Args:
        samples: n by booleans.
        values: n, finite.
        products: What may be in it; those that are the same in all samples can't be.
        most: How many at most; fewer where fewer explain all.
    """
    columns = np.stack([samples[:, list(product)].prod(axis=1) for product in products], axis=1).astype(np.float64)
    columns -= columns.mean(axis=0)
    scale = np.sqrt((columns**2).mean(axis=0))
    moving = np.flatnonzero(scale > 0)
    centered = values - values.mean()
    spread = float(np.sqrt((centered**2).mean()))
    if not len(moving) or spread == 0:
        return {}
    columns, scale = columns[:, moving] / scale[moving], scale[moving]
    entered = _entered(columns, centered / spread, min(3 * most, len(values) // 2))
    fitted = np.linalg.lstsq(columns[:, entered], centered / spread, rcond=None)[0]
    largest = np.argsort(-np.abs(fitted), kind="stable")[:most]
    return {products[moving[entered[at]]]: float(fitted[at] * spread / scale[entered[at]]) for at in largest}


def _entered(columns: NDArray[np.float64], values: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """Give the columns in which the LASSO has coefficients once so many have entered."""
    from sklearn.linear_model import lars_path

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that columns equal each other, or that all is explained
        *_, path = lars_path(columns, values, method="lasso", max_iter=max(most, 1))
    found: NDArray[np.intp] = np.flatnonzero(path[:, -1])
    return found


def minimizer(
    polynomial: Mapping[Monomial, float], places: Sequence[int], patterns: Sequence[NDArray[np.int8]]
) -> dict[int, int]:
    """Give the values of a polynomial's booleans for which it is least; of equal ones the first.

    Args:
        polynomial: Monomials to coefficients.
        places: Its booleans, which rise.
        patterns: Rows of what they may be; a row of each pattern, side by side, are the booleans in their order. All
            combinations are looked at.
    """
    rows = np.zeros((1, 0), dtype=np.int8)
    for pattern in patterns:
        rows = np.hstack([np.repeat(rows, len(pattern), axis=0), np.tile(pattern, (len(rows), 1))])
    at = {place: column for column, place in enumerate(places)}
    worth = np.zeros(len(rows))
    for monomial, coefficient in polynomial.items():
        worth += coefficient * rows[:, [at[place] for place in monomial]].prod(axis=1)
    best = rows[int(np.argmin(worth))]
    return {place: int(value) for place, value in zip(places, best, strict=True)}
