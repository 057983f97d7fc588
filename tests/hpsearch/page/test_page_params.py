"""Parallel coordinates: axes span the search space, and each trial's value stands where it belongs."""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.page.charts.picture import Line, Words
from hpsearch.page.charts.scales import Names
from hpsearch.page.html import Section
from hpsearch.page.params import axis_of, parallel, range_text, varies
from hpsearch.seeds import DRAW_BITS
from hpsearch.space import Categorical
from tests.hpsearch.support.pages import beyond, simulated
from tests.hpsearch.support.spaces import distributions


def shown(study: hpsearch.Study) -> Section:
    section = parallel(study)
    assert section is not None
    assert section.picture is not None
    assert beyond(section.picture) == []
    return section


def lines(section: Section, ink: str) -> list[Line]:
    """Return the lines of trials in a color, without the key."""
    assert section.picture is not None
    keys = {one.y - 4 for one in section.picture.shapes if isinstance(one, Words) and one.y > 310}
    found = [one for one in section.picture.shapes if isinstance(one, Line) and one.ink == ink]
    return [one for one in found if one.points[0][1] not in keys]


@settings(max_examples=200, deadline=None)
@given(distributions(), st.randoms(use_true_random=False), st.integers(1, 30), st.booleans())
def test_an_axis_keeps_the_order_of_values_and_tells_them_apart(distribution, chance, count, some_lack_it):
    drawn: list[Any] = [distribution.draw(chance.getrandbits(DRAW_BITS)) for _ in range(count)]
    points = [{"p": value} for value in drawn] + ([{}] if some_lack_it else [])
    axis = axis_of("p", distribution, points)
    assert varies("p", points) is (len({*map(json.dumps, drawn)}) + some_lack_it > 1)
    if axis is None:
        assert len({json.dumps(value) for value in (*drawn, *distribution.values)}) + some_lack_it > 12
        return
    shares = [axis.scale.fraction(value) for value in axis.values]
    marks = axis.scale.ticks(5)
    assert all(0 <= share <= 1 for share in shares)
    assert all(0 <= axis.scale.fraction(mark) <= 1 for mark, _ in marks)
    if isinstance(axis.scale, Names):
        assert isinstance(distribution, Categorical) or any(abs(value) > 1e308 for value in drawn)
        for (one, share), (other, elsewhere) in itertools.combinations(zip(drawn, shares, strict=False), 2):
            assert (json.dumps(one) == json.dumps(other)) is (share == elsewhere)
        listed = [axis.scale.fraction(name) for name in axis.scale.names]
        assert listed == sorted(listed)
    else:
        order = sorted(range(count), key=lambda place: float(drawn[place]))
        assert all(shares[one] <= shares[other] for one, other in itertools.pairwise(order))
    if some_lack_it:
        assert all(share != shares[-1] for share in shares[:-1])
        assert "absent" in [text for _, text in marks]
        assert "absent" in range_text(axis, count + 1)
    assert range_text(axis, count).startswith("p")


