"""Evolution whose children inherit their parents' weights beside evolution that trains each network from nothing.

Epochs count for both, those of ancestors too: every trial's are its own, and a parent's were paid when it was trained.
Half of the digits are validated on: of 360, the best networks get all right.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hpsearch
from hpsearch_trainers.digits import digits
from hpsearch_trainers.digits_network import ChainNetwork
from hpsearch_trainers.parts import Parts
from tests.benchmarks.figures import Figure
from tests.benchmarks.plot import Line, draw

PLOT = Path(__file__).parents[2] / "docs" / "images" / "inheritance.svg"
STEP = 16
"""Epochs from one point of the plot to the next."""
SEEDS = 5
LONG, SHORT = 8, 4
"""Epochs of a trial from nothing, and of one that inherits."""
EPOCHS = 320
"""Of a whole search."""

CHANNELS = hpsearch.Ordinal([8, 12, 16, 24, 32])
LAYERS = hpsearch.Chain(
    {
        "conv": {"channels": CHANNELS, "kernel": hpsearch.Ordinal([3, 5])},
        "separable": {"channels": CHANNELS, "kernel": hpsearch.Ordinal([3, 5])},
        "pool": {},
    },
    min=2,
    max=5,
)


class HalfOfTheDigits(ChainNetwork):
    """Trains on 897 images, validates on 900."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Divide the images anew."""
        known = digits()
        images = torch.cat([known.images, known.validation_images])
        labels = torch.cat([known.labels, known.validation_labels])
        train, validation = (images[:897], labels[:897]), (images[897:], labels[897:])
        return replace(super().build(params), train=train, validation=validation)


def measure(rounds: int) -> list[Figure]:
    """Search the digits with five seeds, however many rounds."""
    shares, arrivals, reached, halfway = [], [], [], []
    searches: list[tuple[list[float], ...]] = []
    for seed in range(SEEDS):
        nothing = list(best_by_epoch(seed, LONG))
        short = list(best_by_epoch(seed, SHORT))
        inheriting = list(best_by_epoch(seed, SHORT, inherit=True))
        searches.append((nothing, inheriting, short))
        aim = nothing[-1]
        first = next((spent for spent, best in enumerate(nothing, 1) if best >= aim), EPOCHS)
        spent = next((spent for spent, best in enumerate(inheriting, 1) if best >= aim), 2 * EPOCHS)
        half = inheriting[EPOCHS // 2 - 1]
        told = f"| {seed} | {aim:.4f} | {first} | {spent} | {half:.4f} | {inheriting[-1]:.4f} | {short[-1]:.4f} |"
        print(told, file=sys.stderr, flush=True)
        shares.append(spent / EPOCHS)
        arrivals.append(spent / first)
        reached.append(inheriting[-1] - aim)
        halfway.append(half - aim)
    PLOT.write_text(_plot(searches))
    text = "epochs of evolution with inheritance to the best accuracy of evolution without"
    return [
        Figure(f"{text}, by the latter's {EPOCHS}", "share", shares, "at most 0.5"),
        Figure(f"{text}, by those that the latter needed", "share", arrivals, ""),
        Figure("accuracy of evolution with inheritance less that without", "", reached, "above 0"),
        Figure("the same, with inheritance after half of the epochs", "", halfway, "at least 0"),
        Figure("the mean of the former", "share", [statistics.fmean(shares)], "at most 0.5"),
    ]


def _plot(searches: list[tuple[list[float], ...]]) -> str:
    names = (f"from nothing, {LONG} epochs each", f"inheriting, {SHORT} epochs each", f"from nothing, {SHORT} each")
    kinds = zip(names, zip(*searches, strict=True), strict=True)
    lines = [Line(name, [[100 - 100 * best for best in run[STEP - 1 :: STEP]] for run in runs]) for name, runs in kinds]
    title = f"Networks for half of the digits: mean and range of {SEEDS} searches"
    ticks = (0.5, 1, 2, 3, 5, 10, 20, 50, 90)
    return draw(title, f"epochs of all trials together, by {STEP}", "least error so far in %", lines, ticks)


def best_by_epoch(seed: int, longest: int, inherit: bool = False) -> Iterator[float]:
    """Search with trials of so many epochs; return the best accuracy after each epoch, in the order of the trials.

    The epochs of a trial that failed count as the others' do.
    """
    with tempfile.TemporaryDirectory() as folder:
        study = hpsearch.search(
            HalfOfTheDigits,
            parameters={"layers": LAYERS, "lr": hpsearch.LogUniform(0.005, 0.3), "batch_size": 64},
            metric={"name": "accuracy", "goal": "maximize"},
            method="evolution",
            search={"options": {"inherit": inherit, "population": 10, "sample": 5}},
            max_iter=longest,
            run_cap=EPOCHS // longest,
            seed=seed,
            backend="inline",
            directory=Path(folder) / "study",
            observers=[],
            progress=False,
        )
        curves, best = study.curves("accuracy"), 0.0
        for row in study.trials:
            reported = [accuracy for _, accuracy in curves.get(row.number, [])]
            for accuracy in [*reported, *[0.0] * (longest - len(reported))]:
                best = max(best, accuracy)
                yield best
