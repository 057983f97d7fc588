"""A race that a test may kill, on virtual workers; called in child processes."""

from __future__ import annotations

from typing import Any

import hpsearch
from hpsearch.simulation import Curve
from hpsearch.space import Uniform
from hpsearch.trial import Params
from tests.hpsearch.support.killed_sweep import die_after_event


class Noisy(hpsearch.Curves):
    """A bowl with a noise that the seed alone decides; trials take different times, and some configurations fail."""

    metrics = ("loss",)

    def curve(self, params: Params, seed: int) -> Curve:
        noise = (seed % 1009) / 1009 - 0.5
        losses = [(params["x"] - 0.3) ** 2 + 0.1 * noise * (1 + params["x"]) + 1.0 / epoch for epoch in (1, 2)]
        return Curve({"loss": losses}, seconds=1.0 + (seed % 7) + 3 * params["x"])


SWEEPS: dict[str, dict[str, Any]] = {
    "race": {"method": "random", "run_cap": 20, "repeats": {"n": 5, "racing": True}},
    "grid": {"method": "grid", "repeats": {"n": 4, "racing": True}},
    "qmc": {"method": "qmc", "run_cap": 9, "repeats": 3},
    "tpe": {"method": "tpe", "run_cap": 15, "repeats": 3, "search": {"startup": 2, "lag": 2}},
}


def begin(study: str, name: str, workers: int, number: int = 0) -> None:
    """Run a sweep, or go on with it; die when its journal holds `number` events, if that isn't 0."""
    if number:
        die_after_event(number)
    hpsearch.search(
        Noisy,
        {"x": Uniform(0.0, 1.0, points=3)},
        metric="loss",
        max_iter=2,
        resources={"workers": workers},
        directory=study,
        backend="simulated",
        observers=[],
        progress=False,
        **SWEEPS[name],
    )
