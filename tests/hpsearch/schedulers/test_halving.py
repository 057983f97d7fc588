"""Successive halving and Hyperband, by example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import pytest

from hpsearch.decision import Decision
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.base import Answer, Done, NewTrial, Outcome, Run, RungView, Wait
from hpsearch.schedulers.brackets import hyperband_brackets, successive_halving_bracket
from hpsearch.schedulers.halving import BracketScheduler

MAXIMIZE = Objective(Metric("score", "maximize"))


def halving(trials, max_iter=9, eta=3, **bounds) -> BracketScheduler:
    return BracketScheduler((successive_halving_bracket(max_iter, 1, eta, trials),), eta, MAXIMIZE, **bounds)


def hyperband(max_iter=9, **bounds) -> BracketScheduler:
    return BracketScheduler(hyperband_brackets(max_iter), 3, MAXIMIZE, **bounds)


def plain(answer: Answer) -> Answer:
    """Leave out in which bracket and rung."""
    return replace(answer, bracket=0, rung=0) if isinstance(answer, NewTrial | Run) else answer


def start(scheduler: BracketScheduler, count: int) -> list[Answer]:
    return [plain(scheduler.next()) for _ in range(count)]


def finish(scheduler: BracketScheduler, iteration: int, values: Sequence[float | None]) -> list[tuple[int, str]]:
    """Observe outcomes for trials 0, 1, ...; answer the last one's decisions as (trial, action)."""
    decisions: Sequence[Decision] = ()
    for trial, value in enumerate(values):
        assert not decisions
        decisions = scheduler.observe(Outcome(trial, iteration, value))
    return [(decision.trial, decision.action) for decision in decisions]


def test_the_best_third_goes_on_when_the_rung_is_full():
    scheduler = halving(9)
    assert start(scheduler, 10) == [*(NewTrial(number, 1) for number in range(9)), Wait()]
    for trial in range(8):
        assert scheduler.observe(Outcome(trial, 1, trial / 10)) == ()
        assert scheduler.next() == Wait()
    assert scheduler.observe(Outcome(8, 1, 0.45)) == [
        Decision(7, "promote", "rung 0: 1st of 9, top 3 go on"),
        Decision(6, "promote", "rung 0: 2nd of 9, top 3 go on"),
        Decision(5, "promote", "rung 0: 3rd of 9, top 3 go on"),
        Decision(8, "stop", "rung 0: 4th of 9, top 3 go on"),
        Decision(4, "stop", "rung 0: 5th of 9, top 3 go on"),
        Decision(3, "stop", "rung 0: 6th of 9, top 3 go on"),
        Decision(2, "stop", "rung 0: 7th of 9, top 3 go on"),
        Decision(1, "stop", "rung 0: 8th of 9, top 3 go on"),
        Decision(0, "stop", "rung 0: 9th of 9, top 3 go on"),
    ]
    assert start(scheduler, 4) == [Run(5, 3), Run(6, 3), Run(7, 3), Wait()]
    scheduler.observe(Outcome(5, 3, 0.9))
    scheduler.observe(Outcome(6, 3, 0.9))
    assert scheduler.observe(Outcome(7, 3, 0.8)) == [
        Decision(5, "promote", "rung 1: 1st of 3, top 1 goes on"),
        Decision(6, "stop", "rung 1: 2nd of 3, top 1 goes on"),
        Decision(7, "stop", "rung 1: 3rd of 3, top 1 goes on"),
    ]
    assert start(scheduler, 2) == [Run(5, 9), Wait()]
    assert scheduler.observe(Outcome(5, 9, 0.9)) == [Decision(5, "complete", "last rung: ran all 9 iterations")]
    assert scheduler.next() == Done()


def test_ties_go_to_the_lower_trial():
    scheduler = halving(6)
    start(scheduler, 6)
    assert finish(scheduler, 1, [1.0] * 6)[:2] == [(0, "promote"), (1, "promote")]


def test_nan_goes_on_only_where_there_is_room():
    scheduler = halving(9)
    start(scheduler, 9)
    decided = finish(scheduler, 1, [nan, None, nan, 0.1, None, 0.2, None, None, nan])
    assert decided == [(5, "promote"), (3, "promote"), (0, "promote"), (2, "stop"), (8, "stop")]


