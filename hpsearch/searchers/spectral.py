"""Harmonica: compressed sensing finds the booleans of the space that matter, and each stage fixes some of them."""

from __future__ import annotations

import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpsearch.config.checks import InvalidKey
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.config.settings import AtLeast, Count, Settings
from hpsearch.searchers.base import (
    Problem,
    SearcherCapabilities,
    Suggestion,
    options_as,
    refuse_conditions,
    refuse_constraints,
)
from hpsearch.searchers.feasibility import Feasibility
from hpsearch.searchers.history import Evidence
from hpsearch.searchers.learning import REDRAWS, LearningSearcher
from hpsearch.seeds import DRAW_BITS, suggestion_seed
from hpsearch.space import Categorical, Distribution, Space
from hpsearch.space.distribution import Numeric, own_copy
from hpsearch.trial import Params, Value

Monomial = tuple[int, ...]
"""Rising indices of the booleans that are multiplied."""

_MOST_STEPS = 60
"""Maximum number of steps of the LASSO path; the cost of a step is the number of samples times that of products."""

_NEGLIGIBLE = 1e-6
"""Residual standard deviation, for values with standard deviation 1, at which only rounding errors remain."""

_MOST_SETTLED = 20
"""Maximum number of booleans that a stage may fix: all combinations of their values are evaluated."""

_MOST_SAMPLES = 300
"""Maximum number of trials of a stage, as in the paper."""

_MOST_NUMBERS = 20_000_000
"""Maximum number of samples times monomials of a stage: a few hundred megabytes."""

_PARTS = 8
"""Number of cells of a number's scale, which three booleans distinguish."""

_ATTEMPTS = 1_000
"""Maximum number of samples of a number, before a stored example of the cell is used."""


@dataclass(frozen=True)
class _Options(Settings):
    samples: Annotated[int, AtLeast(4)] = 10
    """Number of trials after which a stage is evaluated, repeated until a monomial is significant."""
    stages: Count = 3
    degree: Count = 3
    """Maximum number of booleans in a monomial."""
    monomials: Count = 5
    """Maximum number of monomials of a stage."""

    def check(self) -> None:
        if self.monomials * self.degree > _MOST_SETTLED:
            problem = f"times degree ({self.degree}) must be at most {_MOST_SETTLED}, got {self.monomials}"
            raise InvalidKey(("monomials",), problem, "further booleans are for further stages")


