"""Sweeps whose workers tell what they have as MKL_CBWR, one after the other; run in a process of its own.

They are a new study, one that has no record of it, as those of earlier versions, that gone on with, and a script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch.nn import functional

from hpsearch.cli import main
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch_trainers import Parts, Trainer

SCRIPT = """
import json, os, pathlib
here = pathlib.Path(__file__).parent
with (here / "script.told").open("a") as told:
    print(os.environ.get("MKL_CBWR", "unset"), file=told)
with open(os.environ["HPSEARCH_REPORTS"], "a") as reports:
    for iteration in (1, 2, 3):
        print(json.dumps({"validation_loss": 1.0 / iteration}), file=reports)
"""


class Odd(Trainer):
    """A network of odd sizes, whose lanes have the bits of each alone only with MKL_CBWR."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Write down what is set."""
        with Path(params["told"]).open("a") as told:
            print(os.environ.get("MKL_CBWR", "unset"), file=told)
        rows = torch.randn(96, 37, generator=torch.Generator().manual_seed(7))
        targets = (rows.sum(1) > 0).long()
        model = nn.Sequential(nn.Linear(37, 37), nn.ReLU(), nn.Linear(37, 37), nn.ReLU(), nn.Linear(37, 2))
        return Parts(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), params["lr"], momentum=0.9, fused=True),
            loss=functional.cross_entropy,
            train=(rows[:72], targets[:72]),
            validation=(rows[72:], targets[72:]),
            batch_size=8,
        )


def sweep_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the sweep file of one of them."""
    parameters: dict[str, Any] = {"lr": {"min": 0.01, "max": 0.1}}
    if name == "script":
        of_kind: dict[str, Any] = {"program": str(folder / "script.py")}
    else:
        of_kind = {"trainable": "tests.hpsearch.support.mkl_sweeps:Odd", "resources": {"trials_per_worker": 4}}
        parameters["told"] = {"value": str(folder / f"{name}.told")}
    metric = {"name": "validation_loss", "goal": "minimize"}
    return {**of_kind, "metric": metric, "method": "random", "max_iter": 3, "run_cap": 4, "parameters": parameters}


def run(name: str, folder: Path, *words: str) -> None:
    """Run one of them, or go on with it where it is there."""
    path = folder / f"{name}.yaml"
    if path.exists():
        assert main(["resume", str(folder / name), *words]) == 0
        return
    path.write_text(yaml.safe_dump(sweep_of(name, folder)))
    assert main(["run", str(path), "--dir", str(folder / name), *words]) == 0


def run_as_of_an_earlier_version(name: str, folder: Path, *words: str) -> None:
    """Run one whose study says nothing of MKL_CBWR."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(sweep_of(name, folder)))
    assert main(["run", str(path), "--dir", str(folder / "made"), "--set", "run_cap=1", *words]) == 0
    with Journal.read(StudyDirectory(folder / "made").journal) as journal:
        record = journal.study()
    del record["mkl_cbwr"]
    StudyDirectory(folder / name).create(record, path.read_text())
    (folder / f"{name}.told").unlink()
    run(name, folder, "--set", "run_cap=4", *words)


def begin(folder: Path, *words: str) -> None:
    """Run those that are named first, with the options of the command that follow."""
    names = words[0].split(",")
    (folder / "script.py").write_text(SCRIPT)
    for name in names:
        (run_as_of_an_earlier_version if name == "earlier" else run)(name, folder, *words[1:])
        assert os.environ.get("MKL_CBWR") == given, "it is given back"


if __name__ == "__main__":
    given = os.environ.get("MKL_CBWR")
    if "--without-mkl" in sys.argv:
        sys.argv.remove("--without-mkl")
        torch.backends.mkl.is_available = lambda: False
    begin(Path(sys.argv[1]), *sys.argv[2:])