def test_nan_stays_behind_where_numbers_fill_the_next_rung():
    scheduler = halving(3)
    start(scheduler, 3)
    assert finish(scheduler, 1, [nan, -1e300, None]) == [(1, "promote"), (0, "stop")]


def test_failed_trials_never_go_on_and_later_rungs_hold_fewer():
    scheduler = halving(18, max_iter=9)
    start(scheduler, 18)
    assert scheduler.total() == (18, 18 + 6 * 2 + 2 * 6)
    assert finish(scheduler, 1, [None] * 17 + [0.5]) == [(17, "promote")]
    assert scheduler.rungs() == [
        RungView(0, 0, 1, 18, 18, 18),
        RungView(0, 1, 3, 1, 0, 0),
        RungView(0, 2, 9, 1, 0, 0),
    ]
    assert scheduler.total() == (18, 18 + 2 + 6)
    assert plain(scheduler.next()) == Run(17, 3)
    assert scheduler.observe(Outcome(17, 3, 0.5)) == [Decision(17, "promote", "rung 1: 1st of 1, top 1 goes on")]
    assert plain(scheduler.next()) == Run(17, 9)
    assert scheduler.observe(Outcome(17, 9, None)) == []
    assert scheduler.next() == Done()


def test_a_bracket_whose_trials_all_fail_is_over():
    scheduler = halving(3, brackets=2)
    start(scheduler, 3)
    assert finish(scheduler, 1, [None] * 3) == []
    assert scheduler.rungs() == [RungView(0, 0, 1, 3, 3, 3)]
    assert plain(scheduler.next()) == NewTrial(3, 1)


def test_a_trial_that_ended_by_itself_ranks_like_any_other():
    scheduler = halving(3, max_iter=4)
    start(scheduler, 3)
    scheduler.observe(Outcome(0, 1, 0.1))
    scheduler.observe(Outcome(1, 0, 0.9))
    decided = scheduler.observe(Outcome(2, 1, 0.2))
    assert [(decision.trial, decision.action) for decision in decided] == [
        (1, "promote"),
        (2, "stop"),
        (0, "stop"),
    ]
    assert plain(scheduler.next()) == Run(1, 3)
    assert scheduler.observe(Outcome(1, 2, 0.9)) == [
        Decision(1, "complete", "last rung: ended by itself after 2 of 3 iterations")
    ]


def test_minimize_promotes_the_smallest():
    scheduler = BracketScheduler((successive_halving_bracket(3, 1, 3),), 3, Objective(Metric("score", "minimize")))
    start(scheduler, 3)
    assert finish(scheduler, 1, [3.0, 1.0, 2.0])[0] == (1, "promote")


def test_hyperband_numbers_trials_in_bracket_order_side_by_side():
    scheduler = hyperband()  # brackets of 9, 5 and 3 trials
    lengths = [1] * 9 + [3] * 5 + [9] * 3
    assert start(scheduler, 18) == [*map(NewTrial, range(17), lengths), Wait()]


def test_a_promotion_goes_before_a_new_trial():
    scheduler = hyperband()
    start(scheduler, 9)
    finish(scheduler, 1, [0.1 * trial for trial in range(9)])
    assert start(scheduler, 4) == [Run(6, 3), Run(7, 3), Run(8, 3), NewTrial(9, 3)]


def test_the_furthest_rung_goes_first():
    scheduler = hyperband()
    start(scheduler, 14)  # the first two brackets
    for trial in range(9, 14):
        scheduler.observe(Outcome(trial, 3, 0.1 * trial))
    finish(scheduler, 1, [0.1 * trial for trial in range(9)])
    assert start(scheduler, 5) == [Run(13, 9), Run(6, 3), Run(7, 3), Run(8, 3), NewTrial(14, 9)]


def test_trials_of_a_last_rung_are_complete_as_they_end():
    scheduler = BracketScheduler((successive_halving_bracket(5, 5, 3, trials=3),), 3, MAXIMIZE)
    start(scheduler, 3)
    assert scheduler.observe(Outcome(1, 5, nan)) == [Decision(1, "complete", "last rung: ran all 5 iterations")]
    assert scheduler.observe(Outcome(0, 5, None)) == []
    assert scheduler.next() == Wait()


