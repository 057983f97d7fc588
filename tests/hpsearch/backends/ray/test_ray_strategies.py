"""Searches over strategies on a real cluster, and trials of each that lose a rank in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpsearch
from hpsearch.results.segments import SegmentRow
from hpsearch.results.study import Study
from hpsearch.trial import TrialState
from hpsearch_trainers.strategies import STRATEGIES
from tests.hpsearch.support.strategy_trainables import Killed

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.exhaustive]

WIDTH, EPOCHS = 2, 3


def search(directory: Path, strategies: list[str], victims: list[int], folder: Path | None) -> Study:
    return hpsearch.search(
        Killed,
        parameters={
            "parallel": {"strategy": strategies},
            "victim": victims,
            "folder": "" if folder is None else str(folder),
        },
        metric="validation_loss",
        method="grid",
        max_iter=EPOCHS,
        resources={"workers": WIDTH, "workers_per_trial": WIDTH},
        checkpoints={"every": 1},
        directory=directory,
        observers=[],
        progress=False,
    )


def test_strategies_are_searched_and_told_apart(ray_cluster, tmp_path):
    study = search(tmp_path / "study", list(STRATEGIES), [0], None)
    rows = study.trials
    assert [row.params["parallel.strategy"] for row in rows] == list(STRATEGIES)
    assert {row.state for row in rows} == {TrialState.COMPLETE}
    assert [row.asynchronous for row in rows] == [not kind.capabilities.reproducible for kind in STRATEGIES.values()]
    reports = study.reports()
    for row in rows:
        losses = [report.metrics["validation_loss"] for report in reports[row.number]]
        assert losses[-1] < losses[0]
    if any(row.asynchronous for row in rows):
        assert list(study.trials_dataframe()["asynchronous"]) == [row.asynchronous for row in rows]


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_rank_that_is_killed_costs_an_attempt_and_no_trial(ray_cluster, tmp_path, strategy):
    """The last rank of a strategy with servers is one."""
    victims = [0, WIDTH - 1]
    study = search(tmp_path / "struck", [strategy], victims, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.struck")) == ["0.struck", "1.struck"]
    assert {(row.state, row.iterations) for row in study.trials} == {(TrialState.COMPLETE, EPOCHS)}
    segments: dict[int, list[SegmentRow]] = {}
    for segment in study.segments():
        segments.setdefault(segment.trial, []).append(segment)
    for trial in range(len(victims)):
        lost, last = segments[trial]
        assert (lost.ended, lost.start, last.ended, last.start) == ("lost", 0, "finished", 1), segments[trial]
    if STRATEGIES[strategy].capabilities.reproducible:
        undisturbed = search(tmp_path / "undisturbed", [strategy], victims, None)
        assert [row.metrics["validation_loss"] for row in study.trials] == [
            row.metrics["validation_loss"] for row in undisturbed.trials
        ]
