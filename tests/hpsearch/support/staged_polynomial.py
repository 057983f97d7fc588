"""A function of 60 booleans with sparse stages, as the second example of Harmonica's authors has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from hpsearch.searchers.spectral import Monomial, monomials

BOOLEANS = 60
PRODUCTS = monomials(range(BOOLEANS), 3, {})


def staged_polynomial(seed: int) -> tuple[dict[Monomial, float], Callable[[Sequence[int]], float]]:
    """Return a polynomial of five monomials, and a function of -1 and 1 that adds two more such stages.

    Coefficients are of 100 to 200, a quarter and a sixteenth of these in the next stages, whose monomials hang on the
    signs of the ones before.
    """

    @cache
    def five(signs: tuple[bool, ...]) -> dict[Monomial, float]:
        chance = np.random.default_rng([seed, len(signs), *signs])
        size = 0.25 ** (len(signs) // 5)
        chosen = chance.choice(len(PRODUCTS), 5, replace=False)
        return {PRODUCTS[at]: size * chance.uniform(100, 200) * chance.choice([-1, 1]) for at in chosen}

    def value(row: Sequence[int]) -> float:
        signs: tuple[bool, ...] = ()
        total = 0.0
        for _ in range(3):
            parts = [one * np.prod([row[place] for place in product]) for product, one in five(signs).items()]
            total += float(sum(parts))
            signs += tuple(bool(part > 0) for part in parts)
        return total

    return five(()), value
