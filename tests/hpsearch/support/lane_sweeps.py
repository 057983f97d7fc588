"""Sweeps over `lane_trainables`, and what came of them but for which trials were trained together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch.events import Finished, Saved
from hpsearch.results.study import Study
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support import lane_trainables
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.scripted import events_of

FAULTS = ("", "build", "exit", "step", "nan", "draws", "settings", "prints")


def search(directory: Path, faults: tuple[str, ...] = FAULTS, **options: Any) -> Study:
    """Run a sweep over networks of two shapes, half of which are without fault."""
    given: dict[str, Any] = {
        "trainable": lane_trainables.Small,
        "parameters": {
            "lr": hpsearch.LogUniform(0.001, 1.0),
            "hidden": hpsearch.Categorical([24, 32]),
            "dropout": hpsearch.Uniform(0.0, 0.5),
            "fault": hpsearch.Categorical(faults),
        },
        "name": "lanes",
        "metric": "loss",
        "early_terminate": hpsearch.Hyperband(max_iter=27, eta=3),
        "limits": {"max_failures": "none"},
        "backend": "inline",
        "resources": {"workers": None},
        "progress": False,
        "observers": [],
    }
    os.environ.pop(lane_trainables.VARIABLE, None)
    return hpsearch.search(directory=directory, **merged(given, options))


def table(study: Study) -> str:
    """Return the trials without the column `lanes`."""
    text = rows_to_csv(study.trials, [name for name in study.sweep.parameters.names if name != "folder"])
    lines = [line.split(",") for line in text.splitlines()]
    kept = [place for place, name in enumerate(lines[0]) if name != "lanes"]
    return "\n".join(",".join(line[place] for place in kept) for line in lines)


def results(study: Study) -> dict[Any, Any]:
    """Return all reports by trial and iteration, without times, and how trials failed."""
    told: dict[Any, Any] = {}
    for event in events_of(study.directory):
        if isinstance(event, Finished | Saved):
            for report in event.reports:
                metrics = {name: repr(value) for name, value in report.metrics.items() if name != "data_wait"}
                told[report.trial, report.iteration] = metrics
    for row in study.trials:
        told[row.number] = row.state, row.iterations, row.failure and (row.failure.kind, row.failure.message)
    return told


def packed_study(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Return a finished study of five trials whose checkpoints are in one file, as if its process had been killed."""
    monkeypatch.setattr("hpsearch.run.study_run.settle", lambda *_, **__: None)
    options: dict[str, Any] = {
        "early_terminate": None,
        "max_iter": 2,
        "run_cap": 5,
        "resources": {"trials_per_worker": 5},
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    study = search(directory, ("",), **options)
    torch.set_num_threads(threads)
    return study
