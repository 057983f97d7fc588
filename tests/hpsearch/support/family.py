"""A searcher whose trials inherit weights, as a third party writes it."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from hpsearch.searchers.base import Observation, Problem, Searcher, SearcherCapabilities, Suggestion
from hpsearch.trial import StateAt, Trial


class Family(Searcher):
    """Draws three trials; each one after them is a child of the best that has ended, halfway to a draw.

    The less `loss`, the better. What it suggests depends on every call that it gets.
    """

    kind: ClassVar[str] = "tests.hpsearch.support.family:Family"
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(learns=True, forks=True, explores=True)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._losses: dict[int, float] = {}
        self._ended: dict[int, int] = {}
        self._trials: dict[int, Trial] = {}
        self._calls = 0

    def suggest(self, number: int) -> Suggestion | None:
        best = min(self._losses, key=lambda trial: (self._losses[trial], trial), default=None)
        if number < 3 or best is None:
            return Suggestion(self.problem.space.draw(self.problem.seed, number), "family")
        return Suggestion(self._between(number, self._trials[best]), "family", StateAt(best, self._ended[best]))

    def explore(self, number: int, parent: Trial) -> Suggestion:
        return Suggestion(self._between(number, parent), "explored")

    def needs(self) -> Collection[StateAt]:
        best = sorted(self._losses, key=lambda trial: (self._losses[trial], trial))[:1]
        return [StateAt(trial, self._ended[trial]) for trial in best]

    def started(self, trial: Trial) -> None:
        self._calls += 1
        self._trials[trial.number] = trial

    def observe(self, observation: Observation) -> None:
        self._calls += 1
        losses = [report.metrics["loss"] for report in observation.reports]
        if observation.ended and observation.failure is None and losses and losses[-1] == losses[-1]:
            self._losses[observation.trial.number] = losses[-1]
            self._ended[observation.trial.number] = observation.iteration

    def reverted(self, trial: Trial, iteration: int) -> None:
        self._calls += 1

    def dropped(self, trial: Trial) -> None:
        self._calls += 1

    def _between(self, number: int, parent: Trial) -> dict[str, float]:
        drawn = self.problem.space.draw(self.problem.seed, number)
        return {"x": (drawn["x"] + parent.params["x"]) / 2 + self._calls * 1e-9}
