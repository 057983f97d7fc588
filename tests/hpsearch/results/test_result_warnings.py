"""What of a study's results is warned of: no values, and params that made no difference."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.results.result_warnings import FEWEST, all_alike
from hpsearch.trial import TrialRow, TrialState
from tests.hpsearch.support.merged import merged


def rows(*came_to: tuple[float, int], params: Sequence[object] | None = None) -> list[TrialRow]:
    """Return trials with these (value, iterations), each with params of its own."""
    return [
        TrialRow(
            number,
            TrialState.COMPLETE,
            iterations,
            value,
            {"x": number if params is None else params[number]},
            "random",
            None,
            None,
            1.0,
            "",
        )
        for number, (value, iterations) in enumerate(came_to)
    ]


def test_one_value_of_many_params_is_remarkable():
    assert all_alike(rows(*[(0.5, 1)] * FEWEST))
    assert not all_alike(rows(*[(0.5, 1)] * (FEWEST - 1)))
    assert not all_alike(rows(*[(0.5, 1)] * FEWEST, (0.5000000001, 1)))


def test_runs_of_the_same_params_are_to_be_alike():
    assert not all_alike(rows(*[(0.5, 1)] * 5, params=[{"a": 1, "b": 2}, {"b": 2, "a": 1}, 1, 2, 3]))
    assert all_alike(rows(*[(0.5, 1)] * 9, params=[0, 0, 1, 1, 2, 2, 3, 3, 4]))


def test_trials_are_compared_with_those_that_ran_as_long():
    rungs = [*[(0.5, 1)] * 6, *[(0.4, 3)] * 2, (0.3, 9)]
    assert all_alike(rows(*rungs))
    assert not all_alike(rows(*rungs, (0.41, 3)))
    assert not all_alike(rows(*((1 / length, length) for length in range(1, 20))))


def warned(directory: Path, loss: Callable[[dict[str, Any], int], float], **changes: Any) -> list[str]:
    """Search a grid of two parameters; return what is warned of, and see that it is warned of as by the caller."""

    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            trial.report({"loss": loss(trial.params, iteration), "seed": trial.seed})

    given: dict[str, Any] = {"lr": [0.1, 0.2, 0.3], "dropout": [0.0, 0.5], "depth": 3, **changes.pop("more", {})}
    given = {"parameters": given, "metric": "loss", "method": "grid", "max_iter": 2, **changes}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hpsearch.search(train, directory=directory, backend="inline", progress=False, observers=[], **merged(given))
    ours = [one for one in caught if issubclass(one.category, hpsearch.HpsearchWarning)]
    assert {one.filename for one in ours} <= {__file__}
    return [str(one.message) for one in ours]


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [
        (lambda params, at: params["lr"] / at, ["dropout"]),
        (lambda params, at: params["dropout"] / at, ["lr"]),
        (lambda params, at: params["lr"] + params["dropout"], []),
        (lambda params, at: params["lr"] + (1e-15 if params["dropout"] and params["lr"] == 0.3 else 0), []),
        # Equal values at the end, after different ones.
        (lambda params, at: params["lr"] + params["dropout"] * (at == 1), []),
    ],
)
def test_a_parameter_of_several_that_is_ignored_is_named(tmp_path, loss, ignored):
    told = [
        f"{name} changed nothing: trials that differ in {name} alone reported the same loss, to the last digit: does "
        "the training get it?"
        for name in ignored
    ]
    assert warned(tmp_path / "study", loss) == told


def test_it_is_the_training_that_ignores_a_parameter(tmp_path):
    """What follows from a parameter goes with it, and copies of a trial say nothing."""
    more = {"twice": hpsearch.Derived("dropout * 2"), "parallel": {"bucket_mb": [1, 2]}}
    told = warned(tmp_path / "study", lambda params, at: params["lr"], more=more)
    assert [one.partition(" ")[0] for one in told] == ["dropout"]
    points = [{"lr": lr, "dropout": 0.5} for lr in (0.1, 0.2, 0.3)] * 2
    copies = {"method": "random", "run_cap": 6, "points_to_try": points}
    assert warned(tmp_path / "copies", lambda params, at: params["lr"], **copies) == []


def test_few_trials_are_no_evidence(tmp_path):
    assert warned(tmp_path / "study", lambda params, at: params["lr"], more={"lr": [0.1, 0.2]}) == []


def test_a_search_whose_params_make_no_difference_says_so(tmp_path):
    told = ["the params made no difference to loss: does the training get them?"]
    assert warned(tmp_path / "study", lambda params, at: 1 / at) == told


def test_a_search_without_values_says_so(tmp_path):
    def fail(params: dict[str, Any], at: int) -> float:
        raise RuntimeError("bug in user's code")

    told = [f"{tmp_path / 'failed'}: no trial has a value (6 failed); trial 0: RuntimeError: bug in user's code"]
    assert warned(tmp_path / "failed", fail, limits={"max_failures": "none"}) == told
    told = [f"{tmp_path / 'nan'}: no trial has a value (6 complete); 6 reported NaN"]
    assert warned(tmp_path / "nan", lambda params, at: math.nan) == told
