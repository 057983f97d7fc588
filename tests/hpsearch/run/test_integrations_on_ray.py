"""Other libraries' training loops in the workers of a real cluster: promoted trials go on where they were."""

from __future__ import annotations

from typing import Any

import pytest

import hpsearch
from tests.hpsearch.support import lightning_trainables, transformers_trainables

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(
    ("library", "metric", "parameters"),
    [
        (lightning_trainables, "val_loss", {"schedule": lightning_trainables.SCHEDULES}),
        (transformers_trainables, "eval_loss", {"arguments": {"learning_rate": [1e-3, 3e-3, 1e-2]}}),
    ],
)
def test_a_sweep_on_ray_reports_what_uncut_training_in_this_process_does(
    library, metric, parameters, tmp_path, ray_cluster
):
    given: dict[str, Any] = {
        "parameters": parameters,
        "method": "grid",
        "metric": metric,
        "progress": False,
        "observers": [],
    }
    whole = hpsearch.search(library.train, max_iter=4, backend="inline", directory=tmp_path / "whole", **given)
    early = hpsearch.SuccessiveHalving(4, eta=2)
    swept = hpsearch.search(library.train, early_terminate=early, directory=tmp_path / "swept", **given)
    assert swept.state == "finished"
    assert [str(row.state) for row in swept.trials].count("complete") == 1
    assert {row.state for row in swept.trials} == {"complete", "stopped"}
    expected, came = whole.reports(), swept.reports()
    assert max(map(len, came.values())) > 1
    for trial, reports in came.items():
        assert [dict(report.metrics) for report in reports] == [
            dict(report.metrics) for report in expected[trial][: len(reports)]
        ]
    assert swept.best_trial.checkpoint is not None
