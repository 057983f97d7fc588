"""Data sets written down, prepared, and predicted for in a process that knows nothing of hpsearch."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpsearch.design.data_sets import Prepared, prepare
from hpsearch_trainers.architectures import network, standalone
from tests.isolated import run_isolated

_READ = """
import importlib, sys, types
from pathlib import Path
import numpy as np
folder = Path(sys.argv[1])
package = types.ModuleType("model")
package.__path__ = [str(folder)]
sys.modules["model"] = package
predict = importlib.import_module("model.predict")
for new, to in zip(sys.argv[2::2], sys.argv[3::2]):
    fitted = importlib.import_module("model.preprocessing").load(folder)
    np.save(to, predict.read_inputs(fitted, Path(new), lambda text: print(text, file=sys.stderr))[1])
assert not any(name.startswith("hpsearch_") for name in sys.modules)
"""


def write_csv(path: Path, columns: Mapping[str, Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))
    return path


def prepared(source: Path, target: str | None, folder: Path, **more: object) -> Prepared:
    """Prepare, and put a network with new weights into the model's folder, as a search would in the end."""
    found = prepare(source, target, folder, **more)  # type: ignore[arg-type]
    torch.manual_seed(0)
    outputs = 1 if found.classes is None else len(found.classes)
    layers = ["flatten"] if len(found.inputs) > 1 else ["relu"]
    torch.save(network(layers, found.inputs, outputs).state_dict(), folder / "model/weights.pt")
    (folder / "model/network.py").write_text(standalone(layers, found.inputs, outputs))
    return found


def loaded(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / "data" / f"{part}.npz") as arrays:
        return arrays["inputs"], arrays["targets"]


def alone(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run predict.py, isolated, elsewhere."""
    return run_isolated(folder / "model/predict.py", *words)


def inputs_alone(folder: Path, *news: Path) -> list[np.ndarray]:
    """Return what the model's own code reads from each of some files, in a fresh process."""
    words = [str(word.resolve()) for number, new in enumerate(news) for word in (new, folder / f"{number}.npy")]
    (folder / "read.py").write_text(_READ)
    done = run_isolated(folder / "read.py", (folder / "model").resolve(), *words)
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"{number}.npy") for number in range(len(news))]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
