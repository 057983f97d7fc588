"""What mattered: by which iteration, of which trials, and what is said where that isn't known."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.errors import HpsearchError
from hpsearch.page.charts.picture import Words
from hpsearch.page.params import importance
from hpsearch.results.importance import importance_of
from tests.hpsearch.support.pages import beyond, simulated

BOTH = {"x": hpsearch.Uniform(0, 1), "y": hpsearch.Uniform(0, 1)}


def of_lengths(lengths: list[int], broken: float = math.nan) -> hpsearch.Study:
    """Run a trial of so many iterations for each length; at every third one it reports no finite value."""
    places: dict[str, Any] = {"place": hpsearch.IntUniform(0, len(lengths) - 1)}
    return simulated(
        lambda params, seed: hpsearch.Curve(
            {"loss": [broken if i % 3 == 2 else params["place"] / 7 for i in range(lengths[params["place"]])]}
        ),
        parameters=places,
        method="grid",
        max_iter=9,
    )


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=45), st.sampled_from([math.nan, math.inf]))
def test_it_goes_by_the_highest_iteration_at_which_20_trials_have_a_finite_value(lengths, broken):
    study = of_lengths(lengths, broken)
    found = importance_of(study)
    known = Counter(i + 1 for length in lengths for i in range(length) if i % 3 != 2)
    enough = [iteration for iteration, count in known.items() if count >= 20]
    (section,) = importance(study)
    if enough:
        assert (found.iteration, found.reached, found.fitted) == (max(enough), known[max(enough)], known[max(enough)])
        assert (
            f"By loss at iteration {max(enough)}, the last one that {known[max(enough)]} trials reached"
            in (section.paragraphs[0])
        )
        assert found.shares == pytest.approx({"place": 1.0})
    else:
        most = max(known.values())
        first = min(iteration for iteration, count in known.items() if count == most)
        has = "has" if most == 1 else "have"
        assert section.paragraphs == [
            "This takes 20 trials with a finite loss at one iteration: "
            f"so far {most} {has} one at iteration {first}, and no more at any other."
        ]
        assert section.picture is None


def one_matters(parameters: dict[str, Any], of: Any, count: int = 60) -> dict[str, float]:
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [of(params)]}), parameters=parameters, max_iter=1, run_cap=count
    )
    return dict(importance_of(study).shares)


@pytest.fixture(scope="module")
def plain() -> dict[str, float]:
    """Shares of two numbers from 0 to 1, of which one matters half as much."""
    return one_matters(BOTH, lambda params: params["x"] + 0.5 * params["y"])


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.0, 1e300), (-1e308, 1e308), (1e9, 1e9 + 1e-3), (0.0, 1e-320), (-5e-300, 0.0)]
)
def test_what_a_number_is_and_where_it_lies_changes_no_share(plain, low, high):
    def place(params: dict[str, Any]) -> float:
        return float((params["x"] / 2 - low / 2) / (high / 2 - low / 2))

    moved = one_matters({**BOTH, "x": hpsearch.Uniform(low, high)}, lambda params: place(params) + 0.5 * params["y"])
    assert moved == pytest.approx(plain, abs=0.02)
    assert 0.6 < moved["x"] < 0.95


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e150, 1e306])
def test_nor_does_the_size_of_values(plain, scale):
    assert one_matters(BOTH, lambda params: scale * (params["x"] + 0.5 * params["y"])) == pytest.approx(plain, abs=0.02)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    "distribution",
    [
        hpsearch.LogUniform(1e-300, 1e300),
        hpsearch.IntUniform(-(2**52), 2**52),
        hpsearch.IntUniform(10**9, 10**9 + 9),
        hpsearch.LogIntUniform(1, 2**50),
        hpsearch.Uniform(1e9, 1e9 + 2.5, step=0.25),
        hpsearch.Normal(1e200, 1e190),
        hpsearch.LogNormal(0.0, 5.0),
        hpsearch.Categorical([1, True, "1", None]),
    ],
)
def test_whatever_the_distribution_the_parameter_that_alone_decides_has_nearly_all(distribution):
    rank = random.Random(3).random()

    def value(params: dict[str, Any]) -> float:
        return (
            rank * float(distribution.share(params["p"]))
            if hasattr(distribution, "share")
            else float(params["p"] is None)
        )

    shares = one_matters({"p": distribution, "y": hpsearch.Uniform(0, 1)}, value)
    assert shares["p"] > 0.9
    assert next(iter(shares)) == "p"


def test_of_many_trials_some_are_looked_at_and_that_is_said():
    study = simulated(lambda params, seed: hpsearch.Curve({"loss": [params["x"]]}), max_iter=1, run_cap=350)
    (section,) = importance(study)
    assert "the last one that 350 trials reached, by 175 of them: x 100%" in section.paragraphs[0]


def test_equal_values_and_constant_parameters_explain_nothing():
    same = simulated(lambda params, seed: hpsearch.Curve({"loss": [1.0]}), max_iter=1, run_cap=22)
    assert importance(same)[0].paragraphs == ["The 22 trials that reached iteration 1 have one loss."]
    fixed = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [seed % 100]}), parameters={"c": [3]}, max_iter=1, run_cap=22
    )
    assert re.fullmatch(
        r"No parameter varies that all of the 22 trials have that reached iteration 1\.",
        importance(fixed)[0].paragraphs[0],
    )
    with pytest.raises(HpsearchError, match=r"there is no such picture\. No parameter varies that all of the 22"):
        fixed.plot_importance()
    failed = simulated(lambda params, seed: hpsearch.Curve({"loss": [math.nan]}), max_iter=1, run_cap=22)
    assert importance(failed)[0].paragraphs[0].endswith("so far none has any.")


@pytest.mark.parametrize("count", [19, 20])
def test_20_trials_are_enough_and_19_are_not(count):
    assert (importance_of(of_lengths([1] * count)).iteration == 1) is (count == 20)


def test_long_names_have_room_and_what_is_repeated_is_a_count():
    long = "a_name_of_more_letters_than_there_is_room_for_beside_its_bar"
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [params[long] + len(params["hidden"])]}),
        parameters={long: hpsearch.Uniform(0, 1), "hidden": hpsearch.Repeat([1, 2], min=1, max=3)},
        max_iter=1,
        run_cap=30,
    )
    (section,) = importance(study)
    assert section.picture is not None
    assert beyond(section.picture) == []
    names = [one.text for one in section.picture.shapes if isinstance(one, Words)]
    assert "hidden (count)" in names
    assert any("…" in name for name in names)
    assert all(name.startswith("a_name") and name.endswith("bar") for name in names if "…" in name)
    assert "hidden (count)" in section.paragraphs[0]