def test_without_bounds_one_round_runs():
    assert hyperband(27).total() == (49, 357)
    assert halving(None, max_iter=27).total() == (27, 27 + 9 * 2 + 3 * 6 + 18)


def test_with_run_cap_rounds_repeat_and_the_last_bracket_is_cut():
    scheduler = halving(9, run_cap=14)
    start(scheduler, 15)
    assert [(view.bracket, view.until, view.size) for view in scheduler.rungs()] == [
        (0, 1, 9),
        (0, 3, 3),
        (0, 9, 1),
        (1, 1, 5),
        (1, 3, 1),
    ]
    assert scheduler.total() == (14, 9 + 6 + 6 + 5 + 2)


def test_the_lower_of_run_cap_and_brackets_ends_the_sweep():
    assert hyperband(run_cap=100, brackets=2).total() == hyperband(brackets=2).total()
    assert hyperband(run_cap=10, brackets=3).total() == hyperband(run_cap=10).total()
    scheduler = hyperband(run_cap=100, brackets=2)
    assert start(scheduler, 15)[13:] == [NewTrial(13, 3), Wait()]


def test_exhausted_cuts_the_open_bracket_and_decides_it_where_it_is_full():
    scheduler = halving(9)
    start(scheduler, 8)
    finish(scheduler, 1, [0.1 * trial for trial in range(7)])
    assert [(decision.trial, decision.action) for decision in scheduler.exhausted()] == [
        (6, "promote"),
        (5, "promote"),
        *((trial, "stop") for trial in range(4, -1, -1)),
    ]
    assert scheduler.rungs() == [RungView(0, 0, 1, 7, 7, 7), RungView(0, 1, 3, 2, 0, 0)]
    assert scheduler.total() == (7, 7 + 2 * 2)
    assert start(scheduler, 3) == [Run(5, 3), Run(6, 3), Wait()]


def test_exhausted_can_make_the_first_rung_the_last():
    scheduler = halving(9)
    start(scheduler, 3)
    scheduler.observe(Outcome(1, 1, 0.5))
    assert scheduler.exhausted() == [Decision(1, "complete", "last rung: ran its 1 iteration")]
    assert scheduler.next() == Wait()
    assert scheduler.observe(Outcome(0, 1, 0.5)) == [Decision(0, "complete", "last rung: ran its 1 iteration")]
    assert scheduler.next() == Done()


def test_exhausted_at_a_brackets_first_trial_makes_it_vanish():
    scheduler = hyperband()
    start(scheduler, 10)
    assert scheduler.exhausted() == ()
    assert {view.bracket for view in scheduler.rungs()} == {0}
    assert scheduler.total() == (9, 9 + 6 + 6)
    assert scheduler.next() == Wait()


def test_a_searcher_without_any_trial_ends_the_sweep():
    scheduler = hyperband()
    scheduler.next()
    assert scheduler.exhausted() == ()
    assert scheduler.next() == Done()
    assert scheduler.rungs() == []
    assert scheduler.total() == (0, 0)


def test_exhausted_twice_takes_two_answers_back():
    scheduler = halving(9)
    start(scheduler, 5)
    finish(scheduler, 1, [0.1, 0.2, 0.3])
    assert scheduler.exhausted() == ()
    assert [decision.trial for decision in scheduler.exhausted()] == [2, 1, 0]


def test_more_brackets_go_on_after_the_end_with_the_next_of_the_cycle():
    scheduler = hyperband(3)  # brackets of 3 and 2 trials
    start(scheduler, 5)
    finish(scheduler, 1, [None] * 3)
    for trial in (3, 4):
        scheduler.observe(Outcome(trial, 3, 0.5))
    assert scheduler.next() == Done()
    scheduler.extend(None, {"brackets": 3})
    assert start(scheduler, 4) == [NewTrial(5, 1), NewTrial(6, 1), NewTrial(7, 1), Wait()]
    assert scheduler.total() == (8, 3 + 6 + 3 + 2)


