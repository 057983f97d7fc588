"""Widths of segments: no worker idle that could help, none given away while a trial waits, trials of a rung alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.widths.allocator import Demand, allocate
from hpsearch.widths.speedup import Overhead, Speedup


def ideal(width: int) -> float:
    return 1 / width


def with_efficiency(efficiency: float) -> Callable[[int], float]:
    """Each doubling of the width has this efficiency."""
    return lambda width: float(1 / (width * efficiency ** math.log2(width)))


def makespan(rungs: list[tuple[int, int]], workers: int, most: int, time: Callable[[int], float]) -> float:
    """Return the time of one bracket with rungs of (trials, iterations), in units of an iteration on one worker."""
    total = 0.0
    for number, (trials, iterations) in enumerate(rungs):
        demands = [Demand(number, float(iterations))] * trials
        while demands:
            widths = allocate(workers, demands, 1, most, time)
            total += iterations * max(map(time, widths))
            demands = demands[len(widths) :]
    return total


def halving(largest: int) -> list[tuple[int, int]]:
    """Return the rungs of a bracket with eta 3: as many trials as the largest budget, from one iteration up."""
    rungs, trials, done = [], largest, 0
    while trials:
        until = largest // trials
        rungs.append((trials, until - done))
        trials, done = trials // 3, until
    return rungs


def test_a_bracket_of_27_on_27_workers_is_six_times_shorter():
    time = with_efficiency(0.9)
    assert halving(27) == [(27, 1), (9, 2), (3, 6), (1, 18)]
    assert makespan(halving(27), 27, 1, time) == 27
    assert makespan(halving(27), 27, 27, time) == pytest.approx(3.8, abs=0.05)


def test_a_bracket_of_81_on_81_workers_is_13_times_shorter():
    time = with_efficiency(0.9)
    assert makespan(halving(81), 81, 1, time) == 81
    assert makespan(halving(81), 81, 81, time) == pytest.approx(5.1, abs=0.05)


def test_a_bracket_on_two_workers():
    """Of 54 iterations' time on two workers each with a trial of its own, 40.5 are left where all work divides."""
    assert makespan(halving(27), 2, 1, ideal) == 54
    assert makespan(halving(27), 2, 2, ideal) == pytest.approx(40.5)


def test_trials_come_before_width():
    assert allocate(4, [Demand(0, 1.0)] * 4, 1, 4, ideal) == [1, 1, 1, 1]
    assert allocate(4, [Demand(0, 1.0)] * 9, 1, 4, ideal) == [1, 1, 1, 1]
    assert allocate(8, [Demand(0, 1.0)] * 4, 1, 4, ideal) == [2, 2, 2, 2]
    assert allocate(0, [Demand(0, 1.0)], 1, 4, ideal) == []


def test_what_does_not_divide_is_left_idle():
    assert allocate(11, [Demand(0, 1.0)] * 4, 1, 4, ideal) == [2, 2, 2, 2]


def test_the_rung_that_ends_last_is_widened_first():
    short, long = Demand("short", 1.0), Demand("long", 9.0)
    assert allocate(5, [short, short, long], 1, 9, ideal) == [1, 1, 3]
    assert allocate(12, [short, short, long], 1, 9, ideal) == [1, 1, 9]


def test_bounds_hold():
    assert allocate(16, [Demand(0, 1.0)], 1, 1, ideal) == [1]
    assert allocate(16, [Demand(0, 1.0)], 1, 6, ideal) == [6]
    assert allocate(16, [Demand(0, 1.0)] * 3, 4, 4, ideal) == [4, 4, 4]
    assert allocate(7, [Demand(0, 1.0)] * 3, 4, 4, ideal) == [4]


def test_nothing_is_widened_that_would_not_end_sooner():
    assert allocate(8, [Demand(0, 1.0)], 1, 8, lambda width: 1.0) == [1]
    assert allocate(8, [Demand(0, 1.0)], 1, 8, lambda width: 1.0 if width == 1 else 0.97) == [1]


def test_a_width_that_does_not_help_is_stepped_over():
    times = {1: 1.0, 2: 1.1, 3: 1.0, 4: 0.5}
    assert allocate(4, [Demand(0, 1.0)], 1, 4, times.__getitem__) == [4]
    assert allocate(3, [Demand(0, 1.0)], 1, 4, times.__getitem__) == [1]


def test_a_trial_may_have_a_bound_of_its_own():
    assert allocate(9, [Demand("capped", 1.0, most=1), Demand(0, 1.0), Demand(0, 1.0)], 1, 9, ideal) == [1, 4, 4]


def test_what_takes_no_time_is_not_widened():
    assert allocate(9, [Demand("known", 1.0), Demand("unknown", 0.0)], 1, 9, ideal) == [8, 1]


def test_what_runs_keeps_its_workers_and_shares_in_the_free_ones():
    running = Demand(0, 1.0, owned=3)
    assert allocate(0, [running, running], 1, 9, ideal) == [3, 3]
    assert allocate(2, [running, running], 1, 9, ideal) == [4, 4]
    assert allocate(4, [Demand(0, 1.0), running], 1, 9, ideal) == [3, 3]
    assert allocate(5, [Demand(0, 1.0), running], 1, 9, ideal) == [4, 4]
    assert allocate(2, [Demand(0, 1.0), running], 1, 9, ideal) == [2, 3]
    assert allocate(4, [Demand(0, 9.0, owned=5), Demand(0, 9.0, owned=2)], 1, 9, ideal) == [5, 5]


