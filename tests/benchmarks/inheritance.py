"""Evolution whose children inherit their parents' weights beside evolution that trains each network from nothing.

Epochs count for both, those of ancestors too: every trial's are its own, and a parent's were paid when it was trained.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hpsearch
from tests.benchmarks.figures import Figure

__all__ = ["best_by_epoch", "measure"]

SEEDS = 5
LONG, SHORT = 8, 2
"""Epochs of a trial from nothing, and of one that inherits."""
EPOCHS = 320
"""Of a whole search."""

CHANNELS = hpsearch.Ordinal([4, 8, 12, 16, 24])
LAYERS = hpsearch.Chain(
    {
        "conv": {"channels": CHANNELS, "kernel": hpsearch.Ordinal([3, 5])},
        "separable": {"channels": CHANNELS, "kernel": hpsearch.Ordinal([3, 5])},
        "pool": {},
    },
    min=1,
    max=5,
)


def measure(rounds: int) -> list[Figure]:
    """Search the digits with five seeds, however many rounds."""
    shares, reached = [], []
    for seed in range(SEEDS):
        nothing = list(best_by_epoch(seed, inherit=False))
        inheriting = list(best_by_epoch(seed, inherit=True))
        aim = nothing[-1]
        first = next((spent for spent, best in enumerate(nothing, 1) if best >= aim), EPOCHS)
        spent = next((spent for spent, best in enumerate(inheriting, 1) if best >= aim), 2 * EPOCHS)
        told = f"| {seed} | {aim:.4f} | {first} | {spent} | {inheriting[-1]:.4f} |"
        print(told, file=sys.stderr, flush=True)
        shares.append(spent / EPOCHS)
        reached.append(inheriting[-1] - aim)
    text = "epochs of evolution with inheritance to the best accuracy of evolution without"
    return [
        Figure(f"{text}, by the latter's {EPOCHS}", "share", shares, "at most 0.5"),
        Figure("accuracy of evolution with inheritance less that without", "", reached, "above 0"),
        Figure("the mean share of epochs", "share", [statistics.fmean(shares)], "at most 0.5"),
    ]


def best_by_epoch(seed: int, inherit: bool) -> Iterator[float]:
    """Search; give the best accuracy after each epoch, in the order in which trials ended."""
    longest = SHORT if inherit else LONG
    with tempfile.TemporaryDirectory() as folder:
        study = hpsearch.search(
            "hpsearch_trainers.digits_network:chain",
            parameters={"layers": LAYERS, "lr": hpsearch.LogUniform(0.005, 0.3)},
            metric="accuracy",
            goal="maximize",
            method="evolution",
            suggestions={"options": {"inherit": inherit, "population": 10, "sample": 5}},
            max_iter=longest,
            run_cap=EPOCHS // longest,
            seed=seed,
            backend="inline",
            directory=Path(folder) / "study",
            tensorboard=False,
            progress=False,
        )
        best = 0.0
        for curve in study.curves("accuracy").values():
            for _, accuracy in curve:
                best = max(best, accuracy)
                yield best
