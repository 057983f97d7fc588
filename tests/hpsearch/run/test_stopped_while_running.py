"""A scheduler that stops trials while they run: none is begun anew, and the journal replays to the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hpsearch
from hpsearch.events import Finished, Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.trial import TrialState
from tests.hpsearch.support.merged import merged


def train(trial: hpsearch.RunningTrial) -> None:
    """Report for 20 iterations, and save nothing."""
    for iteration in range(1, 21):
        trial.report({"loss": trial.params["x"] / iteration})


def dip(trial: hpsearch.RunningTrial) -> None:
    """Report x, but 0.5 at iteration 2 where x is 2."""
    for iteration in trial.iterations():
        x = trial.params["x"]
        trial.report({"loss": 0.5 if (x, iteration) == (2.0, 2) else x}, checkpoint={"iteration": iteration})


def search(directory: Path, trainable: Callable[..., None] = train, **given: object) -> hpsearch.Study:
    asked = {
        "parameters": {"x": [1.0, 2.0, 3.0, 0.5]},
        "metric": "loss",
        "method": "grid",
        "early_terminate": hpsearch.Bands(min_iter=3),
        "backend": "inline",
        "observers": [],
        "progress": False,
    }
    return hpsearch.search(trainable, directory=directory, **merged(asked, given))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> hpsearch.Study:
    return search(tmp_path_factory.mktemp("bands") / "study")


def test_who_is_behind_at_a_band_is_stopped_there_and_the_others_come_to_their_own_ends(study):
    assert [(row.state, row.iterations) for row in study.trials] == [
        (TrialState.COMPLETE, 20),
        (TrialState.STOPPED, 3),
        (TrialState.STOPPED, 3),
        (TrialState.COMPLETE, 20),
    ]
    assert study.row(1).reason == "iteration 3: 0.666667 is behind 0.333333, of 2 trials at iteration 3, top 1/3 go on"
    assert study.best_trial.number == 3


def test_no_trial_runs_twice(study):
    with Journal.read(StudyDirectory(study.directory).journal) as journal:
        events = [entry.event for entry in journal.entries()]
    assert sum(isinstance(event, Started) for event in events) == 4
    stopped = [event.trial for event in events if isinstance(event, Finished) and event.stopped]
    assert stopped == [1, 2]
    assert not any(isinstance(event, Finished) and event.cut for event in events)


def test_the_study_is_the_same_when_it_is_read_again_and_goes_on(study):
    again = search(study.directory)
    assert [row.reason for row in again.trials] == [row.reason for row in study.trials]


def test_with_max_iter_trials_end_there(tmp_path):
    study = search(tmp_path / "study", early_terminate=hpsearch.Bands(max_iter=5, min_iter=3))
    assert [row.iterations for row in study.trials] == [5, 3, 3, 5]


def test_what_a_trial_reported_before_an_interruption_counts_when_it_goes_on(tmp_path):
    asked = {"parameters": {"x": [1.0, 2.0]}, "early_terminate": hpsearch.Bands(max_iter=6, min_iter=3)}
    ended = search(tmp_path / "study", dip, metric={"target": 0.5}, **asked)
    assert (ended.state, ended.row(1).iterations) == ("target", 2)
    gone_on, whole = search(tmp_path / "study", dip, **asked), search(tmp_path / "whole", dip, **asked)
    assert [(row.state, row.iterations) for row in whole.trials] == [(TrialState.COMPLETE, 6)] * 2
    assert [(row.state, row.iterations) for row in gone_on.trials] == [(TrialState.COMPLETE, 6)] * 2


def test_on_simulated_workers_the_same_are_stopped(tmp_path):
    class Falling(hpsearch.Curves):
        def curve(self, params: dict[str, float], seed: int) -> hpsearch.Curve:
            return hpsearch.Curve({"loss": [params["x"] / iteration for iteration in range(1, 21)]})

    study = hpsearch.search(
        Falling(),
        parameters={"x": [1.0, 2.0, 3.0, 0.5]},
        metric="loss",
        method="grid",
        early_terminate=hpsearch.Bands(min_iter=3, max_iter=20),
        resources={"workers": 1},
        directory=":memory:",
        backend="simulated",
        progress=False,
    )
    assert [row.iterations for row in study.trials] == [20, 4, 4, 20]  # workers elsewhere end at their next reports


def test_what_ends_before_it_is_told_of_cannot_be_stopped(tmp_path):
    sweep = hpsearch.Sweep(
        name="asked",
        metric=hpsearch.Metric("loss"),
        method="random",
        parameters=hpsearch.Space.from_parameters({"x": hpsearch.Uniform(0.0, 1.0)}),
        early_terminate=hpsearch.Bands(min_iter=3),
        run_cap=3,
    )
    with pytest.raises(hpsearch.SweepError, match=r"early_terminate\.type: must be one that judges trials where they"):
        hpsearch.AskTell(sweep, directory=tmp_path / "study")