def test_wide_segments_must_make_up_for_what_else_they_take():
    assert allocate(4, [Demand(0, 1.0)], 1, 4, ideal, extra=0.65) == [4]
    assert allocate(3, [Demand(0, 1.0)], 1, 4, ideal, extra=0.65) == [1]
    assert allocate(4, [Demand(0, 1.0)], 2, 4, ideal, extra=0.65) == [2]
    assert allocate(4, [Demand("short", 1.0), Demand("long", 9.0)], 1, 4, ideal, extra=1.5) == [1, 3]


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 100)), max_size=20),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 100), st.integers(1, 9)), max_size=20),
    st.integers(1, 4),
    st.integers(0, 8),
    st.floats(0.0, 1.5),
    st.sampled_from([0.0, 1.0]),
)
def test_what_always_holds_beside_others_that_run(free, pairs, held, least, extra, share, overhead):
    starts = [Demand(rung, seconds) for rung, seconds in pairs][: free // least]
    running = [Demand(rung, seconds, owned=max(width, least)) for rung, seconds, width in held]
    most = least + extra + 9
    widths = allocate(free, [*starts, *running], least, most, lambda width: share + (1 - share) / width, overhead)
    assert len(widths) == len(starts) + len(running)
    assert sum(widths) - sum(demand.owned for demand in running) <= free
    assert all(
        max(demand.owned, least) <= width <= most for demand, width in zip([*starts, *running], widths, strict=True)
    )
    for rung in range(4):
        alike = {width for demand, width in zip(starts, widths, strict=False) if demand.rung == rung}
        assert len(alike) <= 1


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 100)), max_size=20),
    st.integers(1, 4),
    st.integers(0, 8),
    st.floats(0.0, 1.5),
)
def test_what_always_holds(free, pairs, least, extra, share):
    demands = [Demand(rung, seconds) for rung, seconds in pairs]
    most = least + extra
    widths = allocate(free, demands, least, most, lambda width: share + (1 - share) / width)
    assert len(widths) == min(len(demands), free // least)
    assert sum(widths) <= free
    assert all(least <= width <= most for width in widths)
    of_rung: dict[object, set[int]] = {}
    for demand, width in zip(demands, widths, strict=False):
        of_rung.setdefault(demand.rung, set()).add(width)
    assert all(len(found) == 1 for found in of_rung.values())
    if share >= 1:
        assert set(widths) <= {least}


def test_before_anything_is_known_work_is_taken_to_divide():
    assert Speedup().relative_time(4) == pytest.approx(0.25)


def test_the_share_that_can_not_be_divided_is_found_again():
    speedup = Speedup()
    for trial, seconds in enumerate((0.5, 2.0, 8.0)):
        for width in (1, 2, 4):
            speedup.observe(trial, width, seconds * (0.2 + 0.8 / width))
    assert speedup.serial_fraction == pytest.approx(0.2)
    assert speedup.relative_time(8) == pytest.approx(0.3)


def test_trials_are_compared_with_themselves_only():
    speedup = Speedup()
    speedup.observe(0, 1, 1.0)
    speedup.observe(1, 4, 50.0)
    assert speedup.serial_fraction == 0.0


def test_an_outlier_among_the_times_does_not_count():
    speedup = Speedup()
    for seconds in (1.0, 1.0, 9.0, 1.0):
        speedup.observe(0, 1, seconds)
    for seconds in (0.6, 7.0, 0.6):
        speedup.observe(0, 2, seconds)
    assert speedup.serial_fraction == pytest.approx(0.2)


@pytest.mark.parametrize("seconds", [1.0, 1.3, 5.0])
def test_a_width_that_takes_as_long_or_longer_never_pays(seconds):
    speedup = Speedup()
    speedup.observe(0, 1, 1.0)
    speedup.observe(0, 2, seconds)
    assert allocate(8, [Demand(0, 1.0)], 1, 8, speedup.relative_time) == [1]


@given(st.floats(0.0, 1.4), st.integers(1, 8), st.integers(1, 8), st.floats(0.001, 100))
def test_any_two_widths_give_the_share(share, one, other, seconds):
    if one == other:
        return
    speedup = Speedup()
    for width in (one, other):
        speedup.observe(0, width, seconds * (share + (1 - share) / width))
    assert speedup.serial_fraction == pytest.approx(share, abs=1e-6)


def test_first_iterations_are_compared_with_first_ones_only():
    speedup = Speedup()
    for width, first in ((1, 3.0), (2, 2.6)):
        speedup.observe(0, width, first, first=True)
    assert speedup.serial_fraction == pytest.approx(2 * 2.6 / 3 - 1)
    for width in (1, 2):
        for _ in range(3):
            speedup.observe(0, width, 0.2 + 0.8 / width)
    assert speedup.serial_fraction == pytest.approx(0.2)
    assert speedup.seconds(0) == pytest.approx(1.0)


def test_a_trial_that_has_not_run_is_taken_to_be_like_others():
    speedup = Speedup()
    assert speedup.seconds(7) == 1.0
    speedup.observe(0, 2, 3.0)
    assert speedup.seconds(7) == speedup.seconds(0) == 6.0
    speedup.forget(0)
    assert speedup.seconds(0) == 6.0


def test_overhead_is_the_guess_until_it_is_measured():
    overhead = Overhead(0.5)
    assert (overhead.segment, overhead.extra) == (0.5, 0.0)
    for seconds in (9.0, 2.0, 2.0):
        overhead.observe(wide=False, seconds=seconds)
    assert (overhead.segment, overhead.extra) == (2.0, 0.0)
    overhead.observe(wide=True, seconds=5.0)
    assert (overhead.segment, overhead.extra) == (5.0, 3.0)
    for _ in range(20):
        overhead.observe(wide=True, seconds=-1e-9)
    assert (overhead.segment, overhead.extra) == (0.0, 0.0)
