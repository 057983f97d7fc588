from __future__ import annotations

import math

import pytest

from hpsearch.objective import Metric
from hpsearch.run.verdicts import diverged
from hpsearch.trial import Goal

MINIMIZE, MAXIMIZE = (Metric("loss"),), (Metric("loss", "maximize"),)


def told(value: float | None) -> dict[str, float]:
    return {} if value is None else {"loss": value}


@pytest.mark.parametrize("tolerance", [None, 0.0, 10.0])
def test_nan_is_divergence_whatever_the_tolerance(tolerance):
    assert diverged(told(math.nan), told(0.5), MINIMIZE, tolerance) == "loss NaN after 0.5"
    assert diverged(told(math.nan), told(None), MAXIMIZE, tolerance) == "loss NaN"
    assert diverged(told(math.nan), told(math.nan), MAXIMIZE, tolerance) == "loss NaN"


def test_without_a_tolerance_a_worse_value_is_none():
    assert diverged(told(1e9), told(0.5), MINIMIZE, None) is None
    assert diverged(told(math.inf), told(0.5), MINIMIZE, None) is None


def test_without_values_there_is_nothing_to_compare():
    assert diverged(told(None), told(0.5), MINIMIZE, 0.1) is None
    assert diverged(told(0.5), told(None), MINIMIZE, 0.1) is None
    assert diverged(told(0.5), told(math.nan), MINIMIZE, 0.1) is None


@pytest.mark.parametrize(
    ("value", "before", "goal", "bad"),
    [
        (1.0, 1.0, "minimize", False),
        (1.09, 1.0, "minimize", False),
        (1.11, 1.0, "minimize", True),
        (0.1, 1.0, "minimize", False),
        (0.91, 1.0, "maximize", False),
        (0.89, 1.0, "maximize", True),
        (9.0, 1.0, "maximize", False),
        (-0.91, -1.0, "minimize", False),
        (-0.89, -1.0, "minimize", True),
        (-1.11, -1.0, "maximize", True),
        (math.inf, 1.0, "minimize", True),
        (-math.inf, 1.0, "maximize", True),
        (-math.inf, 1.0, "minimize", False),
        (math.inf, math.inf, "minimize", False),
        (-math.inf, -math.inf, "maximize", False),
    ],
)
def test_worse_by_more_than_the_tolerance_is_divergence(value: float, before: float, goal: Goal, bad: bool):
    assert (diverged(told(value), told(before), (Metric("loss", goal),), 0.1) is not None) == bad


def test_the_reason_says_both_values_and_the_tolerance():
    reason = diverged(told(1.5), told(1.0), MINIMIZE, 0.1)
    assert reason == "loss 1.5 after 1, worse by more than the 10% of scaling.tolerance"
