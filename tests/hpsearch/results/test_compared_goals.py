"""Studies with several goals, and with constraints on outcomes, beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import hpsearch
from hpsearch.errors import HpsearchError
from hpsearch.results.comparison import compare
from hpsearch.tables.comparison import comparison_json, comparison_text
from tests.hpsearch.support.compared import searched, two


def test_several_goals_are_compared_by_hypervolume_from_one_point(tmp_path):
    metrics = hpsearch.Metric("loss", "minimize"), hpsearch.Metric("cost", "minimize")
    changes: Mapping[str, Any] = {"function": two, "metric": metrics, "max_iter": 1}
    studies = [searched(tmp_path / f"two{cap}", name=f"two{cap}", run_cap=cap, **changes) for cap in (2, 6)]
    compared = compare(*studies)
    points = [values for study in studies for row in study.trials if (values := row.values)]
    fronts = [row.values for study in studies for row in study.leaders]
    assert compared.reference is not None
    assert all(max(front[place] for front in fronts) <= compared.reference[place] for place in (0, 1))
    assert all(compared.reference[place] <= max(point[place] for point in points) for place in (0, 1))
    given = dict(zip(("loss", "cost"), compared.reference, strict=True))
    assert [run.value for run in compared.runs] == [study.hypervolumes(given)[-1][2] for study in studies]
    text = comparison_text(compared)
    assert "hypervolume from" in text
    assert "best trial" not in text


def test_what_breaks_constraints_is_never_the_best(tmp_path):
    constrained = [
        searched(tmp_path / f"kept{seed}", two, name="kept", seed=seed, outcome_constraints=["cost <= 0.3"], max_iter=1)
        for seed in range(3)
    ]
    (side,) = compare(*constrained).sides
    for run in side.runs:
        kept = [row.params["x"] for row in run.study.trials if (1 - row.params["x"]) ** 2 <= 0.3]
        assert kept
        assert min(row.params["x"] for row in run.study.trials) < min(kept)
        assert run.value == min(kept)
        for count in range(1, 7):
            so_far = [row.params["x"] for row in run.study.trials[:count] if (1 - row.params["x"]) ** 2 <= 0.3]
            assert run.at("trials", count) == min(so_far, default=None)
    none = searched(tmp_path / "none", two, name="none", outcome_constraints=["cost <= -1"], max_iter=1)
    with pytest.raises(HpsearchError, match=r"to minimize loss, where cost <= 0\.3, as .*, where cost <= -1; compare"):
        compare(constrained[0], none)
    assert compare(none).runs[0].value is None


def test_a_reference_is_the_worst_that_any_study_names_whichever_comes_first(tmp_path):
    studies = [
        searched(
            tmp_path / f"from{worst}",
            two,
            name=f"from{worst}",
            metric=[hpsearch.Metric("loss", reference=worst), hpsearch.Metric("cost", "maximize", reference=-worst)],
            max_iter=1,
        )
        for worst in (1.0, 2.0)
    ]
    compared, turned = compare(*studies), compare(*reversed(studies))
    assert compared.reference == turned.reference == (2.0, 2.0)
    assert comparison_json(compared)["reference"] == {"loss": 2.0, "cost": -2.0}
    assert [run.value for run in compared.runs] == [run.value for run in reversed(turned.runs)]
