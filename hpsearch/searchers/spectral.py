"""Harmonica: which booleans of the space matter, found by compressed sensing, and settled stage by stage."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from hpsearch.searchers.parities import minimizer, monomials, sparse_polynomial
from hpsearch.searchers.settings import options_as
from hpsearch.seeds import suggestion_seed

__all__ = ["Spectral"]

_MOST_SETTLED = 20
"""Booleans that a stage may settle: all their values are looked at."""

_MOST_SAMPLES = 300
"""Trials by which a stage is over, or nothing will ever stand out: as many as the paper's have."""

_MOST_NUMBERS = 20_000_000
"""Samples times monomials of a stage: some hundreds of megabytes."""


@dataclass(frozen=True)
class _Options(Settings):
    samples: Annotated[int, AtLeast(4)] = 10
    """Trials after which a stage is looked at, again and again until something stands out."""
    stages: Count = 3
    degree: Count = 3
    """Booleans that a monomial multiplies, at most."""
    monomials: Count = 5
    """Those that a stage learns, at most."""

    def check(self) -> None:
        if self.monomials * self.degree > _MOST_SETTLED:
            problem = f"times degree ({self.degree}) must be at most {_MOST_SETTLED}, got {self.monomials}"
            raise InvalidKey(("monomials",), problem, "further booleans are for further stages")


class Spectral(LearningSearcher):
    """Finds a sparse polynomial of low degree in the space's booleans, settles those at its best, and looks on.

    Hazan, Klivans and Yuan, "Hyperparameter Optimization: A Spectral Approach", ICLR 2018, Algorithm 1 (Harmonica). A
    stage learns from the trials that lie in what the stages before it have left, by number, at the shortest length of
    training where there are several. The paper's has a fixed number of samples; here it is looked at after every
    `samples` of them, and over when a monomial stands out of what chance would show. What is left after the last stage
    is drawn from at random; an `early_terminate` says how these trials are run.

    Of the assignments of a stage's booleans the best alone goes on (the paper's t is 1, as in the authors' program).
    What is much worse than the median tells no more than what is worse by as much as the best is better: otherwise a
    diverged trial would be all that a sum of squares sees. Stages look at booleans that aren't settled yet, so that
    nothing of a former polynomial need be taken off the values: it is the same in all of them.
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
        """Of each stage, what it learned from last, and what was settled then."""

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
            # Where the newest space was tried to its last points, the one before it has others.
            left = settled[-min(1 + 2 * attempt // REDRAWS, len(settled))]
            drawn = self._booleans.draw(left, suggestion_seed(self.problem.seed, number, attempt))
            yield Suggestion(drawn, self.origin)

    def _settled(self) -> list[dict[int, int]]:
        """Give which booleans have been settled, after each stage that has been learned."""
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
            places = sorted(now)
            inside = inside[(codes[inside][:, places] == [now[place] for place in places]).all(axis=1)]
        return settled

    def _learn(
        self, stage: tuple[int, int], before: dict[int, int], codes: NDArray[np.int8], values: NDArray[np.float64]
    ) -> dict[int, int]:
        """Give what is settled after a stage; what it learned from last is looked up."""
        key = (sorted(before.items()), codes.tobytes(), values.tobytes())
        if stage not in self._learned or self._learned[stage][0] != key:
            free = [place for place in range(self._booleans.size) if place not in before]
            products = monomials(free, self._options.degree, self._booleans.alternatives)
            polynomial = sparse_polynomial(codes, _clipped(values), products, self._options.monomials)
            places = sorted({place for monomial in polynomial for place in monomial})
            best = minimizer(polynomial, places, self._booleans.patterns(places, before))
            self._learned[stage] = key, before | best
        return self._learned[stage][1]

    def _code(self, known: Evidence) -> NDArray[np.int8] | None:
        """Give a trial's booleans; None where it holds a value that is never drawn."""
        if known.trial not in self._codes:
            self._codes[known.trial] = self._booleans.encode(known.params)
        return self._codes[known.trial]


def _clipped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give values of which less is better, none further above their median than the best is below it."""
    median = float(np.median(values))
    clipped: NDArray[np.float64] = np.minimum(values, 2 * median - float(values.min()))
    return clipped
