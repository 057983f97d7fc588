"""Whether it is told that params made no difference."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.report.alike import FEWEST, all_alike
from hpsearch.trial import TrialRow, TrialState


def rows(*came_to: tuple[float, int], params: Sequence[object] | None = None) -> list[TrialRow]:
    """Give trials by (value, iterations), each of params of its own."""
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
