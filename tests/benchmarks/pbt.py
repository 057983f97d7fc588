"""What population based training makes of as many epochs as random search has: real training on digits."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hpsearch
from hpsearch.trial import TrialState
from tests.benchmarks.figures import Figure

__all__ = ["measure"]

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


def measure(rounds: int) -> list[Figure]:
    """Run both with as many seeds as there are rounds."""
    best: list[float] = []
    middle: list[float] = []
    random_best: list[float] = []
    random_middle: list[float] = []
    for seed in range(rounds):
        ends = final_errors("pbt", seed)
        best.append(ends[0])
        middle.append(ends[len(ends) // 2])
        ends = final_errors("random", seed)
        random_best.append(ends[0])
        random_middle.append(ends[len(ends) // 2])
    name = f"digits MLP, {MEMBERS} x {MAX_ITER} epochs"
    return [
        Figure(f"{name}: error of the best", "%", best, "ratio at most 1", "random search", random_best),
        Figure(f"{name}: error of the fifth of {MEMBERS}", "%", middle, "", "random search", random_middle),
    ]


def final_errors(method: str, seed: int) -> list[float]:
    """Give the validation errors, in percent, of the trainings that came to their end, the least first."""
    early = hpsearch.PBT(MAX_ITER, MEMBERS, INTERVAL) if method == "pbt" else None
    with tempfile.TemporaryDirectory() as folder:
        study = hpsearch.search(
            "hpsearch_trainers.digits:mlp",
            parameters=SPACE,
            metric="accuracy",
            goal="maximize",
            method=method,
            suggestions={"options": {"fixed": ["hidden"]}} if early else None,
            early_terminate=early,
            max_iter=None if early else MAX_ITER,
            run_cap=None if early else MEMBERS,
            seed=seed,
            backend="inline",
            directory=Path(folder) / "study",
            tensorboard=False,
            progress=False,
        )
        ended = [row.value for row in study.trials if row.state is TrialState.COMPLETE and row.value is not None]
    return sorted(100 * (1 - value) for value in ended)
