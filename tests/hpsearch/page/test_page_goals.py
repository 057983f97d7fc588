"""What a page tells where several goals decide."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.errors import HpsearchError
from hpsearch.page.charts.picture import Dot, Line
from hpsearch.page.goals import evenly, front, growth
from hpsearch.page.page import page_of
from hpsearch.page.params import importance
from hpsearch.page.progress import curves, history
from tests.hpsearch.support.pages import Reader, searched, simulated

PAIR = hpsearch.Metric("loss"), hpsearch.Metric("gain", "maximize")
REFERRED = hpsearch.Metric("loss", reference=0.75), hpsearch.Metric("gain", "maximize", reference=0.25)
VALUES = st.integers(0, 8).map(lambda eighths: eighths / 8)


def of_points(points: Sequence[tuple[float, float]], **changes: Any) -> hpsearch.Study:
    """Run a trial for each point, of one iteration, in their order."""

    def curve(params: dict[str, Any], seed: int) -> hpsearch.Curve:
        loss, gain = points[params["place"]]
        return hpsearch.Curve({"loss": [loss], "gain": [gain]})

    places = {"place": list(range(len(points)))}
    given = {"parameters": places, "method": "grid", "max_iter": 1, "metric": PAIR, **changes}
    return simulated(curve, **given)


def covered(points: Sequence[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Return the hypervolume, computed by counting squares of a grid of eighths; less loss and more gain are better."""
    squares = itertools.product(range(-8, 16), repeat=2)
    middles = [((across + 0.5) / 8, (up + 0.5) / 8) for across, up in squares]
    return (
        sum(
            x < reference[0] and y > reference[1] and any(loss < x and gain > y for loss, gain in points)
            for x, y in middles
        )
        / 64
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9), st.sampled_from([PAIR, REFERRED]))
def test_the_hypervolume_after_each_trial_is_that_of_the_trials_so_far(points, metric):
    study = of_points(points, metric=metric)
    section = growth(study)
    assert section is not None
    assert section.table is not None
    best = [points[row.params["place"]] for row in study.trials]
    fronts = [
        [one for one in best[:count] if not any(_is_better(other, one) for other in best[:count])]
        for count in range(1, len(best) + 1)
    ]
    reference = (0.75, 0.25)
    if metric is PAIR:
        ever = [point for known in fronts for point in known]
        reference = max(loss for loss, _ in ever), min(gain for _, gain in ever)
    told = {int(trial): float(value) for trial, value in section.table.rows}
    known = [covered(so_far, reference) for so_far in fronts]
    for trial, value in told.items():
        assert value == pytest.approx(known[trial], abs=1e-3)
    for trial, (before, after) in enumerate(itertools.pairwise(known), 1):
        assert trial in told or before == after
    assert re.match(rf"The front's hypervolume is {known[-1]:.4g} after ", section.paragraphs[0])
    assert f"with {len(fronts[-1])} on it" in section.paragraphs[0]
    whose = "its metric.reference" if metric is REFERRED else "the worst that any trial of the front had"
    assert f"loss {reference[0]:.4g} ({whose}), gain {reference[1]:.4g} ({whose})" in section.paragraphs[1]
    assert ("It is 0 as no trial is better than that in every goal." in section.paragraphs) is (known[-1] == 0)


def _is_better(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] >= other[1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9))
def test_the_fronts_trials_stand_in_the_table_and_are_drawn_filled(points):
    study = of_points(points)
    section = front(study)
    assert section is not None
    assert section.table is not None
    assert section.picture is not None
    on_it = {
        row.number
        for row in study.trials
        if not any(_is_better(points[other.params["place"]], points[row.params["place"]]) for other in study.trials)
    }
    assert {int(row[0]) for row in section.table.rows} == on_it
    assert f"{len(on_it)} of {len(points)} trials are on the front" in section.paragraphs[0]
    tips = {one.tip for one in section.picture.shapes if isinstance(one, Dot) and not one.hollow and one.tip}
    assert tips == {f"trial {number}" for number in on_it}
    losses = [float(row[3]) for row in section.table.rows]
    assert losses == sorted(losses)


