"""What `search` says of arguments of the wrong kind: it names the argument, and leaves no study behind."""

from __future__ import annotations

from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError

SPACE: dict[str, Any] = {"parameters": {"x": hpsearch.Uniform(0, 1)}}


def train(trial: Any) -> None:
    trial.report({"loss": trial.params["x"]})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"parameters": [("x", 0, 1)]}, "parameters: must be a mapping of names to distributions, got a list of 1"),
        ({"parameters": {}}, "parameters: must hold at least one parameter, got none"),
        ({"parameters": {"x": (0, 1)}}, "parameters.x: must be a distribution, .*, got the tuple"),
        ({"parameters": {"x": []}}, "parameters.x.values: must hold at least one value, got none"),
        (
            {"parameters": {"parameters": {"g": {"x": {"value": 1}}}}},
            "parameters.g.x: isn't a known key\n  a group",
        ),
        ({"parameters": SPACE | {"constraints": {"x": 1}}}, "constraints: must be a list, got a mapping"),
        (
            {"parameters": SPACE | {"constraints": ["y < 1"]}},
            r"constraints\[0\]: must name parameters, but y",
        ),
        ({"parameters": SPACE | {"outcome_constraints": 1}}, "outcome_constraints: must be a list, got 1"),
        ({"parameters": SPACE | {"points_to_try": {"x": 0.5}}}, "points_to_try: must be a list, got a mapping"),
        ({"parameters": SPACE | {"run_capp": 1}}, "run_capp: isn't a known key\n  did you mean run_cap"),
        (
            {"metric": ["loss", "size"]},
            r"metric\[0\]: must be a mapping with keys such as name, goal",
        ),
        (
            {"metric": {"name": "loss", "goal": "max"}},
            "metric.goal: must be minimize or maximize, got 'max'\n  did",
        ),
        (
            {"limits": {"patience": 0, "max_tim": 3}},
            "limits.max_tim: isn't a known key\n  did you mean .*\nlimits.p",
        ),
        ({"limits": hpsearch.Resources()}, "limits: must be a mapping with keys such as max_time"),
        ({"early_terminate": {"type": "hyperban"}}, "early_terminate.type: must be .*\n  did you mean hyperband"),
        ({"run_capp": 1}, "search: run_capp isn't a known argument\n  did you mean run_cap"),
        ({"directry": "x"}, "search: directry isn't a known argument\n  did you mean directory"),
        ({"eta": 1}, "search: eta isn't a known argument\n  it belongs under early_terminate"),
        ({"metric": None}, r"search: metric is required: search\(train, {'lr'"),
        ({"parameters": None}, r"search: parameters is required"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(tmp_path, given, problem):
    fine: dict[str, Any] = {"parameters": {"x": hpsearch.Uniform(0, 1)}, "metric": "loss", "run_cap": 1}
    with pytest.raises(SweepError, match=f"^{problem}"):
        hpsearch.search(train, directory=tmp_path / "study", backend="inline", progress=False, **(fine | given))
    assert not (tmp_path / "study").exists()
