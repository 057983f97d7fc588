"""What a gang costs: a wide segment that does nothing, against a narrow one, from `start` to its result."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from hpsearch.backends.ray.backend import RayBackend
from hpsearch.backends.ray.session import shut_down
from hpsearch.sweep.parts import Resources
from tests.benchmarks.figures import Figure
from tests.hpsearch.support.driver import Driver

WIDTHS = (1, 2, 4)

_TURNS = 10
"""Segments of each width in a round."""


def measure(rounds: int) -> list[Figure]:
    """Run segments of all widths in turns, so that load hits all of them; the workers are warm."""
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(
            RayBackend(Resources(workers=max(WIDTHS))), Path(folder) / "gangs", "reports_once", widest=max(WIDTHS)
        )
        driver.wait_for(lambda: driver.backend.capacity() == max(WIDTHS))
        number = 0
        for _ in range(rounds * _TURNS):
            for width in WIDTHS:
                began = time.perf_counter()
                driver.start(number, {}, width=width)
                driver.outcome(number)
                times[width].append(1e3 * (time.perf_counter() - began))
                number += 1
        driver.backend.close(kill=True)
    shut_down()
    figures = [Figure("a no-op segment on 1 worker", "ms", times[1], "")]
    for width in WIDTHS[1:]:
        beyond = [wide - narrow for wide, narrow in zip(times[width], times[1], strict=True)]
        figures.append(Figure(f"... on {width} workers, beyond that", "ms", beyond, "below 50"))
    return figures
