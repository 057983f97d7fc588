"""Predict for new examples, with the network that lies beside this file.

`python predict.py NEW.csv` prints a line of CSV for each row: the prediction and, for classes, the probability of each.
It needs Python, NumPy and torch; pyarrow for Parquet, Pillow for images, scikit-learn for `--trees`.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

if not __package__:  # run as a script: its folder is made a package, so that its files find each other and no others
    __package__ = "hpsearch_model"
    _package = types.ModuleType(__package__)
    _package.__path__ = [str(Path(__file__).resolve().parent)]
    sys.modules[__package__] = _package

from .preprocessing import load, network_inputs, transform
from .reading import DataSetError, read_table

__all__ = ["main"]

_FOLDER = Path(__file__).resolve().parent
_ROWS_AT_ONCE = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict; give the exit code."""
    parser = argparse.ArgumentParser(prog="predict.py", description="Predict for new examples.")
    parser.add_argument("new", type=Path, metavar="NEW", help="a file like those that were trained on")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there (default: standard output)")
    parser.add_argument("--trees", action="store_true", help="with the trees beside the network")
    given = parser.parse_args(arguments)
    try:
        fitted = load(_FOLDER)
        outputs = _outputs(fitted, _inputs(fitted, given.new), given.trees)
        if given.output is None:
            _print(sys.stdout, fitted, outputs)
        else:
            with given.output.open("w", encoding="utf-8", newline="") as file:
                _print(file, fitted, outputs)
    except DataSetError as error:
        print(f"predict.py: {error}", file=sys.stderr)
        return 1
    return 0


def _inputs(fitted: dict[str, Any], path: Path) -> NDArray[Any]:
    names = [column["name"] for column in fitted["columns"]]
    return transform(fitted, read_table(path, names), lambda text: print(f"note: {text}", file=sys.stderr))


def _outputs(fitted: dict[str, Any], inputs: NDArray[Any], trees: bool) -> NDArray[np.float64]:
    """Give probabilities of shape (rows, classes), or numbers of shape (rows,)."""
    import torch

    network = importlib.import_module(".network", __package__).load(str(_FOLDER / "weights.pt"))
    network.eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(inputs), _ROWS_AT_ONCE):
            output = network(torch.from_numpy(network_inputs(fitted, inputs[start : start + _ROWS_AT_ONCE]))).double()
            if fitted["kind"] == "classes":
                found.append(output.softmax(1).numpy())
            else:
                found.append(output.reshape(-1).numpy() * fitted["target_scale"] + fitted["target_mean"])
    return np.concatenate(found) if found else np.empty((0, len(fitted["classes"] or ())))


def _print(file: TextIO, fitted: dict[str, Any], outputs: NDArray[np.float64]) -> None:
    lines = csv.writer(file, lineterminator="\n")
    classes = fitted["classes"]
    if classes is None:
        lines.writerow(["prediction"])
        lines.writerows([f"{value:.9g}"] for value in outputs)
    else:
        lines.writerow(["prediction", *(f"probability of {label}" for label in classes)])
        lines.writerows([classes[row.argmax()], *(f"{value:.9g}" for value in row)] for row in outputs)


if __name__ == "__main__":
    sys.exit(main())
