"""The network that configs/architecture.yaml finds for the digits, beside the one written by hand.

Both are trained anew for as many epochs, and judged on splits that the search has not seen. The one by hand gets the
best of five rates by these very splits, which flatters it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hpsearch
from hpsearch.sweep.file import load_sweep
from hpsearch_trainers.digits import CNN
from hpsearch_trainers.digits_network import ChainNetwork
from hpsearch_trainers.trainer import Trainer
from tests.benchmarks.figures import Figure

SWEEP = Path("configs/architecture.yaml")
SEEDS = (1, 2, 3)
RATES = (0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass
class _Alone:
    """A trial without a search."""

    params: Mapping[str, Any]
    seed: int = field(kw_only=True)


def measure(rounds: int) -> list[Figure]:
    """Search once for each round, with a seed of its own."""
    by_hand, rate = _by_hand()
    print(f"by hand, with the rate {rate}: {by_hand}", file=sys.stderr, flush=True)
    found, seconds, parameters = [], [], []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            study = hpsearch.search(
                load_sweep(SWEEP, [f"seed={seed}"]), directory=Path(folder) / "study", progress=False
            )
            seconds.append(time.monotonic() - began)
            parameters.append(float(study.best_params["weights"]))
            retrained = [accuracy(ChainNetwork, study.best_params, split) for split in SEEDS]
        print(f"{study.best_params}: {retrained}", file=sys.stderr, flush=True)
        found.append(statistics.fmean(retrained))
    hand = [statistics.fmean(by_hand)] * rounds
    counted = float(sum(one.numel() for one in CNN(_Alone({}, seed=0)).model.parameters()))
    return [
        Figure("a network found for the digits: accuracy on other splits", "share", found, "above 1", "by hand", hand),
        Figure(
            "a network found for the digits: parameters", "", parameters, "at most 1", "by hand", [counted] * rounds
        ),
        Figure("a network found for the digits: the search", "s", seconds, "under 300"),
    ]


def _by_hand() -> tuple[list[float], float]:
    """Return the accuracies of the hand-written network, and its learning rate."""
    reached = {rate: [accuracy(CNN, {"lr": rate}, split) for split in SEEDS] for rate in RATES}
    best = max(reached, key=lambda rate: statistics.fmean(reached[rate]))
    return reached[best], best


def accuracy(trainable: type[Trainer], params: Mapping[str, Any], split: int, epochs: int = 27) -> float:
    """Train alone; return the accuracy after the last epoch."""
    trainer = trainable(_Alone(dict(params) | {"split": split}, seed=split))
    return [trainer.step()["accuracy"] for _ in range(epochs)][-1]
