"""Functions that are called as trials end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import TrialRow, TrialState
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.simulations import Bowl

SPACE = {"x": hpsearch.Uniform(0.0, 1.0)}


ENDLESS: set[int] = set()
"""Trials that report until they are cut."""


def train(trial: RunningTrial) -> None:
    for iteration in trial.iterations():
        if trial.number == 2 and trial.number not in ENDLESS:
            raise ValueError("no luck")
        if iteration > 3 and trial.number not in ENDLESS:
            return
        trial.report({"loss": trial.params["x"] + 1.0 / iteration}, checkpoint={"at": iteration})


def search(path: Path, *callbacks: Callable[[TrialRow], object], **more: Any) -> hpsearch.Study:
    given: dict[str, Any] = {
        "parameters": SPACE,
        "metric": "loss",
        "run_cap": 6,
        "max_iter": 10**9,
        "backend": "inline",
    }
    quietly: dict[str, Any] = {"observers": [], "progress": False, "limits": {"max_failures": "none"}}
    return hpsearch.search(train, directory=path, callbacks=callbacks, **merged(given, quietly, more))


def test_each_trial_that_ends_is_told_once_in_order(tmp_path):
    rows: list[TrialRow] = []
    study = search(tmp_path / "study", rows.append)
    assert [row.number for row in rows] == list(range(6))
    assert rows == study.trials
    assert [row.number for row in rows if row.state is TrialState.FAILED] == [2]


def test_trials_of_several_workers_are_told_once_as_they_end(tmp_path):
    rows: list[TrialRow] = []
    study = hpsearch.search(
        Bowl,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric="loss",
        early_terminate=hpsearch.SuccessiveHalving(max_iter=9, min_iter=1, eta=3, trials=9),
        resources={"workers": 4},
        limits={"max_failures": "none"},
        directory=tmp_path / "study",
        backend="simulated",
        observers=[],
        progress=False,
        callbacks=[rows.append],
    )
    ended = {row.number for row in study.trials}
    assert sorted(row.number for row in rows) == sorted(ended)
    told = {row.number: replace(row, checkpoint=None) for row in rows}  # the checkpoints of all but the best are gone
    assert told == {row.number: replace(row, checkpoint=None) for row in study.trials}


def test_stop_search_ends_the_sweep_which_goes_on_with_another_call(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ENDLESS", {2})
    told: list[int] = []

    def stop(row):
        told.append(row.number)
        if row.number == 1:
            raise hpsearch.StopSearch

    study = search(tmp_path / "study", stop)
    assert study.state == "stopped"
    assert len(study.trials) == 3
    assert told == [0, 1]
    ENDLESS.clear()
    again = search(tmp_path / "study", stop)
    assert again.state == "finished"
    assert told == list(range(6))  # what the first run told isn't told again


@pytest.mark.parametrize("count", [1, 3])
def test_stop_search_is_heard_at_once_however_short_trials_are(tmp_path, count):
    told: list[int] = []

    def stop(row):
        told.append(row.number)
        if len(told) % count == 0:
            raise hpsearch.StopSearch

    study = search(tmp_path / "study", stop)
    assert study.state == "stopped"
    assert told == list(range(count))
    assert len(study.trials) == count + 1  # the next one had begun
    assert study.history()[-2].verb == "stop"
    assert study.history()[-2].outcome == "done"


def test_what_a_callback_does_to_its_row_changes_nothing_of_the_search(tmp_path):
    def changing(row):
        row.params["x"] = 0.5
        row.params["value"] = row.value
        row.metrics["loss"] = 0.0

    given = {"method": "evolution", "search": {"options": {"population": 3, "sample": 2}, "ahead": False}}
    calm = search(tmp_path / "calm", run_cap=12, **given)
    study = search(tmp_path / "study", changing, run_cap=12, **given)
    assert study.state == "finished"
    assert [(row.params, row.value) for row in study.trials] == [(row.params, row.value) for row in calm.trials]


def test_one_that_raises_is_named_once_and_the_sweep_goes_on(tmp_path, capsys):
    told: list[int] = []

    def broken(row):
        raise KeyError("nothing")

    study = search(tmp_path / "study", broken, lambda row: told.append(row.number), progress=True)
    assert study.state == "finished"
    assert told == list(range(6))
    out = capsys.readouterr().out
    assert out.count("the callback broken raised KeyError: 'nothing' at trial 0, and is not called again") == 1


def test_a_search_that_nobody_watches_takes_none(tmp_path):
    with pytest.raises(SweepError, match="callbacks must not be given with directory=':memory:'"):
        hpsearch.search(
            Bowl,
            parameters=SPACE,
            metric="loss",
            run_cap=3,
            max_iter=3,
            resources={"workers": 1},
            directory=":memory:",
            backend="simulated",
            callbacks=[print],
        )
