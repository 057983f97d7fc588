"""How a search went, on a page: the best so far, and the learning curves."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.page.charts.picture import Dot, Line, Words
from hpsearch.page.html import Section
from hpsearch.page.progress import curves, history
from tests.hpsearch.support.pages import simulated

VALUES = st.integers(-9, 9).map(float) | st.sampled_from([math.nan, math.inf, -math.inf])


def of_curves(losses: list[list[float]], ms: list[float] | None = None, **changes: Any) -> hpsearch.Study:
    """Run a trial for each curve, in their order."""

    def curve(params: dict[str, Any], seed: int) -> hpsearch.Curve:
        place = params["place"]
        return hpsearch.Curve({"loss": losses[place], "ms": [0.0 if ms is None else ms[place]] * len(losses[place])})

    places = {"place": list(range(len(losses)))}
    longest = max(map(len, losses))
    return simulated(curve, **{"parameters": places, "method": "grid", "max_iter": longest, **changes})


def order(study: hpsearch.Study) -> list[int]:
    """Return the index of each trial's curve, in the order of the trials."""
    return [row.params["place"] for row in study.trials]


@settings(max_examples=40, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=12), st.sampled_from(["minimize", "maximize"]))
def test_the_best_so_far_is_that_of_the_trials_before(values, goal):
    study = of_curves([[value] for value in values], metric=hpsearch.Metric("loss", goal))
    section = history(study)
    given = [values[place] for place in order(study)]
    finite = [value for value in given if math.isfinite(value)]
    if not finite:
        assert section is None
        return
    assert section is not None
    assert section.table is not None
    assert section.picture is not None
    better = min if goal == "minimize" else max
    known = [value for value in given if not math.isnan(value)]
    assert f"{len(finite)} trial" in section.paragraphs[0]
    assert (
        f"from {min(finite):.4g} to {max(finite):.4g}; the best, {better(known):.4g}, is trial "
        in section.paragraphs[0]
    )
    told = {int(trial): float(value) for trial, value in section.table.rows}
    for trial in range(len(given)):
        before = [value for value in given[: trial + 1] if not math.isnan(value)]
        best = better(before) if before else math.nan
        former = [value for value in given[:trial] if not math.isnan(value)]
        changed = best != (better(former) if former else None)
        assert (trial in told) is (changed and math.isfinite(best))
        if trial in told:
            assert told[trial] == best
    dots = [one for one in section.picture.shapes if isinstance(one, Dot) and one.tip]
    assert len(dots) == len(finite)


def test_what_breaks_a_constraint_is_red_and_never_the_best():
    section = history(of_curves([[1.0], [2.0], [3.0]], [9.0, 9.0, 0.0], outcome_constraints=("ms <= 1",)))
    assert section is not None
    assert section.picture is not None
    assert "the best, 3, is trial" in section.paragraphs[0]
    red = [one for one in section.picture.shapes if isinstance(one, Dot) and one.ink == "bad" and one.tip]
    assert len(red) == 2
    texts = [one.text for one in section.picture.shapes if isinstance(one, Words)]
    assert "breaks a constraint" in texts


def test_where_all_break_constraints_there_is_no_best_so_far():
    study = of_curves([[1.0, 0.5], [2.0, 1.0]], [9.0, 4.0], outcome_constraints=("ms <= 1",))
    section = history(study)
    assert section is not None
    assert section.picture is not None
    trial = order(study).index(1)
    assert (
        f"all break constraints, and the one that breaks ms <= 1 least, 1, is trial {trial} of 2."
        in section.paragraphs[0]
    )
    assert "best so far" not in [one.text for one in section.picture.shapes if isinstance(one, Words)]
    (drawn,) = curves(study)
    assert (
        drawn.paragraphs[0]
        == f"All break constraints; trial {trial}, which does so least, went from 2 to 1 at iteration 2."
    )


def test_the_best_of_curves_is_the_best_trial_or_it_is_said_of_which():
    study = of_curves([[-math.inf, -math.inf], [5.0, 4.0], [7.0, 6.0]])
    (section,) = curves(study)
    second = order(study).index(1)
    assert section.paragraphs[0] == (
        f"Of the trials with a finite curve the best, trial {second}, went from 5 to 4 at iteration 2."
    )
    (section,) = curves(of_curves([[9.0, 4.0], [5.0, 4.5]]))
    assert re.match(r"Trial \d, the best, went from 9 to 4 at iteration 2\.", section.paragraphs[0])


def keys(section: Section) -> dict[str, str]:
    """Return which color stands for how many iterations."""
    assert section.picture is not None
    texts = [one for one in section.picture.shapes if isinstance(one, Words) and "iteration" in one.text and one.y < 40]
    lines = [one for one in section.picture.shapes if isinstance(one, Line) and one.width == 2]
    inks = {one.points[0][0]: one.ink for one in lines}
    return {inks[one.x - 24]: one.text for one in texts if one.x - 24 in inks}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 30), min_size=2, max_size=20))
def test_a_curves_colour_stands_for_the_iterations_that_it_has(lengths):
    study = of_curves([[float(place)] * length for place, length in enumerate(lengths)])
    (section,) = curves(study)
    assert section.picture is not None
    inks = keys(section)
    for line in section.picture.shapes:
        if isinstance(line, Line) and line.tip:
            iterations = int(re.findall(r" at (\d+)\. ", line.tip)[0])
            text = inks[line.ink]
            level = int(re.findall(r"(\d+) iteration", text)[0])
            assert iterations <= level if text.startswith("<= ") else iterations == level


@pytest.mark.parametrize("immense", [1e200, -1e200])
def test_what_is_beyond_an_axis_is_said(immense):
    section = history(of_curves([[immense], [2 * immense]]))
    assert section is not None
    far = f"{max(immense, 2 * immense):.4g}".replace("+", r"\+")
    assert any(re.search(rf"on its edge: \d values, as far as {far}", words) for words in section.paragraphs)
