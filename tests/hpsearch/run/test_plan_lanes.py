"""What a plan says of lanes, word by word."""

from __future__ import annotations

import pytest

from hpsearch.run.plan import lanes_lines
from hpsearch.worker.shapes import Shapes


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
