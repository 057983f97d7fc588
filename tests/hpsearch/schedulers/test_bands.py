"""W&B's Hyperband stops whom W&B's rule stops, while trials run; a replay of what happened decides the same."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.bands import Bands
from hpsearch.schedulers.base import NewTrial, Outcome, Scheduler
from hpsearch.trial import Report


def scheduler_of(early: Bands, goal: str = "minimize", run_cap: int | None = 20) -> Scheduler:
    return early.scheduler(Objective(Metric("loss", goal)), run_cap)  # type: ignore[arg-type]


def report(trial: int, iteration: int, value: float) -> Report:
    return Report(trial, iteration, {"loss": value}, 1.0)


def wandbs_rule(histories: dict[int, list[float]], bands: list[int], eta: float, strict: bool, trial: int) -> bool:
    """Say what `hyperband_stop_runs` of W&B's package `sweeps` says, by its words."""
    history = histories[trial]
    reached = [band for band in bands if band <= len(history)]
    if not reached:
        return False
    band = reached[-1]
    values = sorted(known[band - 1] for known in histories.values() if len(known) >= band)
    threshold = values[int(1.0 / eta * len(values))]
    return (history[band - 1] if strict else min(history)) > threshold


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 3),
    st.sampled_from([1.5, 2.0, 3.0]),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=60),
)
def test_each_report_is_judged_as_wandb_judges_it(min_iter, eta, strict, maximize, reports):
    early = Bands(min_iter=min_iter, eta=eta, strict=strict)
    scheduler = scheduler_of(early, "maximize" if maximize else "minimize")
    for _ in range(5):
        assert isinstance(scheduler.next(), NewTrial)
    histories: dict[int, list[float]] = {}
    for trial, value in reports:
        history = histories.setdefault(trial, [])
        history.append(float(value))
        told = scheduler.watch(report(trial, len(history), -value if maximize else value))
        assert (told is not None) == wandbs_rule(histories, list(early.ends), eta, strict, trial)


@pytest.mark.parametrize(
    ("early", "first"),
    [
        (Bands(min_iter=3), (3, 9, 27)),
        (Bands(min_iter=5, eta=2), (5, 10, 20)),
        (Bands(last_iter=27, bands=2), (3, 9)),
        (Bands(last_iter=15, bands=2), (1, 5)),
        (Bands(last_iter=27), (1, 3, 9)),
    ],
)
def test_bands_stand_where_wandb_puts_them(early, first):
    assert early.ends[:3] == first


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({}, "min_iter"),
        ({"min_iter": 1, "last_iter": 9}, "min_iter"),
        ({"min_iter": 1, "eta": 1}, "eta"),
        ({"min_iter": 1, "bands": 2}, "bands"),
        ({"last_iter": 2}, "last_iter"),
    ],
)
def test_bands_that_mean_nothing_are_refused(keys, key):
    with pytest.raises(InvalidKey) as error:
        Bands(**keys)
    assert error.value.key == (key,)


def test_nan_is_in_no_band_and_stops_nobody():
    scheduler = scheduler_of(Bands(min_iter=1))
    for _ in range(3):
        scheduler.next()
    assert scheduler.watch(report(0, 1, math.nan)) is None
    assert scheduler.watch(report(1, 1, 5.0)) is None
    assert scheduler.watch(report(2, 1, 6.0)) is not None


def test_an_attempt_that_begins_anew_counts_once():
    scheduler = scheduler_of(Bands(min_iter=2, strict=True))
    for _ in range(2):
        scheduler.next()
    for value in (1.0, 1.0):
        scheduler.watch(report(0, int(value), value))
    scheduler.watch(report(0, 1, 9.0))  # its worker was lost: what it had at the band counts no more
    scheduler.watch(report(1, 1, 9.0))
    assert scheduler.watch(report(1, 2, 9.0)) is None


def test_what_a_lost_attempt_had_at_its_best_counts_no_more():
    scheduler = scheduler_of(Bands(min_iter=3))
    for _ in range(2):
        scheduler.next()
    scheduler.watch(report(0, 3, 1.0))
    for iteration, value in enumerate((9.0, 8.0, 7.0, 0.0), start=1):
        scheduler.watch(report(1, iteration, value))
    assert scheduler.watch(report(1, 3, 7.0)) is not None  # its worker was lost, and it goes on after iteration 2


def test_what_was_stopped_is_stopped_by_its_outcome_alone():
    scheduler = scheduler_of(Bands(min_iter=1))
    scheduler.next()
    (decision,) = scheduler.observe(Outcome(0, 1, 3.0, (report(0, 1, 3.0),), stopped="behind"))
    assert (decision.action, decision.reason) == ("stop", "behind")
