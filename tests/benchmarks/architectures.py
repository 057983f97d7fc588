"""Searchers over architectures: trials to the best of a cell's space and of NAS-Bench-Macro, and what moves cost.

The cells are synthetic. NAS-Bench-Macro is measured where HPSEARCH_BENCHMARK_DATA names the folder of its file.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpsearch
from hpsearch.space import Space
from tests.benchmarks.figures import Figure

OPERATIONS = ("none", "skip", "conv1", "conv3", "average3")
EDGES = ("0-1", "0-2", "1-2", "0-3", "1-3", "2-3")
PATHS = (("0-1", "1-2", "2-3"), ("0-1", "1-3"), ("0-2", "2-3"), ("0-3",))

TRIALS = 300
METHODS = ("random", "tpe", "evolution")
LAYERS = 8


def measure(rounds: int) -> list[Figure]:
    """Measure with ten seeds for each round."""
    seeds = 10 * rounds
    figures = list(_costs())
    for cell in range(4):
        figures += _reached(f"synthetic cell {cell}", _cell_values(cell), _cell_space(), _cell_key, seeds)
    folder = os.environ.get("HPSEARCH_BENCHMARK_DATA")
    if folder is not None:
        space = {"layers": hpsearch.Chain([0, 1, 2], LAYERS, LAYERS)}
        figures += _reached("NAS-Bench-Macro", _macro_values(Path(folder)), space, lambda p: tuple(p["layers"]), seeds)
    return figures


Values = Mapping[tuple[Any, ...], NDArray[np.float64]]
"""What there is to be known of each architecture: accuracies of several trainings, of which a trial sees one."""


def _reached(
    name: str, values: Values, parameters: dict[str, Any], key: Callable[[Any], tuple[Any, ...]], seeds: int
) -> list[Figure]:
    """Median trials to the best 1 % and 0.1 % by the mean of all trainings; one more than all where none got there."""
    means = {architecture: float(found.mean()) for architecture, found in values.items()}
    ranked = sorted(means.values(), reverse=True)
    limits = {share: ranked[int(len(ranked) * share)] for share in (0.01, 0.001)}
    figures = []
    for share, limit in limits.items():
        counts = {
            method: [_first(method, values, means, parameters, key, limit, seed) for seed in range(seeds)]
            for method in METHODS
        }
        for method in METHODS[1:]:
            text = f"{name}: median trials of {method} to the best {share:.1%}"
            target = {("tpe", 0.01): "at most 35", ("tpe", 0.001): "at most 85"}.get((method, share))
            target = target or ("at most 40" if share == 0.01 else "at most 100")
            own, draws = (float(statistics.median(counts[one])) for one in (method, "random"))
            figures.append(Figure(text, "trials", [own], target, "random", [draws]))
    return figures


def _first(
    method: str,
    values: Values,
    means: Mapping[tuple[Any, ...], float],
    parameters: dict[str, Any],
    key: Callable[[Any], tuple[Any, ...]],
    limit: float,
    seed: int,
) -> int:
    found = _tried(method, _Looked(values, key), parameters, seed)
    return next((place for place, one in enumerate(found, 1) if means[one] >= limit), TRIALS + 1)


_KNOWN: dict[tuple[str, int, int], list[tuple[Any, ...]]] = {}


def _tried(method: str, looked: _Looked, parameters: dict[str, Any], seed: int) -> list[tuple[Any, ...]]:
    known = (method, id(looked.values), seed)
    if known not in _KNOWN:
        study = hpsearch.search(
            looked,
            parameters=parameters,
            metric={"name": "accuracy", "goal": "maximize"},
            method=method,
            run_cap=TRIALS,
            max_iter=1,
            resources={"workers": 1},
            seed=seed,
            backend="simulated",
            directory=":memory:",
            progress=False,
        )
        nest = study.sweep.parameters.nest
        _KNOWN[known] = [looked.key(nest(row.params)) for row in study.trials]
    return _KNOWN[known]


class _Looked(hpsearch.Curves):
    """A trial sees one training, by its seed."""

    def __init__(self, values: Values, key: Callable[[Any], tuple[Any, ...]]) -> None:
        self.values = values
        self.key = key

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        found = self.values[self.key(params)]
        return hpsearch.Curve({"accuracy": [float(found[seed % len(found)])]}, seconds=1.0)


def _cell_space() -> dict[str, Any]:
    return {"cell": hpsearch.Cell(list(OPERATIONS), nodes=4)}


def _cell_key(params: Any) -> tuple[Any, ...]:
    return tuple(params["cell"][edge] for edge in EDGES)


@cache
def _cell_values(seed: int) -> Values:
    """An accuracy that saturates in the strength of the paths, terms of pairs of edges, and noise."""
    chance = np.random.default_rng(seed)
    strength = {edge: dict(zip(OPERATIONS, [0.0, *chance.uniform(0.3, 1.0, 4)], strict=True)) for edge in EDGES}
    pairs = chance.normal(0, 0.4, (len(EDGES), len(EDGES), len(OPERATIONS), len(OPERATIONS)))
    out = {}
    for cell in product(range(len(OPERATIONS)), repeat=len(EDGES)):
        names = {edge: OPERATIONS[place] for edge, place in zip(EDGES, cell, strict=True)}
        paths = sum(float(np.prod([strength[edge][names[edge]] for edge in path])) for path in PATHS)
        terms = sum(pairs[a, b, cell[a], cell[b]] for a in range(len(EDGES)) for b in range(a))
        mean = 10 + 80 * (1 - np.exp(-2 * paths)) + (terms if paths else 0)
        out[tuple(names.values())] = mean + chance.normal(0, 0.2, 3)
    return out


def _macro_values(folder: Path) -> Values:
    with np.load(folder / "nas_bench_macro.npz") as arrays:
        found = zip(arrays["macro_arch"].tolist(), arrays["macro_cifar10_test_acc_by_seed"], strict=True)
        return {tuple(architecture): np.asarray(accuracies, np.float64) for architecture, accuracies in found}


def _costs() -> list[Figure]:
    """Milliseconds of a cell with seven nodes."""
    space = Space.from_parameters({"cell": hpsearch.Cell(["sep3", "sep5", "skip", "max3"], 7, "node")})
    points = [space.draw(0, number) for number in range(200)]

    def each(do: Callable[[int], object]) -> float:
        started = time.perf_counter()
        for number in range(200):
            do(number)
        return (time.perf_counter() - started) / 200 * 1e3

    what = "a cell of 7 nodes"
    return [
        Figure(f"{what}: draw", "ms", [each(lambda number: space.draw(1, number))], "at most 1"),
        Figure(f"{what}: mutate", "ms", [each(lambda number: space.mutate(points[number], number))], "at most 1"),
        Figure(f"{what}: equality", "ms", [each(lambda n: space.key(points[n]) == space.key(points[-n]))], "at most 1"),
    ]
