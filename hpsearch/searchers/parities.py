"""Sparse polynomials of low degree over booleans, found from few samples.

Hazan, Klivans and Yuan, "Hyperparameter Optimization: A Spectral Approach", ICLR 2018, section 3. Booleans
are -1 and 1. Pure: arrays in, arrays out.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Monomial", "minimizer", "monomials", "sparse_polynomial"]

Monomial = tuple[int, ...]
"""The booleans that are multiplied, by their places, which rise."""

_MOST_STEPS = 60
"""Of the path; each costs as much as a look at all samples of all products."""

_NEGLIGIBLE = 1e-6
"""Standard deviation, of values of 1, that is left when all is explained but for rounding."""


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
    """Give the monomials that explain the values, as far as that stands out of noise, with their coefficients.

    The path of the LASSO says which are worth a look: its solutions as the penalty falls (least angle regression, Efron
    et al., Annals of Statistics 2004). The penalty grows with the number of booleans in a monomial, since there are so
    many more of the long ones. Least squares over those that stand out then say how much each counts, as the penalty
    shrinks them. The paper takes the largest coefficients for one penalty that the user chooses, noise or not.

    Args:
        samples: [n, booleans].
        values: [n], finite.
        products: What may be in it; those that are the same in all samples can't be.
        most: How many at most.
    """
    if not products:
        return {}
    columns = np.stack([samples[:, list(product)].prod(axis=1) for product in products], axis=1).astype(np.float64)
    columns -= columns.mean(axis=0)
    scales = np.sqrt((columns**2).mean(axis=0))
    moving = [int(at) for at in np.flatnonzero(scales)]
    centered = values - values.mean()
    spread = float(np.sqrt((centered**2).mean()))
    if not moving or spread == 0:
        return {}
    columns = columns[:, moving] / scales[moving]
    sizes = np.array([len(products[at]) for at in moving], dtype=np.float64)
    found = _standing_out(columns, sizes, centered / spread)[: 3 * most]
    fitted = np.linalg.lstsq(columns[:, found], centered, rcond=None)[0]
    largest = np.argsort(-np.abs(fitted), kind="stable")[:most]
    chosen = [moving[found[at]] for at in largest]
    return {products[at]: float(one / scales[at]) for at, one in zip(chosen, fitted[largest], strict=True)}


def _standing_out(columns: NDArray[np.float64], sizes: NDArray[np.float64], values: NDArray[np.float64]) -> list[int]:
    """Give the columns that enter the path with more correlation to what is left than chance would give, in order.

    Of p columns of noise the largest correlation with n values is about sqrt(2 ln(p) / n).

    Args:
        columns: [n, p], of mean 0 and variance 1.
        sizes: [p], what the penalty of each is multiplied by.
        values: [n], of mean 0 and variance 1.
    """
    from sklearn.linear_model import lars_path

    count, scaled = len(values), columns / sizes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that columns equal each other, or that all is explained
        penalties, _, path = lars_path(scaled, values, method="lasso", max_iter=max(min(count // 4, _MOST_STEPS), 1))
    chance = {size: math.sqrt(2 * math.log(max((sizes == size).sum(), 2)) / count) for size in set(sizes)}
    found: list[int] = []
    for step, penalty in enumerate(penalties[:-1]):
        left = float((values - scaled @ path[:, step]).std())
        if left < _NEGLIGIBLE:
            break
        entering = np.flatnonzero((path[:, step + 1] != 0) & (path[:, step] == 0))
        # A column enters when its covariance with what is left is as large as its penalty.
        found += [int(at) for at in entering if penalty * sizes[at] > chance[sizes[at]] * left and at not in found]
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
