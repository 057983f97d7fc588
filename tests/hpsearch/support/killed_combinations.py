"""Sweeps that combine features, on virtual workers, which a test may kill; called in child processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import hpsearch
from hpsearch.simulation.simulation import RecordedFailure
from tests.hpsearch.support.killed_sweep import die_after_event

SPACE: dict[str, Any] = {
    "lr": hpsearch.ZeroOrLogUniform(1e-3, 1.0),
    "width": hpsearch.LogIntUniform(8, 512),
    "kind": ["a", "b"],
    "depth": hpsearch.When("kind == 'b'", hpsearch.IntUniform(1, 4)),
}
CHANGED: dict[str, Any] = {
    "lr": hpsearch.ZeroOrLogUniform(1e-3, 10.0),
    "width": hpsearch.LogIntUniform(8, 256),
    "kind": ["a", "b"],
    "depth": hpsearch.When("kind == 'b'", hpsearch.IntUniform(1, 4)),
    "dropout": hpsearch.Uniform(0.0, 0.5, default=0.0),
}
TPE: dict[str, Any] = {"method": "tpe", "search": {"lag": 5, "startup": 6}, "run_cap": 30}
RUNGS: dict[str, Any] = {"early_terminate": {"type": "hyperband", "max_iter": 9}}
COSTS: dict[str, Any] = {
    "early_terminate": {"type": "hyperband", "resource": "tokens", "min_iter": 100, "max_iter": 900}
}

SWEEPS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "failures": ({**TPE, **RUNGS}, ()),
    "failures, evolution": (
        {"method": "evolution", "search": {"lag": 4, "options": {"population": 8, "sample": 4}}, "run_cap": 30}
        | {"max_iter": 4},
        (),
    ),
    "failures, bohb": ({**TPE, **RUNGS, "method": "bohb"}, ()),
    "auto": ({"method": "auto", "search": {"lag": 4}, "run_cap": 24, "max_iter": 9}, ()),
    "repeats": ({**TPE, "max_iter": 4, "repeats": 3}, ()),
    "race": ({"method": "random", "run_cap": 40, "max_iter": 4, "repeats": {"n": 5, "racing": True}}, ()),
    "costs": ({**TPE, **COSTS}, ()),
    "change": ({**TPE, **RUNGS}, ("change",)),
    "change, costs": ({**TPE, **COSTS}, ("change",)),
    "extend --max-iter": ({**TPE, **RUNGS}, ("extend",)),
    "change, extend --max-iter": ({**TPE, **RUNGS}, ("change", "extend")),
    "warm start": ({**TPE, **RUNGS}, ("other space",)),
}
"""Name to the keys of a sweep, and what happens beside: a change after some trials, an extension at the end."""

FROM = 12
"""The first trial of the changed space."""


class Limited(hpsearch.Steps):
    """Wide and deep configurations run out of memory, high rates diverge, and each iteration costs tokens."""

    def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> tuple[Any, dict[str, float], float]:
        size = params["width"] * (params["depth"] if params["kind"] == "b" else 1)
        if size > 200:
            raise RecordedFailure("OutOfMemoryError: CUDA out of memory")
        epoch, noise = (1, 0.0) if state is None else (state[0] + 1, state[1])
        noise += float(rng.normal()) / 20
        far = abs(math.log10(params["lr"] or 1e-4) + 1) + 20 / size + params.get("dropout", 0.0) + abs(noise)
        loss = math.nan if params["lr"] > 0.5 and epoch > 2 else far + 1 / epoch
        return (epoch, noise), {"loss": loss, "tokens": (60 + size % 50) * epoch}, 1.0 + float(rng.random())


def begin(study: str, name: str, workers: int, number: int = 0, source: str = "") -> None:
    """Run a sweep, or go on with it.

    Args:
        study: Its directory.
        name: Of `SWEEPS`.
        workers: Their number.
        number: The process is killed when the journal holds so many events; 0: it isn't.
        source: A study to begin with.
    """
    if number:
        die_after_event(number)
    known = hpsearch.load(study).sweep.parameters if Path(study, "study.db").exists() else None
    hpsearch.search(
        Limited,
        known or SPACE,
        metric="loss",
        directory=study,
        backend="simulated",
        resources={"workers": workers},
        warm_start=[source] if source else [],
        observers=[],
        progress=False,
        **SWEEPS[name][0],
    )


def change(study: str, number: int = 0) -> None:
    """Change the space; `number` as for `begin`."""
    if number:
        die_after_event(number)
    hpsearch.change(study, CHANGED, from_trial=FROM)


def extend(study: str, number: int = 0) -> None:
    """Have the best trial train on; `number` as for `begin`."""
    if number:
        die_after_event(number)
    hpsearch.extend(study, max_iter=15)
