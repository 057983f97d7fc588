"""Sweeps that begin with results, and what they begin with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import hpsearch
from hpsearch.objective import values_of
from hpsearch.results.study import Study
from hpsearch.searchers import Past, SearcherCapabilities, Suggestion
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.climbing import Climbing
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.scripted import sweep_of

SPACE: dict[str, Any] = {"lr": hpsearch.LogUniform(1e-4, 1.0), "width": hpsearch.IntUniform(1, 64)}


def bowl_loss(lr: float, width: int) -> float:
    """Least, 0, at (0.01, 20)."""
    return (math.log10(lr) + 2) ** 2 + ((width - 20) / 20) ** 2


def bowl(trial: hpsearch.RunningTrial) -> None:
    """Come nearer to the loss of the params from iteration to iteration."""
    for iteration in trial.iterations():
        loss = bowl_loss(trial.params["lr"], trial.params["width"])
        trial.report({"loss": loss * (1 + 1 / iteration), "other": 1.0}, checkpoint={})


class Bowl(hpsearch.Curves):
    """The same, recorded: its searcher needs no process of its own."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        loss = bowl_loss(**params)
        return hpsearch.Curve({"loss": [loss * (1 + 1 / i) for i in (1, 2)], "other": [1.0, 1.0]}, 1.0)


def search_bowl(directory: Path | str, **changes: Any) -> Study:
    """Run a sweep of it."""
    given: dict[str, Any] = {
        "parameters": SPACE,
        "metric": "loss",
        "max_iter": 2,
        "run_cap": 8,
        "directory": directory,
        "backend": "inline",
        "observers": [],
        "progress": False,
    }
    given = merged(given, changes)
    return hpsearch.search(Bowl if given["backend"] == "simulated" else bowl, **given)


def warm_sweep(**changes: Any) -> Sweep:
    """Return a sweep of its space that learns."""
    given = {
        "method": "tpe",
        "parameters": hpsearch.Space.from_parameters(SPACE),
        "early_terminate": None,
        "max_iter": 2,
        "run_cap": 8,
    }
    return sweep_of(**{**given, **changes})


class Recalling(Climbing):
    """Begins at the best that it recalls."""

    kind: ClassVar[str] = "tests.hpsearch.support.warm:Recalling"
    capabilities: ClassVar[SearcherCapabilities] = replace(Climbing.capabilities, recalls=True)
    _recalled: dict[str, Any] | None = None

    def recall(self, past: Sequence[Past]) -> None:
        self._recalled = dict(min(past, key=lambda one: values_of(list(one.values.values())[-1])).params)

    def suggest(self, number: int) -> Suggestion | None:
        if number == 0 and self._recalled is not None:
            return Suggestion(self._recalled, "recalled")
        return super().suggest(number)
