"""Regularized evolution: the newest trials are the population, and the best of a few of them is mutated."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import Count, Settings
from hpsearch.objective import SortKey
from hpsearch.searchers.base import Problem, Searcher, SearcherCapabilities, Suggestion
from hpsearch.searchers.history import Evidence
from hpsearch.searchers.learning import REDRAWS, LearningSearcher
from hpsearch.searchers.settings import Search, options_as
from hpsearch.seeds import suggestion_seed
from hpsearch.space import Broken
from hpsearch.trial import StateAt, Value

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
    inherit: bool = False
    """A child begins with what its parent has learned: it is a fork of the parent's newest checkpoint."""

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

    With several goals the better of two is the one in an earlier front of the population, in the same front the one
    that stands further apart: `Objective.places`.
    """

    kind: ClassVar[str] = "evolution"
    capabilities: ClassVar[SearcherCapabilities] = replace(
        LearningSearcher.capabilities, several_goals=True, outcome_constraints=True
    )

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

    @classmethod
    def build(cls, problem: Problem) -> Searcher:
        """Build it."""
        return (InheritingEvolution if cls.may_fork(problem.settings) else cls)(problem)

    @classmethod
    def may_fork(cls, settings: Search) -> bool:
        """Say whether children inherit."""
        return options_as(_Options, settings, cls.kind).inherit

    def _population(self) -> list[Evidence]:
        """Give the trials that may have children."""
        known = [known for known in self._history.evidence() if known.value is not None]
        return known[-self._options.population :]

    def _proposals(self, number: int) -> Iterator[Suggestion]:
        population = self._population()
        places = self.problem.objective.sort_keys({known.trial: known.value for known in population})
        child: dict[str, Value] = {}
        inherited: StateAt | None = None
        for attempt in range(REDRAWS if population else 0):
            seed = suggestion_seed(self.problem.seed, number, attempt)
            found = Suggestion(child, self.origin, inherited)
            if not child or attempt < _TOURNAMENTS:
                parent = self._parent(population, places, seed)
                found = Suggestion(parent.params, self.origin, self._inherited(parent.trial))
            try:
                child = self.problem.space.mutate(found.params, seed)
            except Broken:
                continue  # nothing near this parent keeps the constraints
            inherited = found.parent
            yield replace(found, params=child)

    def _inherited(self, parent: int) -> StateAt | None:
        """Give the state that a child of a trial begins with; None: none."""
        return None

    def _parent(self, population: Sequence[Evidence], places: Mapping[int, SortKey], seed: int) -> Evidence:
        """Hold a tournament: sampled with replacement, as in the paper; of equal ones the first in the sample."""
        sample = Random(seed).choices(population, k=self._options.sample)
        return min(sample, key=lambda known: places[known.trial])


class InheritingEvolution(Evolution):
    """The same, whose children are forks of their parents' newest checkpoints, and start at iteration 0.

    What a child makes of that is the trainable's: a Trainer takes over what fits. Checkpoints of the whole population
    are kept. A trial of another search, or one that saves none, has children that begin with nothing.
    """

    capabilities: ClassVar[SearcherCapabilities] = replace(Evolution.capabilities, forks=True)

    def needs(self) -> Collection[StateAt]:
        """Give the newest states of all that may have children."""
        return [state for known in self._population() if (state := self._inherited(known.trial)) is not None]

    def _inherited(self, parent: int) -> StateAt | None:
        return StateAt(parent, self._history.newest(parent)) if parent >= 0 else None
