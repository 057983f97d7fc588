"""A scalar that stays until it changes, as lines through its points show it."""

from __future__ import annotations

import math
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpsearch.observers.tensorboard.event_file import EventFiles
from hpsearch.observers.tensorboard.study_runs import StepScalar

PUTS = st.lists(st.tuples(st.integers(-1, 3), st.sampled_from([0.0, 1.0, 2.0, math.nan]), st.booleans()), min_size=1)


def written(folder: Path, puts: list[tuple[int, float, bool]]) -> dict[int, float]:
    """Put values at steps that change by so much, and flush after some; return what counts: of each step the last."""
    files = EventFiles(folder)
    files.create("run", 0.0)
    steps, at = StepScalar(files, "run", "tag"), 0
    for further, value, flushes in puts:
        at = max(at + further, 0)
        steps.put(1.0, at, value)
        if flushes:
            steps.flush()
    steps.flush()
    files.flush()
    return {event.step: event.value for event in EventAccumulator(str(folder / "run")).Reload().Scalars("tag")}


@given(PUTS)
def test_lines_through_the_points_show_what_was_put_at_every_step(tmp_path_factory, puts):
    points = written(tmp_path_factory.mktemp("steps"), puts)
    put: dict[int, float] = {}
    at = end = 0
    for further, value, _ in puts:
        at = max(at + further, 0)
        end = max(at, end)  # it never goes back
        put[end] = value
    known, drawn = sorted(put), sorted(points)
    assert (drawn[0], drawn[-1]) == (known[0], known[-1])
    for step in range(known[0], known[-1] + 1):
        wanted = put[known[bisect_right(known, step) - 1]]
        place = bisect_right(drawn, step) - 1
        left = points[drawn[place]]
        right = left if drawn[place] == step else points[drawn[place + 1]]
        assert repr((left, right)) == repr((wanted, wanted))


@pytest.mark.parametrize(("puts", "most"), [([(1, 5.0, False)] * 1000, 3), ([(0, 5.0, True)] * 1000, 1)])
def test_what_stays_takes_no_points(tmp_path, puts, most):
    assert len(written(tmp_path, puts)) == most