def test_the_table_of_the_front_has_parameters_and_checkpoints(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        for _ in trial.iterations():
            trial.report({"loss": trial.params["x"], "gain": trial.params["x"]}, checkpoint={"x": trial.params["x"]})

    changes: dict[str, Any] = {"metric": list(PAIR), "early_terminate": None, "max_iter": 1, "run_cap": 3}
    study = searched(tmp_path / "kept", train, parameters={"x": hpsearch.Uniform(0, 1), "c": 3}, **changes)
    section = front(study)
    assert section is not None
    assert section.table is not None
    assert section.table.head == ("trial", "state", "iterations", "loss", "gain", "x", "why it ended", "checkpoint")
    for row in section.table.rows:
        trial = study.trials[int(row[0])]
        assert float(row[5]) == pytest.approx(trial.params["x"], rel=1e-3)
        assert study.directory / row[7] == study.checkpoint_path(trial)
        assert (study.directory / row[7]).exists()
    assert "The same in all of these: c = 3." in section.paragraphs
    assert f"Checkpoints lie in {study.directory}." in section.paragraphs


def test_infinite_values_are_on_the_front_and_said_not_to_be_drawn():
    section = front(of_points([(-math.inf, 0.5), (1.0, 0.75), (2.0, 0.5), (math.nan, 9.0)]))
    assert section is not None
    assert section.paragraphs[0].startswith("2 of 3 trials are on the front")
    assert "On an edge, or not drawn where a value is infinite: 1 trial." in section.paragraphs


def test_each_goal_has_curves_and_what_mattered_and_one_is_asked_for_by_name():
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [params["x"]] * 2, "gain": [params["y"]] * 2}),
        parameters={"x": hpsearch.Uniform(0, 1), "y": hpsearch.Uniform(0, 1)},
        metric=PAIR,
        max_iter=2,
        run_cap=25,
    )
    assert [section.title for section in curves(study)] == ["Learning curves: loss", "Learning curves: gain"]
    mattered = importance(study)
    assert [section.title for section in mattered] == ["What mattered: loss", "What mattered: gain"]
    assert ": x 9" in mattered[0].paragraphs[0] or ": x 100%" in mattered[0].paragraphs[0]
    assert ": y 9" in mattered[1].paragraphs[0] or ": y 100%" in mattered[1].paragraphs[0]
    assert study.plot_curves("gain").title == "Learning curves: gain"
    assert study.plot_curves().title == "Learning curves: loss"
    assert study.plot_importance("gain").title == "What mattered: gain"
    for plot in (study.plot_curves, study.plot_importance):
        with pytest.raises(HpsearchError, match=r"expected a metric that decides, got 'gian'; did you mean gain\?"):
            plot("gian")
    assert study.plot_history().title == "Hypervolume of the front"
    best = {row.number for row in study.leaders}
    section = curves(study)[0]
    assert section.picture is not None
    thick = [one for one in section.picture.shapes if isinstance(one, Line) and one.width == 3]
    assert {int(one.tip.split(":")[0].removeprefix("trial ")) for one in thick} == best


def test_the_page_leads_from_the_front_to_how_it_came_about():
    chance = random.Random(1)
    study = of_points([(chance.random(), chance.random()) for _ in range(6)])
    assert Reader(page_of([study]).html()).headings[:3] == ["What was found", "Front", "How it got there"]


def test_where_all_break_a_constraint_it_is_said_who_does_so_least():
    study = of_points([(1.0, 3.0), (2.0, 2.0)], outcome_constraints=("gain <= 1",))
    section = front(study)
    assert section is not None
    assert section.table is None
    least = next(row.number for row in study.trials if row.values == (2.0, 2.0))
    assert section.paragraphs[0] == (
        f"No trial is on the front, as all break constraints; trial {least} least: gain <= 1."
    )
    assert history(study) is None


def test_a_hypervolume_that_would_take_too_long_is_left_out_with_the_reason():
    goals, count = 8, 16

    def curve(params: dict[str, Any], seed: int) -> hpsearch.Curve:
        place = params["place"]
        return hpsearch.Curve({f"m{goal}": [float((place * (goal + 3)) % 17)] for goal in range(goals)})

    metric = tuple(hpsearch.Metric(f"m{goal}") for goal in range(goals))
    study = simulated(curve, parameters={"place": list(range(1, count + 1))}, method="grid", max_iter=1, metric=metric)
    section = growth(study)
    assert section is not None
    assert section.picture is None
    size = len(study.leaders)
    assert size**7 > 30_000_000
    assert section.paragraphs == [
        f"{size} trials are on the front. With 8 goals, measuring its hypervolume would take too long."
    ]


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [(3, 5, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (9, 3, [0, 4, 8]), (1000, 2, [0, 999]), (0, 2, [])],
)
def test_items_are_taken_evenly_with_both_ends(count, most, expected):
    assert list(evenly(range(count), most)) == expected
