"""Simulated sweeps that kill their own process, for the tests of resuming on any number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import hpsearch
from tests.hpsearch.support.killed_sweep import die_after_event

HALVED = {"early_terminate": {"type": "hyperband", "max_iter": 9}}

COSTLY = {"early_terminate": {"type": "hyperband", "resource": "tokens", "min_iter": 100, "max_iter": 900}}


class Reader(hpsearch.Steps):
    """Its loss hangs on all that came before, and each iteration reads another number of tokens."""

    def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> tuple[Any, dict[str, float], float]:
        tokens, far = (0, 0.0) if state is None else state
        tokens, far = tokens + int(rng.integers(50, 150)), far + params["x"] * float(rng.normal())
        return (tokens, far), {"loss": abs(far - 1.0) + 100 / tokens, "tokens": tokens}, 1.0 + float(rng.random())


class Even(hpsearch.Steps):
    """Each iteration reads a hundred tokens."""

    def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> tuple[Any, dict[str, float], float]:
        iteration, far = (0, 0.0) if state is None else state
        iteration, far = iteration + 1, far + params["x"] * float(rng.normal())
        return (iteration, far), {"loss": abs(far - 1.0) + 1 / iteration, "tokens": 100 * iteration}, 1.0


class Leaping(Even):
    """Each iteration reads what some rungs are apart."""

    def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> tuple[Any, dict[str, float], float]:
        reached, metrics, seconds = super().step(state, params, rng)
        return reached, metrics | {"tokens": 350 * reached[0]}, seconds


class Returning(hpsearch.Curves):
    """It ends by itself after two of its hundred tokens each."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        return hpsearch.Curve({"loss": [params["x"], params["x"] / 2], "tokens": [100, 200]})


def read(trial: hpsearch.RunningTrial) -> None:
    """The same as `Reader`, trained."""
    state = None if trial.checkpoint is None else tuple(trial.checkpoint)
    for iteration in trial.iterations():
        rng = np.random.default_rng((trial.seed, iteration))
        state, metrics, _ = Reader().step(state, trial.params, rng)
        trial.report(metrics, checkpoint=list(state))


def begin(study: str, workers: int, keys: Mapping[str, Any], number: int = 0, trainable: str = "Reader") -> None:
    """Run the sweep with these keys, or go on with it.

    Args:
        study: Its directory.
        workers: Their number.
        keys: Of the sweep.
        number: The process is killed when the journal holds so many events; 0: it isn't.
        trainable: A simulation of this module.
    """
    if number:
        die_after_event(number)
    hpsearch.search(
        f"{Reader.__module__}:{trainable}",
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
