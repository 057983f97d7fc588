"""A sweep of two goals and a constraint that a test may kill; called in child processes."""

from __future__ import annotations

import sys

import hpsearch
from hpsearch.searchers import Search
from hpsearch.space import Uniform

TRIALS = 14


def train(trial: hpsearch.RunningTrial) -> None:
    """Two goals that are at odds, and a size that some params exceed; with a checkpoint at each iteration."""
    x, y = trial.params["x"], trial.params["y"]
    for iteration in trial.iterations():
        metrics = {"error": (1 - x) ** 2 + 1 / iteration, "latency": x + y / iteration, "bytes": 100 * (x + y)}
        trial.report(metrics, checkpoint={"at": iteration})


def begin(study: str, method: str) -> None:
    """Run the sweep, or go on with it."""
    hpsearch.search(
        train,
        parameters={
            "parameters": {"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)},
            "outcome_constraints": ["bytes <= 120"],
            "name": "killed",
        },
        metric=[hpsearch.Metric("error", reference=2.0), hpsearch.Metric("latency", reference=2.0)],
        method=method,
        search=Search(startup=4, lag=1),
        early_terminate=hpsearch.Hyperband(4, eta=2),
        run_cap=TRIALS,
        directory=study,
        backend="inline",
        progress=False,
    )


if __name__ == "__main__":
    begin(*sys.argv[1:])