def test_a_larger_run_cap_leaves_the_cut_bracket_as_it_is():
    scheduler = halving(9, run_cap=5)
    start(scheduler, 5)
    scheduler.extend(16, {})
    assert start(scheduler, 12) == [*(NewTrial(number, 1) for number in range(5, 16)), Wait()]
    assert [view.size for view in scheduler.rungs()] == [5, 1, 9, 3, 1, 2]


def test_a_first_run_cap_lets_rounds_repeat():
    scheduler = halving(3, max_iter=3)
    scheduler.extend(7, {})
    assert scheduler.total() == (7, (3 + 2) * 2 + 1)


def test_an_extension_undoes_exhausted():
    scheduler = halving(9, brackets=2)
    start(scheduler, 3)
    scheduler.exhausted()
    assert scheduler.next() == Wait()
    scheduler.extend(None, {})
    assert plain(scheduler.next()) == NewTrial(2, 1)
    assert [view.size for view in scheduler.rungs() if view.rung == 0] == [2, 9]


@pytest.mark.parametrize(
    ("bounds", "raised", "message"),
    [
        ({"run_cap": 20}, (19, {}), "`run_cap` must be at least 20, got 19"),
        ({"brackets": 4}, (None, {"brackets": 3}), "`brackets` must be at least 4, got 3"),
        ({}, (None, {"brackets": 2}), "`brackets` must be at least 3, got 2"),
        ({}, (16, {}), "`run_cap` must be at least 17, got 16"),
        ({"run_cap": 20}, (None, {"brackets": 3}), "holds 17 trials of the 20 that there are to be"),
        ({"run_cap": 20}, (30, {"brackets": 3}), "holds 17 trials of the 20 that there are to be"),
    ],
)
def test_bounds_cannot_be_lowered(bounds, raised, message):
    scheduler = hyperband(**bounds)
    before = scheduler.total()
    with pytest.raises(ValueError, match=message):
        scheduler.extend(*raised)
    assert scheduler.total() == before


def test_brackets_cannot_be_bounded_below_those_begun():
    scheduler = hyperband(run_cap=17)
    start(scheduler, 17)
    with pytest.raises(ValueError, match="`brackets` must be at least 3, got 2"):
        scheduler.extend(None, {"brackets": 2})


def test_another_setting_cannot_be_raised():
    with pytest.raises(ValueError, match="only `run_cap` and `brackets` can be raised, got eta"):
        hyperband().extend(None, {"eta": 4})


def test_an_answer_says_its_bracket_and_rung():
    scheduler = hyperband()
    brackets = [0] * 9 + [1] * 5 + [2] * 3
    for number, bracket in enumerate(brackets):
        assert scheduler.next() == NewTrial(number, (1, 3, 9)[bracket], bracket, 0)
    for trial in range(9):
        scheduler.observe(Outcome(trial, 1, float(trial)))
    assert scheduler.next() == Run(6, 3, 0, 1)


def test_bounds_that_change_nothing_are_taken():
    scheduler = hyperband(run_cap=17)
    scheduler.extend(17, {"brackets": 3})
    assert scheduler.total() == hyperband().total()


def test_ended_brackets_keep_their_place_in_the_rungs():
    scheduler = hyperband(3)
    start(scheduler, 5)
    for trial in (4, 3):
        scheduler.observe(Outcome(trial, 3, 0.5))
    assert [(view.bracket, view.finished) for view in scheduler.rungs()] == [(0, 0), (0, 0), (1, 2)]
    finish(scheduler, 1, [None] * 3)
    assert [(view.bracket, view.finished) for view in scheduler.rungs()] == [(0, 3), (1, 2)]


def test_calls_out_of_turn_are_refused():
    scheduler = halving(3, max_iter=3)
    with pytest.raises(ValueError, match="trial 0 is not running"):
        scheduler.observe(Outcome(0, 1, 0.5))
    with pytest.raises(ValueError, match="must follow a `NewTrial`"):
        scheduler.exhausted()
    start(scheduler, 3)
    finish(scheduler, 1, [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="trial 2 is not running"):
        scheduler.observe(Outcome(2, 1, 0.5))
    assert plain(scheduler.next()) == Run(2, 3)
    with pytest.raises(ValueError, match="not in its first segment"):
        scheduler.exhausted()
