"""`hpsearch design` beside scikit-learn's trees with default settings, on the same folds of the same rows.

`python -m tests.benchmarks.designed --sets digits wine --folds 5 --seeds 1 --seconds 60` chooses what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.model_selection import KFold, StratifiedKFold

from hpsearch.design.data_sets.predict import tree_outputs
from hpsearch.design.design import Surroundings, design
from hpsearch.design.folder import DesignRequest
from hpsearch.design.prepared_rows import read_rows
from hpsearch.design.scores import SCORES, score
from hpsearch.design.trees import KINDS, fitted_trees
from tests.benchmarks.figures import Figure, machine, render
from tests.benchmarks.plot import Gain, draw_gains

SETS = {
    "digits": ("images", datasets.load_digits),
    "cancer": ("classes", datasets.load_breast_cancer),
    "wine": ("classes", datasets.load_wine),
    "diabetes": ("numbers", datasets.load_diabetes),
    "friedman1": ("numbers", lambda return_X_y: datasets.make_friedman1(1000, noise=1.0, random_state=0)),
    "friedman2": ("numbers", lambda return_X_y: datasets.make_friedman2(1000, noise=50.0, random_state=0)),
    "friedman3": ("numbers", lambda return_X_y: datasets.make_friedman3(1000, noise=0.1, random_state=0)),
    "classification": (
        "classes",
        lambda return_X_y: datasets.make_classification(1000, 20, n_informative=8, n_classes=3, random_state=0),
    ),
}
"""Data sets that scikit-learn has or makes."""

PLOT = Path(__file__).parents[2] / "docs" / "images" / "designed.svg"

Runs = Mapping[str, Sequence[Mapping[str, float]]]
"""By data set, of each fold the scores of the network and of both kinds of trees."""


def measure(rounds: int, sets: Sequence[str] = tuple(SETS), folds: int = 5, seconds: float = 60.0) -> list[Figure]:
    """Compare on so many dealings of each data set into folds; draw the gains."""
    runs = {name: [run for seed in range(rounds) for run in _runs(name, folds, seed, seconds)] for name in sets}
    figures = []
    for name, found in runs.items():
        goal = _goal(name)
        for kind in KINDS:
            gain, error = _gain(found, goal, kind)
            told = f"{name}: {goal}, better by {gain:+.4g} ± {error:.2g}"
            ours, theirs = ([run[one] for run in found] for one in ("network", kind))
            figures.append(Figure(told, goal, ours, "not worse by 2 errors", kind, theirs))
            print(f"{told} than {kind}, of {len(found)} folds", file=sys.stderr, flush=True)
    PLOT.write_text(plot(runs))
    return figures


def _goal(name: str) -> str:
    return "rmse" if SETS[name][0] == "numbers" else "accuracy"


def _gain(runs: Sequence[Mapping[str, float]], goal: str, kind: str) -> tuple[float, float]:
    """Return by how much the network is better in the mean, and the standard error."""
    sign = 1 if SCORES[goal].goal == "maximize" else -1
    gains = [sign * (run["network"] - run[kind]) for run in runs]
    return statistics.fmean(gains), statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")


def plot(runs: Runs) -> str:
    """Draw which share of the trees' error the network saves: of their misses, or of their root mean squared error."""
    gains = []
    for name, found in runs.items():
        goal = _goal(name)
        for number, kind in enumerate(KINDS):
            mean, error = _gain(found, goal, kind)
            theirs = statistics.fmean(run[kind] if goal == "rmse" else 1 - run[kind] for run in found)
            gains.append(Gain(name if number == 0 else "", mean / theirs, error / theirs, number))
    title = "Designed networks beside trees, on the same folds: mean and two standard errors"
    ticks = (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)
    return draw_gains(title, "share of the trees' error that the network saves", gains, list(KINDS), ticks)


def _runs(name: str, folds: int, seed: int, seconds: float) -> list[dict[str, float]]:
    kind, load = SETS[name]
    inputs, targets = load(return_X_y=True)
    if kind == "images":
        inputs = inputs.reshape(-1, 8, 8).astype(np.uint8)
    dealt = (KFold if kind == "numbers" else StratifiedKFold)(folds, shuffle=True, random_state=seed)
    found = []
    for fold, (search, test) in enumerate(dealt.split(inputs, targets)):
        with tempfile.TemporaryDirectory() as folder:
            found.append(_run(Path(folder), inputs, targets, search, test, kind, seconds, seed))
        print(f"{name}, seed {seed}, fold {fold}: {found[-1]}", file=sys.stderr, flush=True)
    return found


def _run(
    folder: Path, inputs: Any, targets: Any, search: Any, test: Any, kind: str, seconds: float, seed: int
) -> dict[str, float]:
    """Return the test scores of the network and of both kinds of trees, and the seconds that the design took."""
    source = folder / "given.npz"
    parts = {"x_train": inputs[search], "y_train": targets[search], "x_test": inputs[test], "y_test": targets[test]}
    np.savez(source, **parts)
    goal = "rmse" if kind == "numbers" else "accuracy"
    asked = DesignRequest(str(source), goal=goal, seconds=seconds, seed=seed)
    report = design(asked, folder / "design", Surroundings(say=lambda text: None))
    assert report is not None
    rows, held = (read_rows(folder / "design/data" / f"{name}.npz") for name in ("search", "test"))
    trees = {
        one: score(
            goal,
            tree_outputs(fitted_trees(one, rows, np.arange(len(rows.targets)), 2), held.inputs, len(held.task.classes)),
            held.targets,
        )
        for one in KINDS
    }
    return {"network": report.test.value, **trees, "seconds": report.seconds}


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.designed", description=__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="NAME", help=", ".join(SETS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each design")
    given = parser.parse_args()
    before = machine()
    print(render(measure(given.seeds, given.sets, given.folds, given.seconds), "table"))
    print(f"\n{before} at the start; {given.folds} folds, {given.seeds} seeds, {given.seconds:g} s each")


if __name__ == "__main__":
    _main()
