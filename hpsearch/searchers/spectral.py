"""Harmonica: compressed sensing finds which booleans of the space matter, and each stage fixes some of them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import AtLeast, Count, Settings
from hpsearch.searchers.base import Problem, Suggestion, refuse_conditions, refuse_constraints
from hpsearch.searchers.boolean_space import BooleanSpace
from hpsearch.searchers.history import Evidence
from hpsearch.searchers.learning import REDRAWS, LearningSearcher
from hpsearch.searchers.settings import options_as
from hpsearch.seeds import suggestion_seed

__all__ = ["Monomial", "Spectral", "minimizer", "monomials", "sparse_polynomial"]

Monomial = tuple[int, ...]
"""The indices of the booleans that are multiplied, rising."""

_MOST_STEPS = 60
"""Steps of the path; each costs as much as a look at all samples of all products."""

_NEGLIGIBLE = 1e-6
"""The residual standard deviation, of values with 1, when all but rounding is explained."""

_MOST_SETTLED = 20
"""Booleans that a stage may fix: all their values are evaluated."""

_MOST_SAMPLES = 300
"""Trials after which a stage ends at the latest, as many as in the paper."""

_MOST_NUMBERS = 20_000_000
"""Samples times monomials of a stage: some hundred megabytes."""


@dataclass(frozen=True)
class _Options(Settings):
    samples: Annotated[int, AtLeast(4)] = 10
    """Trials after which a stage is evaluated, repeatedly until a monomial is significant."""
    stages: Count = 3
    degree: Count = 3
    """Booleans that a monomial multiplies, at most."""
    monomials: Count = 5
    """Monomials that a stage learns, at most."""

    def check(self) -> None:
        if self.monomials * self.degree > _MOST_SETTLED:
            problem = f"times degree ({self.degree}) must be at most {_MOST_SETTLED}, got {self.monomials}"
            raise InvalidKey(("monomials",), problem, "further booleans are for further stages")


class Spectral(LearningSearcher):
    """Fits a sparse polynomial of low degree in the space's booleans, fixes those at its minimum, and repeats.

    Hazan, Klivans and Yuan, "Hyperparameter Optimization: A Spectral Approach", ICLR 2018, Algorithm 1 (Harmonica). A
    stage learns from the trials in the subspace that earlier stages have fixed, by number, at the shortest length of
    training if there are several. The paper's stages have a fixed number of samples; here a stage is evaluated after
    every `samples`, and ends when a monomial is significant. After the last stage, the rest of the space is sampled at
    random; `early_terminate` decides how long these trials run.

    Only the best assignment of a stage's booleans is kept (the paper's t is 1, as in the authors' program). Values far
    above the median are clipped to the distance of the best one below it, so that a diverged trial doesn't dominate the
    sum of squares. Stages use booleans that aren't fixed yet, so an earlier polynomial is constant in them and needn't
    be subtracted.
    """

    kind: ClassVar[str] = "spectral"
    longest: ClassVar[bool] = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._options = options_as(_Options, problem.settings, self.kind)
        self.startup = self._options.samples
        self._booleans = BooleanSpace(problem.space)
        self._codes: dict[int, NDArray[np.int8] | None] = {}
        """Booleans by trial."""
        self._learned: dict[tuple[int, int], tuple[object, dict[int, int]]] = {}
        """Of each (stage, samples), the last data, and the booleans that were fixed by it."""

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check the options, and that there is something to learn that fits into memory."""
        options = options_as(_Options, problem.settings, cls.kind)
        refuse_conditions(problem, cls.kind)
        refuse_constraints(problem, cls.kind)
        booleans = BooleanSpace(problem.space)
        if not booleans.size:
            raise InvalidKey(("parameters",), "must hold a parameter that isn't constant, or there is nothing to learn")
        count = sum(math.comb(booleans.size, size) for size in range(1, options.degree + 1))
        samples = max(options.samples, _MOST_SAMPLES)
        if count * samples > _MOST_NUMBERS:
            raise InvalidKey(
                ("search", "options", "degree"),
                f"must be less than {options.degree} where {booleans.size} booleans may be sampled {samples} "
                f"times: {count:,} products in each sample are more than {_MOST_NUMBERS:,} numbers",
                "take a degree of 2, which sees pairs; a number is three booleans, a choice one for each value",
            )

    def _proposals(self, number: int) -> Iterator[Suggestion]:
        settled = self._settled()
        for attempt in range(REDRAWS if settled else 0):
            # If the newest subspace was tried completely, the one before it has other configurations.
            fixed = settled[-min(1 + 2 * attempt // REDRAWS, len(settled))]
            params = self._booleans.draw(fixed, suggestion_seed(self.problem.seed, number, attempt))
            yield Suggestion(params, self.origin)

    def _settled(self) -> list[dict[int, int]]:
        """Return the booleans that are fixed after each stage that was learned."""
        known = [one for one in self._evidence() if one.value is not None and self._code(one) is not None]
        codes = np.array([self._code(one) for one in known], dtype=np.int8).reshape(len(known), self._booleans.size)
        sign = 1.0 if self.problem.objective.goals[0].goal == "minimize" else -1.0
        values = sign * np.array([one.value for one in known], dtype=np.float64)
        settled: list[dict[int, int]] = []
        inside = np.arange(len(known))
        for stage in range(self._options.stages):
            before = settled[-1] if settled else {}
            now = before
            most = min(len(inside), max(self._options.samples, _MOST_SAMPLES))
            for count in range(self._options.samples, most + 1, self._options.samples):
                now = self._learn((stage, count), before, codes[inside[:count]], values[inside[:count]])
                if now != before:
                    break
            if now == before:
                break
            settled.append(now)
            indices = sorted(now)
            inside = inside[(codes[inside][:, indices] == [now[index] for index in indices]).all(axis=1)]
        return settled

    def _learn(
        self, stage: tuple[int, int], before: dict[int, int], codes: NDArray[np.int8], values: NDArray[np.float64]
    ) -> dict[int, int]:
        """Return the booleans that are fixed after a stage, cached for the same data."""
        key = (sorted(before.items()), codes.tobytes(), values.tobytes())
        if stage not in self._learned or self._learned[stage][0] != key:
            free = [index for index in range(self._booleans.size) if index not in before]
            products = monomials(free, self._options.degree, self._booleans.alternatives)
            polynomial = sparse_polynomial(codes, _clipped(values), products, self._options.monomials)
            indices = sorted({index for monomial in polynomial for index in monomial})
            best = minimizer(polynomial, indices, self._booleans.patterns(indices, before))
            self._learned[stage] = key, before | best
        return self._learned[stage][1]

    def _code(self, known: Evidence) -> NDArray[np.int8] | None:
        """Return a trial's booleans; None if it has a value of probability 0."""
        if known.trial not in self._codes:
            self._codes[known.trial] = self._booleans.encode(known.params)
        return self._codes[known.trial]


def _clipped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Clip values, less being better, to at most as far above their median as the best is below it."""
    median = float(np.median(values))
    clipped: NDArray[np.float64] = np.minimum(values, 2 * median - float(values.min()))
    return clipped


def monomials(free: Sequence[int], degree: int, alternatives: Mapping[int, int]) -> list[Monomial]:
    """Return the products of up to `degree` of the free booleans, the shortest first.

    Args:
        free: Indices.
        degree: At least 1.
        alternatives: Booleans to their group, of which exactly one is 1: products of two of a group are redundant.
    """
    return [
        product
        for size in range(1, degree + 1)
        for product in itertools.combinations(free, size)
        if _is_new(product, alternatives)
    ]


def _is_new(product: Monomial, alternatives: Mapping[int, int]) -> bool:
    groups = [alternatives[index] for index in product if index in alternatives]
    return len(groups) == len(set(groups))


def sparse_polynomial(
    samples: NDArray[np.int8], values: NDArray[np.float64], products: Sequence[Monomial], most: int
) -> dict[Monomial, float]:
    """Return the monomials that explain the values significantly, with their coefficients.

    The candidates come from the path of the LASSO, its solutions as the penalty falls (least angle regression, Efron et
    al., Annals of Statistics 2004). The penalty grows with the number of booleans in a monomial, since there are many
    more long ones. Coefficients come from least squares over the significant candidates, because the penalty shrinks
    them. The paper takes the largest coefficients for a single penalty that the user chooses, significant or not.

    Args:
        samples: [n, booleans].
        values: [n], finite.
        products: The candidates; those that are the same in all samples are left out.
        most: Most monomials.
    """
    if not products:
        return {}
    columns = np.stack([samples[:, list(product)].prod(axis=1) for product in products], axis=1).astype(np.float64)
    columns -= columns.mean(axis=0)
    scales = np.sqrt((columns**2).mean(axis=0))
    varying = [int(column) for column in np.flatnonzero(scales)]
    centered = values - values.mean()
    spread = float(np.sqrt((centered**2).mean()))
    if not varying or spread == 0:
        return {}
    columns = columns[:, varying] / scales[varying]
    sizes = np.array([len(products[column]) for column in varying], dtype=np.float64)
    candidates = _significant(columns, sizes, centered / spread)[: 3 * most]
    fitted = np.linalg.lstsq(columns[:, candidates], centered, rcond=None)[0]
    largest = np.argsort(-np.abs(fitted), kind="stable")[:most]
    chosen = [varying[candidates[index]] for index in largest]
    return {
        products[column]: float(coefficient / scales[column])
        for column, coefficient in zip(chosen, fitted[largest], strict=True)
    }


def _significant(columns: NDArray[np.float64], sizes: NDArray[np.float64], values: NDArray[np.float64]) -> list[int]:
    """Return the columns that enter the path with more correlation to the residual than chance explains, in order.

    Of p columns of noise the largest correlation with n values is about sqrt(2 ln(p) / n).

    Args:
        columns: [n, p], of mean 0 and variance 1.
        sizes: [p], the factors of the penalty.
        values: [n], of mean 0 and variance 1.
    """
    from sklearn.linear_model import lars_path

    count, scaled = len(values), columns / sizes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of equal columns, or of a residual of 0
        penalties, _, path = lars_path(scaled, values, method="lasso", max_iter=max(min(count // 4, _MOST_STEPS), 1))
    chance = {size: math.sqrt(2 * math.log(max((sizes == size).sum(), 2)) / count) for size in set(sizes)}
    significant: list[int] = []
    for step, penalty in enumerate(penalties[:-1]):
        residual = float((values - scaled @ path[:, step]).std())
        if residual < _NEGLIGIBLE:
            break
        entering = np.flatnonzero((path[:, step + 1] != 0) & (path[:, step] == 0))
        # A column enters when its covariance with the residual is as large as its penalty.
        significant += [
            int(column)
            for column in entering
            if penalty * sizes[column] > chance[sizes[column]] * residual and column not in significant
        ]
    return significant


def minimizer(
    polynomial: Mapping[Monomial, float], indices: Sequence[int], patterns: Sequence[NDArray[np.int8]]
) -> dict[int, int]:
    """Return the values of a polynomial's booleans that minimize it; of equal ones the first.

    Args:
        polynomial: Monomials to coefficients.
        indices: Its booleans, rising.
        patterns: Of each parameter, rows of the values of its booleans. All combinations are evaluated.
    """
    rows = np.zeros((1, 0), dtype=np.int8)
    for pattern in patterns:
        rows = np.hstack([np.repeat(rows, len(pattern), axis=0), np.tile(pattern, (len(rows), 1))])
    column_of = {index: column for column, index in enumerate(indices)}
    values = np.zeros(len(rows))
    for monomial, coefficient in polynomial.items():
        values += coefficient * rows[:, [column_of[index] for index in monomial]].prod(axis=1)
    best = rows[int(np.argmin(values))]
    return {index: int(value) for index, value in zip(indices, best, strict=True)}
