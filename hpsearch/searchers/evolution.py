"""Regularized evolution: the newest trials are the population, and the best of a few of them is mutated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from hpsearch.checks import InvalidKey
from hpsearch.searchers.base import Problem
from hpsearch.searchers.history import Evidence
from hpsearch.searchers.learning import REDRAWS, LearningSearcher
from hpsearch.searchers.settings import options_as
from hpsearch.seeds import suggestion_seed
from hpsearch.settings import Count, Settings
from hpsearch.space import Broken
from hpsearch.trial import Value

__all__ = ["Evolution"]

_TOURNAMENTS = REDRAWS // 2
"""Proposals that are one mutation away from a trial; each further one mutates the one before it."""


@dataclass(frozen=True)
class _Options(Settings):
    """Real et al. have 100 and 25, for 20,000 trials. These are for some hundred (docs/benchmarks.md)."""

    population: Count = 20
    """The newest trials that may have children."""
    sample: Count = 10
    """Those of them that a parent is the best of."""

    def check(self) -> None:
        if self.sample > self.population:
            problem = f"must be at most the population ({self.population}), got {self.sample}"
            raise InvalidKey(("sample",), problem, "a larger sample finds its way sooner, and a local optimum as well")


class Evolution(LearningSearcher):
    """Mutates the best of a sample of the newest trials, so that each dies of age, however good it was.

    Real et al., "Regularized Evolution for Image Classifier Architecture Search", AAAI 2019, Algorithm 1. Dying of age
    keeps a trial that was merely lucky from having children for ever: what lasts must do well again, as its children.

    There a new model takes the place of the oldest one as it is trained. Here the population is the newest trials that
    can be compared (see `History`), by number, and those under way aren't in it. Nor is anything tried twice: a tried
    child gives way to one of another tournament, and where these were tried too, to children of a tried child, so that
    the search stays near good points where all next to them are known.
    """

    kind: ClassVar[str] = "evolution"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._options = options_as(_Options, problem.settings, self.kind)
        self.startup = self._options.population

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that there is something to mutate, and the options."""
        if not problem.space.mutable(problem.space.draw(0, 0)):
            advice = "give a parameter a second value, or a range"
            raise InvalidKey(("parameters",), "must hold a parameter that isn't constant, or none can mutate", advice)
        options_as(_Options, problem.settings, cls.kind)

    def _proposals(self, number: int) -> Iterator[dict[str, Value]]:
        population = [known for known in self._history.evidence() if known.value is not None]
        population = population[-self._options.population :]
        child: dict[str, Value] = {}
        for attempt in range(REDRAWS if population else 0):
            seed = suggestion_seed(self._problem.seed, number, attempt)
            parent = child if child and attempt >= _TOURNAMENTS else self._parent(population, seed).params
            try:
                child = self._problem.space.mutate(parent, seed)
            except Broken:
                continue  # nothing near this parent keeps the constraints
            yield child

    def _parent(self, population: Sequence[Evidence], seed: int) -> Evidence:
        """Hold a tournament: sampled with replacement, as in the paper; of equal ones the first in the sample."""
        sample = Random(seed).choices(population, k=self._options.sample)
        return min(sample, key=lambda known: self._problem.objective.place(known.value))
