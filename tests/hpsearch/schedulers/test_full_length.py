"""Trials that nothing terminates early."""

from __future__ import annotations

import pytest

from hpsearch.decision import Decision
from hpsearch.schedulers.base import Done, NewTrial, Outcome, RungView, Wait
from hpsearch.schedulers.full import FullLength


def test_each_trial_runs_to_max_iter_and_is_complete():
    scheduler = FullLength(10, run_cap=2)
    assert [scheduler.next() for _ in range(3)] == [NewTrial(0, 10), NewTrial(1, 10), Wait()]
    assert scheduler.observe(Outcome(1, 10, 0.5)) == (Decision(1, "complete", "ran all 10 iterations"),)
    assert scheduler.next() == Wait()
    assert scheduler.observe(Outcome(0, 4, 0.5)) == (
        Decision(0, "complete", "ended by itself after 4 of 10 iterations"),
    )
    assert scheduler.next() == Done()


def test_a_failed_trial_gets_no_decision():
    scheduler = FullLength(10, run_cap=1)
    scheduler.next()
    assert scheduler.observe(Outcome(0, 3, None)) == ()
    assert scheduler.next() == Done()


def test_without_bounds_trials_go_on_until_the_searcher_is_exhausted():
    scheduler = FullLength(None)
    assert scheduler.total() is None
    assert scheduler.rungs() == ()
    assert [scheduler.next() for _ in range(3)] == [NewTrial(0, None), NewTrial(1, None), NewTrial(2, None)]
    assert scheduler.rungs() == (RungView(0, 0, None, None, 3, 0),)
    assert scheduler.exhausted() == ()
    assert scheduler.rungs() == (RungView(0, 0, None, 2, 2, 0),)
    assert scheduler.next() == Wait()
    assert scheduler.observe(Outcome(0, 7, 0.5)) == (Decision(0, "complete", "ended by itself after 7 iterations"),)
    assert scheduler.rungs() == (RungView(0, 0, None, 2, 2, 1),)


def test_the_total_is_known_with_both_bounds_or_once_exhausted():
    assert FullLength(10, 7).total() == (7, 70)
    assert FullLength(None, 7).total() is None
    scheduler = FullLength(10)
    assert scheduler.total() is None
    scheduler.next()
    scheduler.next()
    scheduler.exhausted()
    assert scheduler.total() == (1, 10)


def test_a_larger_run_cap_goes_on_after_the_end():
    scheduler = FullLength(2, run_cap=1)
    scheduler.next()
    scheduler.observe(Outcome(0, 2, 0.5))
    assert scheduler.next() == Done()
    scheduler.extend(2, {})
    assert scheduler.next() == NewTrial(1, 2)
    assert scheduler.next() == Wait()


def test_an_extension_undoes_exhausted():
    scheduler = FullLength(2, run_cap=3)
    scheduler.next()
    scheduler.exhausted()
    assert scheduler.next() == Done()
    scheduler.extend(None, {})
    assert scheduler.next() == NewTrial(0, 2)


def test_bounds_cannot_be_lowered():
    scheduler = FullLength(2, run_cap=5)
    with pytest.raises(ValueError, match="`run_cap` is 5, got 4"):
        scheduler.extend(4, {})
    with pytest.raises(ValueError, match="only `run_cap` can be raised, got brackets"):
        scheduler.extend(None, {"brackets": 2})
    with pytest.raises(ValueError, match="no bound so far, got 100"):
        FullLength(2).extend(100, {})
    assert scheduler.total() == (5, 10)


def test_calls_out_of_turn_are_refused():
    scheduler = FullLength(2, run_cap=5)
    with pytest.raises(ValueError, match="trial 0 is not running"):
        scheduler.observe(Outcome(0, 2, 0.5))
    with pytest.raises(ValueError, match="must follow a `NewTrial`"):
        scheduler.exhausted()
    scheduler.next()
    scheduler.observe(Outcome(0, 2, 0.5))
    with pytest.raises(ValueError, match="trial 0 is not running"):
        scheduler.observe(Outcome(0, 2, 0.5))
    with pytest.raises(ValueError, match="must follow a `NewTrial`"):
        scheduler.exhausted()
