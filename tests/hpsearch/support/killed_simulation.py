"""Simulated sweeps that kill their own process, for the tests of resuming on any number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import hpsearch
from tests.hpsearch.support.killed_sweep import die_after_event

HALVED = {"early_terminate": {"type": "hyperband", "max_iter": 9}}


class Reader(hpsearch.Steps):
    """Its loss hangs on all that came before, and each iteration reads another number of tokens."""

    def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> tuple[Any, dict[str, float], float]:
        tokens, far = (0, 0.0) if state is None else state
        tokens, far = tokens + int(rng.integers(50, 150)), far + params["x"] * float(rng.normal())
        return (tokens, far), {"loss": abs(far - 1.0) + 100 / tokens, "tokens": tokens}, 1.0 + float(rng.random())


def begin(study: str, workers: int, keys: Mapping[str, Any], number: int = 0) -> None:
    """Run the sweep with these keys, or go on with it.

    Args:
        study: Its directory.
        workers: Their number.
        keys: Of the sweep.
        number: The process is killed when the journal holds so many events; 0: it isn't.
    """
    if number:
        die_after_event(number)
    hpsearch.search(
        f"{Reader.__module__}:{Reader.__name__}",
        {"x": hpsearch.Uniform(0.0, 1.0)},
        metric="loss",
        directory=study,
        backend="simulated",
        resources={"workers": workers},
        observers=[],
        progress=False,
        **keys,
    )


def train_on(study: str, until: int, trials: Sequence[int], number: int = 0) -> None:
    """Have trials train on; `number` as for `begin`."""
    if number:
        die_after_event(number)
    hpsearch.extend(study, max_iter=until, trials=trials)