class Spectral(LearningSearcher):
    """Fits a sparse polynomial of low degree in the space's booleans, fixes those at its minimum, and repeats.

    Hazan, Klivans and Yuan, "Hyperparameter Optimization: A Spectral Approach", ICLR 2018, Algorithm 1 (Harmonica). A
    stage learns from the trials in the subspace that earlier stages have fixed, in the order of their numbers. Under
    rungs, values are compared at the shortest length of training. The paper's stages have a fixed number of samples;
    here a stage is evaluated after every `samples` trials, and ends when a monomial is significant. After the last
    stage, the remaining space is sampled at random; `early_terminate` decides how long these trials run.

    Only the best assignment of a stage's booleans is kept (t = 1 in the paper, as in the authors' program). Values are
    clipped to be at most as far above the median as the best value is below it, so that a diverged trial doesn't
    dominate the sum of squares. Stages only use booleans that aren't fixed yet. The polynomials of earlier stages are
    constant in them, so they needn't be subtracted.
    """

    kind: ClassVar[str] = "spectral"
    capabilities: ClassVar[SearcherCapabilities] = replace(LearningSearcher.capabilities, changes=False)
    longest: ClassVar[bool] = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._options = options_as(_Options, problem.settings, self.kind)
        self.startup = self._options.samples
        self._booleans = BooleanSpace(problem.space)
        self._codes: dict[int, NDArray[np.int8] | None] = {}
        """Trial number to the booleans of its configuration."""
        self._learned: dict[tuple[int, int], tuple[object, dict[int, int]]] = {}
        """(stage, samples) to the last data, and the booleans that the stage fixed with that data."""

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check the options, the installation, that a parameter varies, and that the monomials fit into memory."""
        if not is_installed("sklearn"):
            missing = "must be one that can run here, but spectral needs scikit-learn, which isn't installed"
            raise InvalidKey(("method",), missing, installing("design"))
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

    def _proposals(self, number: int, feasibility: Feasibility) -> Iterator[Suggestion]:
        settled = self._settled()
        for attempt in range(REDRAWS if settled else 0):
            # If all of the newest subspace was tried, the subspace before it has other configurations.
            fixed = settled[-min(1 + 2 * attempt // REDRAWS, len(settled))]
            params = self._booleans.draw(fixed, suggestion_seed(self.problem.seed, number, attempt))
            yield Suggestion(params, self.origin)

    def _settled(self) -> list[dict[int, int]]:
        """Return the fixed booleans (index to value) after each completed stage."""
        trials = [trial for trial in self._evidence() if trial.value is not None and self._code(trial) is not None]
        codes = np.array([self._code(trial) for trial in trials], dtype=np.int8).reshape(
            len(trials), self._booleans.size
        )
        sign = 1.0 if self.problem.objective.goals[0].goal == "minimize" else -1.0
        values = sign * np.array([trial.value for trial in trials], dtype=np.float64)
        settled: list[dict[int, int]] = []
        inside = np.arange(len(trials))
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
        """Return the fixed booleans (index to value) after a stage, cached for the same data."""
        key = (sorted(before.items()), codes.tobytes(), values.tobytes())
        if stage not in self._learned or self._learned[stage][0] != key:
            free = [index for index in range(self._booleans.size) if index not in before]
            products = monomials(free, self._options.degree, self._booleans.alternatives)
            polynomial = sparse_polynomial(codes, _clipped(values), products, self._options.monomials)
            indices = sorted({index for monomial in polynomial for index in monomial})
            best = minimizer(polynomial, indices, self._booleans.patterns(indices, before))
            self._learned[stage] = key, before | best
        return self._learned[stage][1]

    def _code(self, evidence: Evidence) -> NDArray[np.int8] | None:
        """Return a trial's booleans; None if it has a value of probability 0."""
        if evidence.trial not in self._codes:
            self._codes[evidence.trial] = self._booleans.encode(evidence.params)
        return self._codes[evidence.trial]


def _clipped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values (lower is better), clipped to be at most as far above the median as the best value is below it."""
    median = float(np.median(values))
    clipped: NDArray[np.float64] = np.minimum(values, 2 * median - float(values.min()))
    return clipped


def monomials(free: Sequence[int], degree: int, alternatives: Mapping[int, int]) -> list[Monomial]:
    """Return the products of up to `degree` of the free booleans, the shortest first.

    Args:
        free: Indices of the booleans.
        degree: At least 1.
        alternatives: Boolean to its group. Exactly one of a group is 1, so a product of two of them is redundant.
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

    The candidates come from the LASSO path: the solutions for decreasing penalties (least angle regression, Efron et
    al., Annals of Statistics 2004). The penalty grows with the number of booleans in a monomial, since there are many
    more long ones. The penalty shrinks coefficients, so the returned ones are fitted by least squares to the
    significant candidates. The paper uses the largest coefficients for a single penalty that the user chooses,
    significant or not.

    Args:
        samples: [n, booleans].
        values: [n], finite.
        products: The candidates. Products that are constant over all samples are left out.
        most: Maximum number of monomials.
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

    The largest correlation of p columns of noise with n values is about sqrt(2 ln(p) / n).

    Args:
        columns: [n, p], each with mean 0 and variance 1.
        sizes: [p], factors of the penalty.
        values: [n], with mean 0 and variance 1.
    """
    from sklearn.linear_model import lars_path

    count, scaled = len(values), columns / sizes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about equal columns, or a residual of 0
        penalties, _, path = lars_path(scaled, values, method="lasso", max_iter=max(min(count // 4, _MOST_STEPS), 1))
    chance = {size: math.sqrt(2 * math.log(max((sizes == size).sum(), 2)) / count) for size in set(sizes)}
    significant: list[int] = []
    for step, penalty in enumerate(penalties[:-1]):
        residual = float((values - scaled @ path[:, step]).std())
        if residual < _NEGLIGIBLE:
            break
        entering = np.flatnonzero((path[:, step + 1] != 0) & (path[:, step] == 0))
        # A column enters the path when its covariance with the residual equals its penalty.
        significant += [
            int(column)
            for column in entering
            if penalty * sizes[column] > chance[sizes[column]] * residual and column not in significant
        ]
    return significant


def minimizer(
    polynomial: Mapping[Monomial, float], indices: Sequence[int], patterns: Sequence[NDArray[np.int8]]
) -> dict[int, int]:
    """Return the values of a polynomial's booleans that minimize the polynomial; if tied, the first.

    Args:
        polynomial: Monomials to coefficients.
        indices: Rising indices of the polynomial's booleans.
        patterns: For each parameter, rows of possible values of its booleans. All combinations are evaluated.
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


