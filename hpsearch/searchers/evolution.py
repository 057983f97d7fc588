"""Regularized evolution: the population is the newest trials, and the best of a random sample of them is mutated."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import Count, Settings
from hpsearch.objective import SortKey
from hpsearch.searchers.base import Problem, Search, Searcher, SearcherCapabilities, Suggestion, options_as
from hpsearch.searchers.history import Evidence
from hpsearch.searchers.learning import REDRAWS, LearningSearcher
from hpsearch.seeds import suggestion_seed
from hpsearch.space import Broken
from hpsearch.trial import StateAt, Value

if TYPE_CHECKING:
    from hpsearch.searchers.feasibility import Feasibility

_TOURNAMENTS = REDRAWS // 2
"""Number of proposals that are one mutation away from a trial; each further proposal mutates the one before it."""


@dataclass(frozen=True)
class _Options(Settings):
    """The defaults are for a few hundred trials (docs/benchmarks.md); Real et al. use 100 and 25 for 20,000."""

    population: Count = 20
    """Size of the population: the newest trials, which may have children."""
    sample: Count = 10
    """Size of the random sample whose best trial becomes a parent."""
    inherit: bool = False
    """`true`: a child is a fork of its parent's newest checkpoint, and inherits what the parent has learned."""

    def check(self) -> None:
        if self.sample > self.population:
            problem = f"must be at most the population ({self.population}), got {self.sample}"
            raise InvalidKey(("sample",), problem, "a larger sample finds its way sooner, and a local optimum as well")


class Evolution(LearningSearcher):
    """Mutates the best of a sample of the newest trials, so that every trial leaves the population, however good it is.

    Real et al., "Regularized Evolution for Image Classifier Architecture Search", AAAI 2019, Algorithm 1. The oldest
    trial is removed, so that a trial with a lucky result doesn't have children forever.

    In the paper, a new model replaces the oldest one once it is trained. Here the population is the newest trials by
    number that have ended and can be compared (see `History`). No configuration is tried twice: if a child was tried
    before, another tournament is held. After several such tournaments, the tried child is mutated again, so that the
    search stays near good configurations whose neighbours were all tried.

    With several goals, a trial is better if it is on an earlier Pareto front of the population, or in a less crowded
    region of the same front (`Objective.sort_keys`).
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
        """Check the options, and that a parameter can be mutated."""
        if not problem.space.mutable(problem.space.draw(0, 0)):
            advice = "give a parameter a second value, or a range"
            raise InvalidKey(("parameters",), "must hold a parameter that isn't constant, or none can mutate", advice)
        options_as(_Options, problem.settings, cls.kind)

    @classmethod
    def build(cls, problem: Problem) -> Searcher:
        """Build the searcher; children inherit if the option `inherit` is set."""
        return (InheritingEvolution if cls.may_fork(problem.settings) else cls)(problem)

    @classmethod
    def may_fork(cls, settings: Search) -> bool:
        """Return whether children inherit."""
        return options_as(_Options, settings, cls.kind).inherit

    def _population(self) -> list[Evidence]:
        """Return the trials that may have children."""
        trials = [trial for trial in self._history.evidence() if trial.value is not None]
        return trials[-self._options.population :]

    def _proposals(self, number: int, feasibility: Feasibility) -> Iterator[Suggestion]:
        population = self._population()
        sort_keys = self.problem.objective.sort_keys({trial.trial: trial.value for trial in population})
        child: dict[str, Value] = {}
        inherited: StateAt | None = None
        for attempt in range(REDRAWS if population else 0):
            seed = suggestion_seed(self.problem.seed, number, attempt)
            proposal = Suggestion(child, self.origin, inherited)
            if not child or attempt < _TOURNAMENTS:
                parent = self._parent(population, sort_keys, seed)
                proposal = Suggestion(parent.params, self.origin, self._inherited(parent.trial))
            try:
                child = self.problem.space.mutate(proposal.params, seed)
            except Broken:
                continue  # no mutation of this parent that was sampled satisfies the constraints
            inherited = proposal.parent
            yield replace(proposal, params=child)

    def _inherited(self, parent: int) -> StateAt | None:
        """Return the state that a child of a trial inherits; None if it inherits none."""
        return None

    def _parent(self, population: Sequence[Evidence], sort_keys: Mapping[int, SortKey], seed: int) -> Evidence:
        """Return the best trial of a sample with replacement, as in the paper; if tied, the first in the sample."""
        sample = Random(seed).choices(population, k=self._options.sample)
        return min(sample, key=lambda known: sort_keys[known.trial])


class InheritingEvolution(Evolution):
    """Evolution whose children are forks of their parents' newest checkpoints, and start at iteration 0.

    The trainable decides what a child inherits: a Trainer copies the weights that match. Checkpoints of the whole
    population are kept. If the parent has no checkpoint or is a trial of another search, the child starts from scratch.
    """

    capabilities: ClassVar[SearcherCapabilities] = replace(Evolution.capabilities, forks=True)

    def needs(self) -> Collection[StateAt]:
        """Return the newest states of all trials in the population."""
        return [state for trial in self._population() if (state := self._inherited(trial.trial)) is not None]

    def _inherited(self, parent: int) -> StateAt | None:
        return StateAt(parent, self._history.newest(parent)) if parent >= 0 else None
