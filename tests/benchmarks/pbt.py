"""What population based training makes of as many epochs as random search has: real training on digits."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hpsearch
from hpsearch.trial import TrialState
from tests.benchmarks.figures import Figure

MEMBERS = 8
MAX_ITER = 27
INTERVAL = 3

SPACE: dict[str, Any] = {
    "lr": hpsearch.LogUniform(1e-3, 1.0),
    "hidden": hpsearch.Categorical([32, 64, 128, 256]),
    "batch_size": hpsearch.Categorical([16, 32, 64, 128]),
    "momentum": hpsearch.Uniform(0.0, 0.95),
    "dropout": hpsearch.Uniform(0.0, 0.5),
    "weight_decay": hpsearch.LogUniform(1e-6, 1e-2),
}
"""That of `configs/pbt_digits.yaml`."""


METHODS: dict[str, dict[str, Any]] = {
    "pbt": {
        "method": "pbt",
        "search": {"options": {"fixed": ["hidden"]}},
        "early_terminate": hpsearch.PBT(MAX_ITER, MEMBERS, INTERVAL),
    },
    "random": {"method": "random", "max_iter": MAX_ITER, "run_cap": MEMBERS},
    "asha": {"method": "random", "early_terminate": hpsearch.ASHA(MAX_ITER), "run_cap": 72},
}
"""Each of 216 epochs, but for ASHA: how many it promotes hangs on what comes, and it gets some more."""


def measure(rounds: int) -> list[Figure]:
    """Run each with as many seeds as there are rounds."""
    errors: dict[str, list[float]] = {name: [] for name in METHODS}
    middle: dict[str, list[float]] = {name: [] for name in METHODS}
    for seed in range(rounds):
        for name in METHODS:
            ends, _ = final_errors(name, seed)
            errors[name].append(ends[0])
            middle[name].append(ends[len(ends) // 2])
    what = f"digits MLP, {MEMBERS} x {MAX_ITER} epochs"
    best, target = f"{what}: error of the best", "ratio at most 1"
    return [
        Figure(best, "%", errors["pbt"], target, "random search", errors["random"]),
        Figure(best, "%", errors["pbt"], target, "ASHA", errors["asha"]),
        Figure(f"{what}: median error at the end", "%", middle["pbt"], "", "random search", middle["random"]),
    ]


def final_errors(name: str, seed: int) -> tuple[list[float], int]:
    """Return the validation errors of the completed trainings in percent, sorted, and the number of epochs."""
    with tempfile.TemporaryDirectory() as folder:
        study = hpsearch.search(
            "hpsearch_trainers.digits:mlp",
            parameters=SPACE,
            metric={"name": "accuracy", "goal": "maximize"},
            seed=seed,
            backend="inline",
            directory=Path(folder) / "study",
            observers=[],
            progress=False,
            **METHODS[name],
        )
        ended = [row.value for row in study.trials if row.state is TrialState.COMPLETE and row.value is not None]
    return sorted(100 * (1 - value) for value in ended), study.iterations