class BooleanSpace:
    """Encoding of a space by booleans (-1 and 1). Each parameter has cells, which are distinguished by booleans.

    - A number has eight cells of equal probability, or one cell per value if it has at most eight values. The
      cells are numbered in order, and the bits of a cell's number are its booleans: the first is 1 in the upper half.
    - A choice has a cell for each value that can be sampled. Two values have one boolean. More values are one-hot
      encoded: each has a boolean, exactly one of which is 1. With a binary code, some codes would have no value, and a
      product of bits would have no meaning.
    - A parameter with one value has no booleans.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._cells: list[_Cells] = []
        self._singles: dict[str, Value] = {}
        self.size = 0
        """Total number of booleans."""
        for parameter in space.parameters:
            if not parameter.distribution.searched:
                continue
            cells = _cells(parameter.name, parameter.distribution, self.size)
            if cells is None:
                self._singles[parameter.name] = parameter.distribution.draw(0)
            else:
                self._cells.append(cells)
                self.size = cells.indices.stop

    @cached_property
    def alternatives(self) -> dict[int, int]:
        """Index of a one-hot boolean to the index of the first boolean of its group."""
        return {index: cells.indices.start for cells in self._cells if cells.exclusive for index in cells.indices}

    def encode(self, params: Params) -> NDArray[np.int8] | None:
        """Return a configuration's booleans; None if it has a choice of probability 0."""
        codes = []
        for cells in self._cells:
            cell = cells.of(params[cells.name])
            if cell is None:
                return None
            codes.append(cells.codes[cell])
        return np.concatenate(codes)

    def patterns(self, indices: Sequence[int], fixed: Mapping[int, int]) -> list[NDArray[np.int8]]:
        """Return the possible values of some booleans while others are fixed, as an array of rows per parameter.

        The columns of all arrays together are the booleans of `indices`, which must rise, in this order.
        """
        patterns = []
        for cells in self._cells:
            columns = [index - cells.indices.start for index in indices if index in cells.indices]
            if columns:
                patterns.append(np.unique(cells.codes[cells.matching(fixed)][:, columns], axis=0))
        return patterns

    def draw(self, fixed: Mapping[int, int], seed: int) -> dict[str, Value]:
        """Sample a configuration with the fixed booleans from the parameters' distributions."""
        random = Random(seed)
        params = {cells.name: cells.draw(frozenset(cells.matching(fixed)), random) for cells in self._cells}
        return self._space.check(self._singles | params)


