"""Whatever the space and whatever trials report: a page is made, and its pictures hold what they draw."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.page.charts.picture import svg
from hpsearch.page.page import page_of
from tests.hpsearch.support.pages import Reader, beyond, drawn, simulated
from tests.hpsearch.support.spaces import spaces
from tests.hpsearch.support.structured import UNCONSTRAINED

VALUES = st.floats(-1e3, 1e3) | st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, 0.0])
CURVES = st.lists(st.lists(VALUES, min_size=3, max_size=3) | st.none(), min_size=1, max_size=6)
"""Of some trials, over the iterations; None: it fails."""
SCHEDULERS: dict[str, dict[str, Any]] = {
    "none": {"max_iter": 3},
    "hyperband": {"early_terminate": hpsearch.Hyperband(max_iter=3, eta=3)},
    "asynchronous": {"early_terminate": hpsearch.ASHA(max_iter=3, eta=3, brackets=2)},
    "asha": {"early_terminate": hpsearch.ASHA(max_iter=3, eta=2)},
}
GOALS: dict[str, dict[str, Any]] = {
    "one": {"metric": hpsearch.Metric("loss")},
    "maximized": {"metric": hpsearch.Metric("loss", "maximize")},
    "two": {"metric": (hpsearch.Metric("loss"), hpsearch.Metric("ms", "maximize"))},
    "two from a reference": {"metric": (hpsearch.Metric("loss", reference=1.0), hpsearch.Metric("ms", reference=2.0))},
    "three": {"metric": (hpsearch.Metric("loss"), hpsearch.Metric("ms", "maximize"), hpsearch.Metric("half"))},
    "bounded": {"metric": hpsearch.Metric("loss"), "outcome_constraints": ("ms <= 0",)},
}


def searched(curves: list[list[float] | None], **given: Any) -> hpsearch.Study:
    def curve(params: dict[str, Any], seed: int) -> hpsearch.Curve:
        loss = curves[seed % len(curves)] or [1.0, 2.0]
        failure = "" if curves[seed % len(curves)] else "ValueError: <no> & luck"
        return hpsearch.Curve({"loss": loss, "ms": loss[::-1], "half": [value / 2 for value in loss]}, 1.0, failure)

    return simulated(curve, **{"run_cap": 7, **given})


def check(study: hpsearch.Study) -> None:
    html = page_of([study]).html()
    Reader(html)
    numbers = " ".join(re.findall(r' (?:points|x|y|cx|cy|width|height)="([^"]*)"', html))
    assert not re.search("nan|inf", numbers)
    for picture in drawn(study):
        assert beyond(picture) == []
    Reader(study._repr_html_())


@settings(max_examples=40, deadline=None)
@given(CURVES, st.sampled_from(list(SCHEDULERS)), st.sampled_from(list(GOALS)))
@example([[1.0, 21.0, -1e300]], "none", "one")
def test_whatever_trials_report(curves, scheduler, goals):
    check(searched(curves, **SCHEDULERS[scheduler], **GOALS[goals]))


NARROW = hpsearch.Space.from_parameters(
    {"p0": hpsearch.LogIntUniform(23015305, 23015306), "n": hpsearch.IntUniform(0, 2), "u": hpsearch.Uniform(0.0, 0.5)}
)
"""Too narrow, so far out, for floats of 32 bits."""


@settings(max_examples=40, deadline=None)
@example(NARROW, 0, 25)
@example(NARROW, 50, 25)
@given(spaces(), st.integers(0, 99), st.sampled_from([1, 2, 25]))
def test_whatever_the_space(space, seed, trials):
    curves: list[list[float] | None] = [[3.0, 2.0, 1.0], [1.0, 1.5, 0.5], None, [2.0, 2.0, math.nan]]
    check(searched(curves, parameters=space, seed=seed, run_cap=trials, max_iter=3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 4))])
def test_of_structures_too(seed):
    curves: list[list[float] | None] = [[3.0, 2.0, 1.0], [1.0, 1.5, 0.5], None]
    for goals in GOALS.values():
        check(searched(curves, parameters=UNCONSTRAINED, seed=seed, run_cap=25, max_iter=3, **goals))


def test_pictures_are_written_as_files_too():
    study = searched([[3.0, 2.0, 1.0], [1e300, math.inf, 0.5], None], **SCHEDULERS["hyperband"], **GOALS["two"])
    assert all(svg(picture).startswith("<svg") for picture in drawn(study))
