"""How sure a score on some rows is: 95 % intervals."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpsearch_trainers.scores import score

__all__ = ["interval"]

_Z = 1.959963984540054
"""Of the normal distribution, 95 % lie within so many deviations."""

_RESAMPLES = 2000


def interval(name: str, given: NDArray[np.generic], true: NDArray[np.generic]) -> tuple[float, float] | None:
    """Give the 95 % interval of a score, as far as the draw of these rows makes it uncertain.

    Accuracy's is Wilson's (1927); others are the percentiles of 2,000 bootstrap samples (Efron 1979), always the same.

    Args:
        name: Of the score.
        given: Probabilities (rows, classes), or numbers (rows,).
        true: What is true, (rows,).

    Returns:
        None where there is none, as of a single row, or where predictions are no numbers.
    """
    value, rows = score(name, given, true), len(true)
    if not math.isfinite(value) or rows < 2:
        return None
    if name == "accuracy":
        return _wilson(value, rows)
    chance = np.random.default_rng(0)
    drawn = [chance.integers(rows, size=rows) for _ in range(_RESAMPLES)]
    found = np.array([score(name, given[rows_of], true[rows_of]) for rows_of in drawn])
    found = found[np.isfinite(found)]  # a sample whose numbers are all equal has no r2
    if len(found) < _RESAMPLES // 2:
        return None
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def _wilson(share: float, rows: int) -> tuple[float, float]:
    """Wilson (1927), "Probable inference, the law of succession, and statistical inference"."""
    square = _Z**2 / rows
    middle = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / rows + square / (4 * rows))
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))  # whatever rounding does
