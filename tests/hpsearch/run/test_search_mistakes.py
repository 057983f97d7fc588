"""What `search` says of arguments of the wrong kind: it names the argument, and leaves no study behind."""

from __future__ import annotations

from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError


def train(trial: Any) -> None:
    trial.report({"loss": trial.params["x"]})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"parameters": [("x", 0, 1)]}, "parameters: must be a mapping of names to distributions, got a list of 1"),
        ({"parameters": {}}, "parameters: must hold at least one parameter, got none"),
        ({"parameters": {"x": (0, 1)}}, "parameters.x: must be a distribution, .*, got the tuple"),
        ({"parameters": {"x": []}}, "parameters.x.values: must hold at least one value, got none"),
        ({"constraints": "x < 1"}, "constraints: must be a list, got 'x < 1'"),
        ({"constraints": ["y < 1"]}, r"constraints\[0\]: must name parameters, but y isn't one"),
        ({"outcome_constraints": "loss <= 1"}, "outcome_constraints: must be a list, got 'loss <= 1'"),
        ({"points_to_try": {"x": 0.5}}, "points_to_try: must be a list, got a mapping"),
        ({"metric": ["loss", "size"]}, r"metric\[0\]: must be a Metric, got 'loss'"),
        ({"goal": "max"}, "goal: must be minimize or maximize, got 'max'\n  did you mean maximize"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(tmp_path, given, problem):
    fine: dict[str, Any] = {"parameters": {"x": hpsearch.Uniform(0, 1)}, "metric": "loss", "run_cap": 1}
    with pytest.raises(SweepError, match=f"^{problem}"):
        hpsearch.search(train, directory=tmp_path / "study", backend="inline", progress=False, **(fine | given))
    assert not (tmp_path / "study").exists()
