"""Widths by themselves: what they make of free workers, of times and of trials that wait."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.events import Ended, Failed, Lost, Opened, Reverted
from hpsearch.trial import Failure
from tests.hpsearch.support.width_pool import Pool

FAILURE = Failure("raised", "ValueError: no", "")


def divided(share: float) -> Callable[[int], float]:
    """Return the seconds of an iteration as a function of the width, if this share can't be parallelized."""
    return lambda width: 8.0 * (share + (1 - share) / width)


def learned(workers: int, share: float, **given: object) -> Pool:
    """Return a pool that has measured one trial on 1 worker and on 2; its overhead is that of restarts."""
    pool = Pool(workers, **given)  # type: ignore[arg-type]
    pool.widths._most = 2  # the probe
    pool.start(99, waiting=1)
    pool.run(99, 3, divided(share))
    pool.finish(99, cut=True, seconds=3 * divided(share)(1))
    pool.start(99)
    pool.run(99, 3, divided(share))
    pool.finish(99, seconds=3 * divided(share)(2), decisions=[Decision(99, "complete", "done")])
    pool.widths._most = pool.most
    return pool


def test_a_sweep_whose_trials_may_not_widen_gets_the_least_and_no_reason():
    for resources in ({"max_workers_per_trial": None}, {"elastic": False}, {"max_workers_per_trial": 1}):
        pool = Pool(8, **resources)
        assert pool.start(0, 1) == [1, 1]
        assert set(pool.reasons.values()) == {""}
        pool.run(0, 1)
        pool.save(0)
        assert pool.cut() == []


def test_free_workers_go_to_those_that_start_where_nothing_waits():
    assert Pool(27).start(*range(9)) == [3] * 9
    assert Pool(27).start(*range(9), waiting=1) == [1] * 9
    assert Pool(27, max_workers_per_trial=2).start(*range(9)) == [2] * 9
    assert Pool(29).start(*range(9)) == [3] * 9
    assert Pool(12, workers_per_trial=2).start(0, 1, 2) == [4, 4, 4]
    assert Pool(5, workers_per_trial=2).start(0, 1) == [2, 2]


def test_reasons_say_why():
    pool = Pool(8)
    pool.start(0, 1)
    assert (
        pool.reasons[0]
        == "nothing else can start; a probe: nothing is measured yet, at best 0.25 of the time on 1 worker"
    )
    pool = learned(8, 0.2)
    pool.start(0, 1)
    assert pool.reasons[0] == "nothing else can start; predicted 0.40 of the time on 1 worker"
    pool = Pool(3)
    pool.start(0, 1, waiting=4)
    assert pool.reasons[0] == "other trials wait for workers"
    pool.capped[2] = 1
    pool.start(2)
    assert pool.reasons[2] == "it went wrong on more workers"
    pool = Pool(3)
    pool.start(0, 1)
    assert pool.reasons[0] == "its rung would not end sooner with the 1 worker that is left"
    pool = Pool(1, max_workers_per_trial=4)
    pool.start(0)
    assert pool.reasons[0] == "no more are free"


def test_a_trial_that_went_wrong_on_more_is_capped_and_the_others_are_not():
    pool = Pool(9)
    pool.capped[0] = 2
    assert pool.start(0, 1, 2) == [2, 3, 3]


def test_trials_of_two_brackets_need_not_be_alike():
    """Two of them end last, and there are workers to widen them; there are too few for all five."""
    pool = Pool(8)
    pool.brackets |= {3: 1, 4: 1}
    pool.reached |= {0: 6, 1: 6, 2: 6}
    assert pool.start(0, 1, 2, 3, 4) == [1, 1, 1, 2, 2]


def test_a_wide_segment_gives_workers_to_those_that_wait_and_is_cut_once():
    pool = Pool(8)
    assert pool.start(0) == [8]
    pool.run(0, 1)
    assert pool.cut(waiting=3) == []  # whether it saves checkpoints isn't known yet
    pool.save(0)
    assert pool.cut(waiting=3) == [0]
    assert pool.cut(waiting=3) == []
    pool.run(0, 1)
    pool.finish(0, cut=True)
    widths = pool.start(0, 1, 2, 3)
    assert sum(widths) <= 8
    assert min(widths) >= 1


def test_no_more_rungs_are_disturbed_than_those_that_wait_need():
    pool = Pool(16)
    pool.brackets |= {1: 1}
    pool.reached[1] = 6
    assert pool.start(0, 1) == [12, 4]
    pool.run(0, 1)
    pool.run(1, 1)
    pool.save(0)
    assert pool.cut(waiting=1) == [1]
    assert pool.cut(waiting=1) == []


def test_all_of_a_rung_are_narrowed_alike():
    pool = Pool(16)
    assert pool.start(0, 1, end=20) == [8, 8]
    for trial in (0, 1):
        pool.run(trial, 1)
        pool.save(trial)
    assert pool.cut(waiting=1) == [0, 1]


def test_nothing_is_cut_that_saves_no_checkpoints():
    pool = Pool(8)
    pool.start(0, 1, end=9, waiting=1)
    pool.reached[1] = 9
    pool.finish(1, checkpoint=None)
    pool.run(0, 1)
    assert pool.cut() == []


