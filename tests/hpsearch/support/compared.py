"""Small studies to compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpsearch
from tests.hpsearch.support.merged import merged


def parabola(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        trial.report({"loss": (trial.params["x"] - 0.37) ** 2 + 1 / iteration})


def two(trial: hpsearch.RunningTrial) -> None:
    for _ in trial.iterations():
        trial.report({"loss": trial.params["x"], "cost": (1 - trial.params["x"]) ** 2})


def searched(directory: Path, function: Callable[..., Any] = parabola, **changes: Any) -> hpsearch.Study:
    given: dict[str, Any] = {
        "parameters": {"x": hpsearch.Uniform(0, 1), "c": 3},
        "metric": "loss",
        "method": "random",
        "run_cap": 6,
        "max_iter": 3,
    }
    return hpsearch.search(
        function,
        backend="inline",
        directory=directory,
        observers=[],
        progress=False,
        **merged(given, changes),
    )