class _Cells(ABC):
    """The cells of one parameter.

    Args:
        name: The parameter's name.
        first: Index of its first boolean.
        codes: [cells, booleans].
    """

    exclusive = False
    """Whether exactly one of the booleans is 1."""

    def __init__(self, name: str, first: int, codes: NDArray[np.int8]) -> None:
        self.name = name
        self.indices = range(first, first + codes.shape[1])
        self.codes = codes

    def matching(self, fixed: Mapping[int, int]) -> list[int]:
        """Return the cells whose booleans match the fixed ones."""
        indices = [index for index in self.indices if index in fixed]
        values = np.array([fixed[index] for index in indices], dtype=np.int8)
        codes = self.codes[:, [index - self.indices.start for index in indices]]
        return [int(cell) for cell in np.flatnonzero((codes == values).all(axis=1))]

    @abstractmethod
    def of(self, value: Value) -> int | None:
        """Return the cell of a value; None if the value has probability 0."""

    @abstractmethod
    def draw(self, cells: frozenset[int], random: Random) -> Value:
        """Sample a value from some of the cells."""


class _Number(_Cells):
    def __init__(self, name: str, first: int, distribution: Numeric, values: Sequence[float] | None) -> None:
        self._distribution = distribution
        self._few: dict[float, int] | None = None
        """Value to the index of its cell, if the number has few values."""
        if values is not None and len(values) <= _PARTS:
            self._few = {value: number for number, value in enumerate(values)}
        if values is None:
            numbers = list(range(_PARTS))
            self._examples = [distribution.draw((2 * index + 1 << DRAW_BITS) // (2 * _PARTS)) for index in numbers]
        else:
            examples = {number: value for value in values if (number := self._number(value)) is not None}
            numbers, self._examples = list(examples), list(examples.values())
        self._cell_of = {number: cell for cell, number in enumerate(numbers)}
        bits = np.array([[1 if number >> bit & 1 else -1 for bit in (2, 1, 0)] for number in numbers], dtype=np.int8)
        super().__init__(name, first, bits[:, (bits != bits[0]).any(axis=0)])

    def _number(self, value: float) -> int | None:
        """Return the index of the cell of a value."""
        if self._few is not None:
            return self._few.get(value)
        return min(int(self._distribution.share(value) * _PARTS), _PARTS - 1)

    def of(self, value: Value) -> int | None:
        number = self._number(value)
        return None if number is None else self._cell_of.get(number)

    def draw(self, cells: frozenset[int], random: Random) -> Value:
        for _ in range(_ATTEMPTS):
            value = self._distribution.draw(random.getrandbits(DRAW_BITS))
            if self.of(value) in cells:
                return value
        return self._examples[min(cells)]  # practically never reached


class _Choice(_Cells):
    def __init__(self, name: str, first: int, distribution: Categorical) -> None:
        self._distribution = distribution
        self._values = distribution.every_value()
        self._weights = [distribution.weight(value) for value in self._values]
        count = len(self._values)
        self.exclusive = count > 2
        codes = 2 * np.eye(count, dtype=np.int8) - 1
        super().__init__(name, first, codes if self.exclusive else codes[:, 1:])

    def of(self, value: Value) -> int | None:
        try:
            return self._distribution.index(value)
        except KeyError:
            return None

    def draw(self, cells: frozenset[int], random: Random) -> Value:
        ordered = sorted(cells)
        return own_copy(self._values[random.choices(ordered, [self._weights[cell] for cell in ordered])[0]])


def _cells(name: str, distribution: Distribution, first: int) -> _Cells | None:
    """Return a parameter's cells; None if the parameter has only one value."""
    values = distribution.every_value()
    if values is not None and len(values) == 1:
        return None
    if isinstance(distribution, Categorical):
        return _Choice(name, first, distribution)
    if isinstance(distribution, Numeric):
        return _Number(name, first, distribution, values)
    raise TypeError(f"a distribution must be a choice or one of numbers, got {type(distribution).__name__}")