def test_nothing_is_cut_that_is_as_good_as_done():
    pool = Pool(8)
    pool.start(0)
    pool.run(0, 8)
    pool.save(0)
    assert pool.cut(waiting=4) == []
    pool = Pool(8, restart=5.0)
    pool.start(0)
    pool.run(0, 6)
    pool.save(0)
    assert pool.cut(waiting=4) == []  # the two iterations that it could give away take less than to start it again


def test_a_segment_without_a_known_end_is_left_alone():
    pool = Pool(8)
    pool.start(0, end=None)
    pool.run(0, 3)
    pool.save(0)
    assert pool.cut(waiting=4) == []


def test_free_workers_widen_what_runs_if_that_pays():
    pool = Pool(4)
    assert pool.start(0, 1, waiting=2) == [1, 1]
    pool.run(0, 1)
    pool.save(0)
    assert pool.cut(waiting=1) == []
    assert pool.cut() == [0, 1]
    assert pool.cut() == []
    for restart, cuts in ((3.0, [0]), (4.0, [])):  # 7 of 9 iterations are left, of a second each, or half of one
        pool = Pool(2, restart=restart)
        pool.start(0, waiting=1)
        pool.run(0, 1)
        pool.save(0)
        assert pool.cut() == cuts


def test_those_that_come_back_from_a_cut_one_after_the_other_do_not_take_the_others_share():
    pool = Pool(9)
    assert pool.start(0, 1, 2, waiting=1) == [1, 1, 1]
    pool.run(0, 1)
    pool.save(0)
    assert pool.cut() == [0, 1, 2]
    for trial in (2, 0, 1):
        pool.run(trial, 1)
        pool.finish(trial, cut=True)
        assert pool.cut() == []
        assert pool.start(trial) == [3]
        pool.run(trial, 1)
    assert pool.free == 0
    assert pool.cut() == []


def test_what_a_cut_trial_was_promised_goes_to_others_if_they_wait_or_if_workers_go():
    pool = Pool(4)
    pool.start(0, waiting=1)
    pool.run(0, 1)
    pool.save(0)
    assert pool.cut() == [0]
    pool.finish(0, cut=True)
    assert pool.start(0, 1, 2, waiting=3) == [1, 1, 1]
    pool = Pool(4)
    pool.start(0, waiting=1)
    pool.run(0, 1)
    pool.save(0)
    assert pool.cut() == [0]
    pool.finish(0, cut=True)
    pool.free = 2
    assert pool.start(0) == [2]


def test_workers_that_new_trials_took_from_a_promise_are_not_promised_again():
    """Six more are promised to trial 0; two that were promoted find one free worker beside these."""
    pool = Pool(9)
    pool.brackets |= {1: 1, 2: 1, 3: 2, 4: 2}
    pool.start(0, end=20, waiting=1)
    pool.start(1, 2, waiting=1)
    pool.run(0, 1)
    pool.run(1, 8)
    pool.run(2, 8)
    pool.save(0)
    assert pool.cut() == [0]
    pool.finish(1)
    assert pool.start(3, 4) == [1, 1]
    pool.run(3, 1)
    pool.run(4, 1)
    assert pool.cut() == []  # all that is free is promised
    pool.finish(0, cut=True)
    assert pool.start(0, end=20) == [6]
    assert pool.free == 0


def test_a_promise_ends_with_its_segment():
    """Trial 0 is told to end early at its last report: what it gets in its next rung is what its rung gets."""
    pool = Pool(8, max_workers_per_trial=4)
    pool.start(0, waiting=1)
    pool.run(0, 1)
    pool.save(0)
    assert pool.cut() == [0]
    pool.run(0, 8)
    pool.finish(0, cut=True)
    assert pool.start(0, 1, 2, end=27) == [2, 2, 2]


def test_the_rest_is_widened_where_the_rung_that_ends_last_has_too_many_trials():
    pool = Pool(8)
    pool.brackets[9] = 1
    pool.reached[9] = 3
    pool.start(0, 1, 2, 3, 4, 9, waiting=1)
    pool.run(9, 1)
    pool.save(9)
    assert pool.cut() == [9]


def test_nothing_is_widened_where_it_was_measured_not_to_pay():
    assert learned(8, 1.2).start(0, 1) == [1, 1]
    assert learned(8, 0.2).start(0, 1) == [4, 4]


def test_a_segment_that_turns_out_too_wide_is_narrowed_though_nothing_waits():
    pool = Pool(2)
    pool.start(0, waiting=1)
    pool.run(0, 2, 1.0)
    pool.save(0)
    assert pool.cut() == [0]
    pool.finish(0, cut=True)
    assert pool.start(0) == [2]
    pool.run(0, 1, 3.0)
    assert pool.cut() == []  # the first iteration may have been slow for other reasons
    pool.run(0, 1, 3.0)
    assert pool.cut() == [0]
    pool.finish(0, cut=True)
    assert pool.start(0) == [1]
    assert pool.cut() == []


