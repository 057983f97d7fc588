"""What a plan says of lanes, word by word."""

from __future__ import annotations

from typing import Any

import pytest

from hpsearch.run.plan import Plan, lanes_lines, lanes_makespan, make_plan
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.sweep.parts import Resources
from hpsearch.worker.shapes import Shapes
from tests.hpsearch.support.scripted import sweep_of


@pytest.mark.parametrize(
    ("shapes", "lines"),
    [
        (
            Shapes(49, [49], tried={2: 0.9, 16: 0.414}),
            [
                "lanes        up to 16 trials per worker; the first 49 trials have 1 shape",
                "             16 of them, tried here for two batches, take about 0.4 of the time of each alone",
            ],
        ),
        (
            Shapes(
                24,
                [5, 2, 1],
                {"it runs": 12, "reads": 1, "a": 1, "b": 1},
                {"ValueError: no": 1},
                tried={2: 1.4, 5: 1.3},
            ),
            [
                "lanes        up to 16 trials per worker; the first 24 trials have 3 shapes, the largest 5 trials",
                "             5 of one shape, tried here for two batches, take longer than each alone, and so aren't "
                "fused",
                "             12 train alone: it runs",
                "             1 trains alone: reads",
                "             1 trains alone: a",
                "             1 trains alone, for 1 other reason",
                "             1 can't be built: ValueError: no",
            ],
        ),
        (
            Shapes(2, alone={"it runs on cuda": 2}),
            ["lanes        up to 16 trials per worker", "             2 train alone: it runs on cuda"],
        ),
        (
            Shapes(why_none="a script has a process of its own"),
            [
                "lanes        none, though up to 16 trials per worker are asked for: a script has a process of its own",
            ],
        ),
    ],
)
def test_lines(shapes, lines):
    assert lanes_lines(16, shapes) == lines


def plan_of(**changes: Any) -> Plan:
    return make_plan(sweep_of(resources=Resources(trials_per_worker=16), **changes), 2)


def test_the_makespan_follows_from_what_lanes_took():
    plan = plan_of(early_terminate=None, max_iter=10, run_cap=32)
    assert plan.makespan == 160
    # A round of n lanes takes 1 + 0.1 n of the time of one alone, and each worker has ten rounds of sixteen.
    shapes = Shapes(32, [32], tried={n: 1 / n + 0.1 for n in (2, 3, 16)})
    assert lanes_makespan(plan, shapes) == pytest.approx(10 * (1 + 1.6))
    halving = plan_of(early_terminate=SuccessiveHalving(81, min_iter=1, eta=3, trials=81))
    assert lanes_makespan(halving, shapes) == pytest.approx(81 + 0.1 * max(halving.iterations / 2, 81))


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({}, Shapes(32, [31, 1], tried={2: 0.6, 3: 0.5, 16: 0.2})),
        ({}, Shapes(32, [31], alone={"it reads": 1}, tried={2: 0.6, 3: 0.5, 16: 0.2})),
        ({}, Shapes(32, [32])),
        ({}, Shapes(32, [32], tried={2: 0.6})),
        ({}, Shapes(32, [32], tried={2: 2.6, 3: 2.5, 16: 2.2})),
        ({}, Shapes(why_none="a script has a process of its own")),
        ({"max_iter": None}, Shapes(32, [32], tried={2: 0.6, 3: 0.5, 16: 0.2})),
    ],
    ids=["shapes", "some alone", "nothing tried", "one number tried", "no gain", "no lanes", "no last iteration"],
)
def test_it_isnt_said_where_it_isnt_known_or_no_less(changes, shapes):
    given: dict[str, Any] = {"early_terminate": None, "max_iter": 10, "run_cap": 32} | changes
    assert lanes_makespan(plan_of(**given), shapes) is None
