"""From a sweep to its scheduler."""

from __future__ import annotations

import pytest

from hpsearch.decision import Decision
from hpsearch.schedulers.base import NewTrial, Outcome
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.schedulers.full import FullLength
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.space import Declared, Space, Uniform
from hpsearch.study.build import build_scheduler
from hpsearch.sweep.parts import Metric
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Goal


def sweep(
    early_terminate: EarlyTerminate | None = None,
    goal: Goal = "maximize",
    max_iter: int | None = None,
    run_cap: int | None = None,
) -> Sweep:
    return Sweep(
        name="s",
        trainable="package.module:train",
        metric=Metric("score", goal),
        method="random",
        parameters=Space((Declared(("x",), Uniform(0.0, 1.0)),)),
        early_terminate=early_terminate,
        max_iter=max_iter,
        run_cap=run_cap,
    )


def test_nothing_terminates_early_without_early_terminate():
    scheduler = build_scheduler(sweep(max_iter=10, run_cap=7))
    assert isinstance(scheduler, FullLength)
    assert scheduler.total() == (7, 70)
    assert build_scheduler(sweep(run_cap=7)).next() == NewTrial(0, None)


@pytest.mark.parametrize(
    ("early", "run_cap", "total"),
    [
        (Hyperband(max_iter=27, eta=3), None, (49, 357)),
        (Hyperband(max_iter=81, eta=3), None, (143, 1581)),
        (Hyperband(max_iter=81, eta=3, variant="table"), None, (128, 1404)),
        (Hyperband(max_iter=81, min_iter=27, eta=3), None, (3 + 2, 3 * 27 + 54 + 2 * 81)),
        (Hyperband(max_iter=27, eta=3, brackets=8), None, (98, 714)),
        (Hyperband(max_iter=27, eta=3), 490, (490, 3570)),
        (Hyperband(max_iter=5, eta=3), None, (9 + 5 + 3, 9 + 3 * 2 + 2 + 5 * 3 + 2 + 3 * 5)),
        (Hyperband(max_iter=5, eta=3, rungs="paper"), None, (3 + 2, 3 + 4 + 2 * 5)),
        (SuccessiveHalving(max_iter=81, eta=3), None, (27, 27 * 3 + 9 * 6 + 3 * 18 + 54)),
        (SuccessiveHalving(max_iter=9, eta=3), None, (9, 21)),
        (SuccessiveHalving(max_iter=9, min_iter=3, eta=3), None, (3, 15)),
        (SuccessiveHalving(max_iter=9, eta=3, trials=12), None, (12, 12 + 4 * 2 + 6)),
        (SuccessiveHalving(max_iter=9, eta=3), 14, (14, 21 + 5 + 2)),
    ],
)
def test_the_numbers_of_early_terminate_reach_the_brackets(early, run_cap, total):
    assert build_scheduler(sweep(early, run_cap=run_cap)).total() == total


@pytest.mark.parametrize(("goal", "best"), [("maximize", 1), ("minimize", 0)])
def test_the_goal_reaches_the_ranking(goal, best):
    scheduler = build_scheduler(sweep(SuccessiveHalving(max_iter=2, eta=2), goal))
    scheduler.next()
    scheduler.next()
    scheduler.observe(Outcome(0, 1, 0.1))
    first, *_ = scheduler.observe(Outcome(1, 1, 0.2))
    assert first == Decision(best, "promote", "rung 0: 1st of 2, top 1 goes on")
