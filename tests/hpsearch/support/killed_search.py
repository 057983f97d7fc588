"""A sweep that learns, or forks, on the inline backend or on Ray, that a test may kill; called in child processes."""

from __future__ import annotations

import os
import sys
from typing import Any

import hpsearch
from hpsearch.searchers import Search
from hpsearch.space import Cell, Choice, Derived, Ordinal, Repeat, Uniform, When
from tests.hpsearch.support.merged import merged


def train(trial: hpsearch.RunningTrial) -> None:
    """A bowl, with a checkpoint at each iteration."""
    for iteration in trial.iterations():
        trial.report({"loss": (trial.params["x"] - 0.3) ** 2 + 1.0 / iteration}, checkpoint={"at": iteration})


LEARNING: dict[str, Any] = {
    "search": Search(startup=3, lag=1),
    "early_terminate": hpsearch.SuccessiveHalving(4, eta=2, trials=4),
    "run_cap": 12,
}
STRUCTURES: dict[str, Any] = {
    "x": Uniform(0.0, 1.0),
    "optimizer": Choice({"sgd": {"momentum": Uniform(0.0, 1.0)}, "adam": {}}),
    "nesterov": When("optimizer == 'sgd' and optimizer.sgd.momentum > 0.5", [True, False]),
    "blocks": Repeat({"width": Ordinal([1, 2, 4]), "kind": ["a", "b"]}, 1, 3),
    "cell": Cell({"skip": {}, "conv": {"k": [3, 5]}}, 2, "node"),
    "width": Derived("sum(blocks.*.width)"),
}
METHODS: dict[str, dict[str, Any]] = {
    "tpe": LEARNING,
    "structures": {
        **LEARNING,
        "method": "tpe",
        "parameters": STRUCTURES,
        "constraints": ["width <= 6"],
    },
    "evolution": LEARNING,
    "spectral": {**LEARNING, "search": Search(startup=3, lag=1, options={"samples": 4})},
    "pbt": {"early_terminate": hpsearch.PBT(8, population=4, interval=1, quantile=0.25)},
}


def begin(study: str, backend: Any = "inline", method: str = "tpe") -> None:
    """Run the sweep, or go on with it."""
    hpsearch.search(
        train,
        metric="loss",
        **merged(
            {"method": method, "parameters": {"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)}, "name": "killed"},
            METHODS[method],
        ),
        directory=study,
        backend=backend,
        observers=[],
        progress=False,
    )


if __name__ == "__main__":
    print(os.getpid(), flush=True)
    begin(*sys.argv[1:])
