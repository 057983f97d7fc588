"""A searcher that learns, as a third party writes it: in one file, named in a sweep by its import path."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import ClassVar

from hpsearch.searchers.base import Observation, Problem, Searcher, SearcherCapabilities, Suggestion
from hpsearch.trial import Trial


class Climbing(Searcher):
    """Draws, and moves each draw halfway to the best trial that it knows; the less `loss`, the better.

    What it suggests depends on every call that it gets, and on their order.
    """

    kind: ClassVar[str] = "tests.hpsearch.support.climbing:Climbing"
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(learns=True)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._losses: dict[int, dict[int, float]] = {}
        self._params: dict[int, float] = {}
        self.calls: list[str] = []

    def suggest(self, number: int) -> Suggestion | None:
        drawn = self.problem.space.draw(self.problem.seed, number)
        known = [(min(losses.values()), trial) for trial, losses in sorted(self._losses.items()) if losses]
        if known:
            drawn["x"] = (drawn["x"] + self._params[min(known)[1]]) / 2 + len(self.calls) * 1e-9
        return Suggestion(drawn, "climbing")

    def started(self, trial: Trial) -> None:
        self.calls.append(f"started {trial.number}")
        self._params[trial.number] = trial.params["x"]

    def observe(self, observation: Observation) -> None:
        number = observation.trial.number
        self.calls.append(f"observe {number} {observation.iteration} {observation.ended}")
        losses = self._losses.setdefault(number, {})
        losses.update({report.iteration: report.metrics["loss"] for report in observation.reports})

    def reverted(self, trial: Trial, iteration: int) -> None:
        self.calls.append(f"reverted {trial.number} {iteration}")

    def dropped(self, trial: Trial) -> None:
        self.calls.append(f"dropped {trial.number}")


class Limited(Climbing):
    """Has no more than five suggestions, of which it remembers that it was asked for the sixth."""

    kind: ClassVar[str] = "tests.hpsearch.support.climbing:Limited"

    def suggest(self, number: int) -> Suggestion | None:
        if number >= 5:
            self.calls.append(f"asked {number}")
        return super().suggest(number) if number < 5 else None


class Failing(Climbing):
    """Goes wrong at its fourth suggestion where the environment says so, or writes its process's id where it says."""

    kind: ClassVar[str] = "tests.hpsearch.support.climbing:Failing"

    def suggest(self, number: int) -> Suggestion | None:
        how = os.environ.get("TEST_SEARCHER_FAILS")
        if number >= 3 and how == "raises":
            raise RuntimeError("no model")
        if number >= 3 and how == "dies":
            print("no more", file=sys.stderr, flush=True)
            os._exit(7)
        if number >= 3 and how:
            Path(how).write_text(str(os.getpid()))
            threading.Event().wait()
        return super().suggest(number)
