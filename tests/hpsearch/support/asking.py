"""Sweeps to ask and tell, and who does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hpsearch
from hpsearch.errors import HpsearchError, TellError
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.telling import AskedTrial
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.scripted import events_of, sweep_of

PLAIN = {"trainable": None, "early_terminate": None, "max_iter": 1, "run_cap": 6}


def asked_sweep(**changes: object) -> Sweep:
    """A sweep that says nothing of what runs a trial: six of one iteration, or what the changes make of it."""
    return sweep_of(**{**PLAIN, **changes})


def halving(**changes: object) -> Sweep:
    return asked_sweep(
        early_terminate=SuccessiveHalving(9, min_iter=1, trials=9), max_iter=None, run_cap=None, **changes
    )


def ask(lab: AskTell) -> AskedTrial:
    trial = lab.ask()
    assert trial is not None
    return trial


def reports(trial: AskedTrial, loss: Callable[[AskedTrial, int], float]) -> list[dict[str, float]]:
    assert trial.end is not None
    return [{"loss": loss(trial, iteration)} for iteration in range(trial.start + 1, trial.end + 1)]


def by_x(trial: AskedTrial, iteration: int) -> float:
    return float((trial.flat["x"] - 0.3) ** 2 + 1 / iteration)


def finish(lab: AskTell, loss: Callable[[AskedTrial, int], float] = by_x) -> None:
    while (trial := lab.ask()) is not None:
        lab.tell(trial, reports(trial, loss))
    assert lab.finished


def table(directory: Path) -> str:
    study = hpsearch.load(directory)
    return rows_to_csv(study.trials, study.sweep.parameters.names)


def refused(lab: AskTell, problem: str, tell: Callable[[], object], kind: type[HpsearchError] = TellError) -> None:
    before = events_of(lab.directory)
    with pytest.raises(kind, match=problem):
        tell()
    assert events_of(lab.directory) == before