@pytest.mark.parametrize(
    ("distribution", "ends"),
    [
        (hpsearch.Uniform(-2.0, 3.0), ["-2", "3"]),
        (hpsearch.LogUniform(1e-5, 10.0), ["1e-05", "10"]),
        (hpsearch.IntUniform(1, 9), ["1", "9"]),
        (hpsearch.Uniform(0.0, 1.0, step=0.3), ["0", "0.9"]),
        (hpsearch.Normal(5.0, 1.0), ["2", "8"]),
        (hpsearch.Categorical([2.0**power for power in range(14)]), ["1", "8192"]),
    ],
)
def test_an_axis_spans_the_space_and_marks_its_ends(distribution, ends):
    axis = axis_of("p", distribution, [{"p": distribution.draw(2**DRAW_BITS // share)} for share in (2, 3)])
    assert axis is not None
    marks = {text: axis.scale.fraction(value) for value, text in axis.scale.ticks(5)}
    assert [marks[end] for end in ends] == pytest.approx([0.0, 1.0])


def test_a_logarithmic_axis_is_one():
    axis = axis_of("p", hpsearch.LogUniform(1e-4, 1.0), [{"p": 1e-2}, {"p": 1e-3}])
    assert axis is not None
    assert [axis.scale.fraction(value) for value in axis.values] == pytest.approx([0.5, 0.25])


def test_values_that_read_alike_stand_apart():
    values: list[Any] = [1, True, 1.0, "1", "absent", 0.12341, 0.12342, None]
    points = [{"p": value} for value in values] + [{}]
    axis = axis_of("p", hpsearch.Categorical(values), points)
    assert axis is not None
    assert isinstance(axis.scale, Names)
    assert axis.scale.names[5:] == ("0.12341", "0.12342", "null", "(absent)")
    assert len({axis.scale.fraction(value) for value in axis.values}) == len(points)
    assert varies("p", [{"p": 0.12341}, {"p": 0.12342}])
    assert not varies("p", [{"p": 0.12341}, {"p": 0.12341}])


def curve(params: dict[str, Any], seed: int) -> hpsearch.Curve:
    x = params["x"]
    if x < 0.2:
        return hpsearch.Curve({"loss": [x]}, 1.0, "no luck")
    return hpsearch.Curve({"loss": [math.nan if x < 0.4 else math.inf if x < 0.5 else 1e300 if x < 0.6 else x]})


def test_trials_that_failed_or_have_no_finite_value_go_as_far_as_the_parameters():
    parameters = {"x": hpsearch.Uniform(0, 1), "y": hpsearch.LogUniform(1e-3, 1)}
    study = simulated(curve, parameters=parameters, max_iter=2, run_cap=60)
    section = shown(study)
    xs = [row.params["x"] for row in study.trials]
    failed, without = sum(x < 0.2 for x in xs), sum(0.2 <= x < 0.5 for x in xs)
    assert failed
    assert without
    red = lines(section, "bad")
    assert len(red) == failed + without
    assert all(one.dashed and len(one.points) == 2 for one in red)
    others = lines(section, "good") + lines(section, "muted")
    assert len(others) == len(xs) - failed - without
    assert all(len(one.points) == 3 for one in others)
    assert f"In red, dashed, as far as the parameters: {failed} failed and {without} ended without a finite value." in (
        section.paragraphs
    )
    assert len(lines(section, "good")) == len(others) // 10
    best = sorted(x for x in xs if x >= 0.6)[: len(others) // 10]
    assert f"x {min(best):.4g} to {max(best):.4g}; y " in section.paragraphs[0]


@pytest.mark.parametrize(("count", "red"), [(2, 2), (130, 100)])
def test_where_all_failed_there_are_their_lines_still(count, red):
    study = simulated(lambda params, seed: hpsearch.Curve({"loss": [1.0]}, 1.0, "no luck"), max_iter=2, run_cap=count)
    section = shown(study)
    assert section.paragraphs[0] == "No trial has a finite value."
    assert section.paragraphs[1] == f"In red, dashed, as far as the parameters: {count} failed."
    assert len(lines(section, "bad")) == red
    assert (f"The first {red} of {count} without a value are drawn." in section.paragraphs) is (red < count)
    assert section.picture is not None
    assert not [one for one in section.picture.shapes if isinstance(one, Line) and one.ink == "good"]


def test_what_a_trial_does_not_have_stands_at_the_foot():
    parameters = {
        "kind": hpsearch.Choice({"sgd": {"momentum": hpsearch.Uniform(0.0, 0.9)}, "adam": {}}),
        "extra": hpsearch.When("kind == 'adam'", hpsearch.Uniform(1.0, 2.0)),
    }
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [seed % 7]}), parameters=parameters, max_iter=1, run_cap=12
    )
    section = shown(study)
    assert section.picture is not None
    texts = [one for one in section.picture.shapes if isinstance(one, Words)]
    absent = [one for one in texts if one.text == "absent"]
    assert absent
    assert {one.y - 4 for one in absent} == {300}
    extra = next(one.x for one in texts if one.text == "extra")
    lacking = sum("extra" not in row.params for row in study.trials)
    assert 0 < lacking < 12
    at_foot = [
        one
        for one in lines(section, "good") + lines(section, "muted")
        if any(x == extra and y == 300 for x, y in one.points)
    ]
    assert len(at_foot) == lacking


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 14), st.integers(1, 4))
def test_names_and_marks_of_many_axes_have_room(params, goals):
    chance = random.Random(params)
    parameters = {f"{'long_name_' * 4}{number}": hpsearch.Uniform(0, 10.0 ** (number * 9)) for number in range(params)}
    names = [f"metric_with_a_name_{number}" for number in range(goals)]
    study = simulated(
        lambda params, seed: hpsearch.Curve({name: [chance.random() * 1e-7] for name in names}),
        parameters=parameters,
        metric=tuple(map(hpsearch.Metric, names)) if goals > 1 else hpsearch.Metric(names[0]),
        max_iter=1,
        run_cap=3,
    )
    section = shown(study)
    if params > 10:
        assert f"Not drawn because there is no room: {', '.join(list(parameters)[10:])}." in section.paragraphs


def test_a_space_of_networks_alone_says_that_they_are_too_many():
    cell = {"cell": hpsearch.Cell(["a", "b", "c"], nodes=4)}
    section = parallel(
        simulated(lambda p, seed: hpsearch.Curve({"loss": [seed]}), parameters=cell, max_iter=1, run_cap=30)
    )
    assert section is not None
    assert section.picture is None
    assert section.paragraphs == ["Not drawn, as they have too many values to be told apart: cell."]
    assert parallel(simulated(lambda p, seed: hpsearch.Curve({"loss": [1.0]}), max_iter=1, run_cap=1)) is None


def test_an_axis_of_a_goal_that_no_trial_has_is_not_drawn():
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": []}, 1.0, "no"),
        parameters={"x": hpsearch.Uniform(0, 1), "y": hpsearch.Uniform(0, 1)},
        max_iter=1,
        run_cap=4,
    )
    section = shown(study)
    assert section.picture is not None
    assert "loss" not in [one.text for one in section.picture.shapes if isinstance(one, Words)]
    assert len(lines(section, "bad")) == 4


@pytest.mark.parametrize("most", [None, 3])
def test_of_what_is_repeated_the_axis_says_that_it_is_a_count(most):
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [float(len(params["hidden"]))]}),
        parameters={"hidden": hpsearch.Repeat([1, 2], min=1, **({} if most is None else {"max": most})), "y": [1, 2]},
        max_iter=1,
        run_cap=12,
    )
    section = shown(study)
    assert section.picture is not None
    names = [one.text for one in section.picture.shapes if isinstance(one, Words)]
    assert "hidden (count)" in names
    assert "y" in names