def test_a_slow_first_iteration_says_nothing_about_the_width():
    pool = Pool(2)
    pool.start(0, waiting=1, end=20)
    pool.run(0, 1, 5.0)
    pool.run(0, 4, 1.0)
    pool.save(0)
    assert pool.cut() == [0]
    pool.finish(0, cut=True)
    assert pool.start(0, end=20) == [2]
    pool.run(0, 1, 4.6)
    assert pool.cut() == []
    pool.run(0, 3, 0.6)
    assert pool.cut() == []
    assert pool.widths._speedup.serial_fraction == pytest.approx(0.2)


def test_what_it_takes_to_form_a_gang_counts():
    """Iterations of a millisecond are not worth a gang that takes a second to form; long ones are."""
    for seconds, width in ((0.001, 1), (1.0, 2)):
        pool = Pool(2)
        pool.start(0, waiting=1)
        pool.finish(0, seconds=4 * seconds + 0.1, reports=pool.run(0, 4, seconds), cut=True)
        assert pool.start(0) == [2]
        pool.finish(0, seconds=4 * seconds / 2 + 1.1, reports=pool.run(0, 4, seconds / 2), cut=True)
        assert pool.start(1) == [width]


def test_a_restart_costs_what_segments_were_measured_to_take_beside_their_iterations():
    pool = Pool(4)
    pool.start(0, 1, waiting=1)
    pool.finish(0, seconds=1.0 + 9.0, reports=pool.run(0, 1))
    pool.run(1, 1)
    assert pool.cut() == []  # 7 seconds are left to be shortened
    assert Pool(4).widths._overhead.segment == 0.0


def test_reports_count_once_live_or_not():
    pool = Pool(4)
    pool.start(0, waiting=1)
    reports = pool.run(0, 4)
    pool.finish(0, seconds=5.0, reports=reports)
    assert pool.widths._overhead.segment == 1.0


@pytest.mark.parametrize(
    "event",
    [
        Failed(0, 1, FAILURE, True, ()),
        Failed(0, 1, FAILURE, False, ()),
        Lost(0, 1, "node 7 died"),
        Reverted(0, 1, 1, "NaN", 1.0),
        Opened("inline", 1, "me", ""),
        Ended("stopped"),
    ],
)
def test_what_ended_is_not_cut(event):
    pool = Pool(4)
    pool.start(0)
    pool.run(0, 1)
    pool.save(0)
    pool.widths.observe(event, ())
    assert pool.cut(waiting=3) == []
    assert pool.widths._wide == set()


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 24),
    least=st.integers(1, 3),
    extra=st.integers(0, 12),
    share=st.floats(0.0, 1.5),
    noise=st.sampled_from([0.0, 0.5]),
    restart=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_what_always_holds(seed, workers, least, extra, share, noise, restart):
    """A random sweep on a pool that grows and shrinks."""
    workers = max(workers, least)
    pool = Pool(workers, restart, workers_per_trial=least, max_workers_per_trial=least + extra)
    chance = random.Random(seed)
    ends: dict[int, int] = {}
    new = 0
    owed: list[int] = []
    cut: set[tuple[int, int]] = set()
    for _ in range(40):
        waiting = [*owed, *range(new, new + chance.choice([0, 0, 0, 1, 5]))]
        ready, late = waiting[: pool.free // least], waiting[pool.free // least :]
        for trial in ready:
            ends.setdefault(trial, chance.choice([1, 3, 9, 27]))
            pool.brackets.setdefault(trial, ends[trial])
            new = max(new, trial + 1)
        for end in sorted({ends[trial] for trial in ready}):
            batch = [trial for trial in ready if ends[trial] == end]
            others = sum(ends[trial] > end for trial in ready) + len(late)
            widths = pool.start(*batch, end=end, waiting=others)
            assert all(least <= width <= pool.most for width in widths)
            assert all(width <= pool.capped.get(trial, width) for trial, width in zip(batch, widths, strict=True))
            if others:
                assert set(widths) == {least}
        owed = [trial for trial in owed if trial not in ready]
        cuts = pool.cut(waiting=len(late))
        assert len(cuts) == len(set(cuts))
        assert not cut.intersection((trial, pool.running[trial].attempt) for trial in cuts)
        cut |= {(trial, pool.running[trial].attempt) for trial in cuts}
        if late:
            assert all(pool.width(trial) > least for trial in cuts)
        for trial in list(pool.running):
            if chance.random() < 0.5:
                continue
            ordered = (trial, pool.running[trial].attempt) in cut
            reports = pool.run(trial, 1, lambda width: chance.uniform(1 - noise, 1 + noise) * divided(share)(width))
            if ordered or pool.reached[trial] == ends[trial]:
                early = pool.reached[trial] < ends[trial]
                owed += [trial] if early else []
                if early and chance.random() < 0.1:
                    segment = pool.running.pop(trial)
                    pool.free += segment.width
                    pool.capped[trial] = pool.least
                    pool.widths.observe(Reverted(trial, segment.attempt, 0, "NaN", 1.0), ())
                else:
                    pool.finish(trial, cut=early, seconds=reports[0].seconds, reports=reports)
