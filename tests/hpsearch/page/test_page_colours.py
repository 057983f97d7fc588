"""A rung has one colour in all pictures of a study: of its brackets, its curves, and what its workers did."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import hpsearch
from hpsearch.page.brackets import brackets
from hpsearch.page.charts.picture import SERIES, Box, Line, Words
from hpsearch.page.endings import rung_inks
from hpsearch.page.html import Section
from hpsearch.page.progress import curves, history
from hpsearch.page.workers import workers
from hpsearch.schedulers.base import RungView
from tests.hpsearch.support.pages import simulated


def ran(scheduler: Any) -> hpsearch.Study:
    return simulated(
        lambda params, seed: hpsearch.Curve({"loss": [params["x"] / (place + 1) for place in range(81)]}),
        early_terminate=scheduler,
        resources=hpsearch.Resources(3),
        run_cap=40,
    )


def rungs(*untils: int | None) -> list[RungView]:
    return [RungView(0, place, until, 1, 1, 1) for place, until in enumerate(untils)]


def keys(section: Section | None) -> dict[str, str]:
    """Return the color of each label in the key of a picture: a text right after a line or box."""
    assert section is not None
    assert section.picture is not None
    shapes = section.picture.shapes
    pairs = itertools.pairwise(shapes)
    return {text.text: mark.ink for mark, text in pairs if isinstance(mark, Line | Box) and isinstance(text, Words)}


def test_neighbours_have_colours_of_their_own_as_long_as_there_are_some():
    assert list(rung_inks(rungs(1, 3, 9, 27)).values()) == list(SERIES[:4])
    assert rung_inks(rungs(None, 3)) == {3: "s0", None: "s1"}
    many = list(rung_inks(rungs(*range(1, 10))).values())
    assert set(many) == set(SERIES)
    assert many == sorted(many)


@pytest.mark.parametrize(
    "scheduler",
    [
        hpsearch.Hyperband(max_iter=27, eta=3),
        hpsearch.ASHA(max_iter=81, eta=3, brackets=2),
        hpsearch.SuccessiveHalving(64, eta=2, min_iter=1, trials=40),  # more rungs than colours
    ],
)
def test_a_rung_has_one_colour_in_all_pictures(scheduler):
    study = ran(scheduler)
    inks = rung_inks(study.rungs)
    drawn = brackets(study)
    assert drawn is not None
    assert drawn.picture is not None
    bars = {
        box.tip.split("(to iteration ")[1].split(")")[0]: box.ink
        for box in drawn.picture.shapes
        if isinstance(box, Box) and "to iteration" in box.tip
    }
    assert {str(until): ink for until, ink in inks.items()} == bars
    (of_curves,) = curves(study)
    for text, ink in keys(of_curves).items():
        if text.endswith(("iteration", "iterations")):
            last = int(text.removeprefix("<= ").split()[0])
            assert inks[last] == ink
    section = workers(study)
    assert section is not None
    assert section.picture is not None
    segments = [box for box in section.picture.shapes if isinstance(box, Box) and box.tip]
    assert segments
    for box in segments:
        assert box.ink == bars[box.tip.split("(to iteration ")[1].split(")")[0]]
    states = {ink for text, ink in keys(history(study)).items() if text in ("complete", "stopped")}
    assert not states & set(bars.values())
