"""The arithmetic of brackets, pinned to the paper's figures and held to its invariants."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.schedulers.brackets import (
    Bracket,
    Rung,
    RungLaw,
    Variant,
    cut,
    hyperband_brackets,
    iterations,
    rung_count,
    rung_ends,
    successive_halving_bracket,
    thin,
    upcoming,
)

bounds = st.tuples(st.integers(1, 9), st.integers(0, 120), st.integers(2, 5)).map(
    lambda drawn: (drawn[0] + drawn[1], drawn[0], drawn[2])
)
variants = st.sampled_from(get_args(Variant))
laws = st.sampled_from(get_args(RungLaw))


def sizes(bracket: Bracket) -> list[int]:
    return [rung.size for rung in bracket.rungs]


def lengths(bracket: Bracket) -> list[int]:
    return [rung.until for rung in bracket.rungs]


@pytest.mark.parametrize(
    ("min_iter", "max_iter", "eta", "count"),
    [(1, 243, 3, 6), (1, 1000, 10, 4), (1, 1, 3, 1), (1, 2, 3, 1), (2, 53, 3, 3), (2, 54, 3, 4)],
)
def test_rungs_are_counted_exactly(min_iter, max_iter, eta, count):
    assert rung_count(min_iter, max_iter, eta) == count


@pytest.mark.parametrize("eta", range(2, 12))
def test_exact_powers_and_their_neighbours_count_right(eta):
    for power in range(1, 40):
        assert rung_count(1, eta**power, eta) == power + 1
        assert rung_count(1, eta**power - 1, eta) == power


@pytest.mark.parametrize(
    ("variant", "starts", "trial_rungs", "from_zero", "resumed"),
    [
        ("paper", [81, 34, 15, 8, 5], 206, 1902, 1581),
        ("table", [81, 27, 9, 6, 5], 187, 1701, 1404),
    ],
)
def test_hyperband_of_81_by_3_is_the_published_one(variant, starts, trial_rungs, from_zero, resumed):
    brackets = hyperband_brackets(81, eta=3, variant=variant)
    assert [bracket.trials for bracket in brackets] == starts
    assert sum(sum(sizes(bracket)) for bracket in brackets) == trial_rungs
    assert sum(rung.until * rung.size for bracket in brackets for rung in bracket.rungs) == from_zero
    assert sum(iterations(bracket) for bracket in brackets) == resumed


def test_paper_brackets_of_81_by_3_rung_by_rung():
    first, second, third, fourth, fifth = hyperband_brackets(81)
    assert (lengths(first), sizes(first)) == ([1, 3, 9, 27, 81], [81, 27, 9, 3, 1])
    assert (lengths(second), sizes(second)) == ([3, 9, 27, 81], [34, 11, 3, 1])
    assert (lengths(third), sizes(third)) == ([9, 27, 81], [15, 5, 1])
    assert (lengths(fourth), sizes(fourth)) == ([27, 81], [8, 2])
    assert (lengths(fifth), sizes(fifth)) == ([81], [5])


def test_hyperband_of_27_by_3_is_the_published_one():
    brackets = hyperband_brackets(27)
    assert [bracket.trials for bracket in brackets] == [27, 12, 6, 4]
    assert sum(iterations(bracket) for bracket in brackets) == 357


def test_min_iter_sets_the_first_rung_and_the_number_of_brackets():
    brackets = hyperband_brackets(81, min_iter=9)
    assert [lengths(bracket) for bracket in brackets] == [[9, 27, 81], [27, 81], [81]]
    assert [bracket.trials for bracket in brackets] == [9, 5, 3]


@pytest.mark.parametrize(
    ("max_iter", "geometric", "paper"),
    [
        (50, (1, 3, 9, 27, 50), (1, 5, 16, 50)),
        (27, (1, 3, 9, 27), (1, 3, 9, 27)),
        (28, (1, 3, 9, 27, 28), (1, 3, 9, 28)),
        (2, (1, 2), (2,)),
        (1, (1,), (1,)),
    ],
)
def test_rungs_are_counted_up_from_min_iter_or_down_from_max_iter(max_iter, geometric, paper):
    assert rung_ends(1, max_iter, 3) == geometric
    assert rung_ends(1, max_iter, 3, "paper") == paper


def test_hyperband_over_geometric_rungs_has_as_many_brackets_as_rungs():
    brackets = hyperband_brackets(50)
    assert [lengths(bracket) for bracket in brackets] == [
        [1, 3, 9, 27, 50],
        [3, 9, 27, 50],
        [9, 27, 50],
        [27, 50],
        [50],
    ]
    assert [bracket.trials for bracket in brackets] == [81, 34, 15, 8, 5]  # Algorithm 1 with s_max + 1 = 5


@given(bounds)
def test_both_laws_agree_where_max_iter_is_a_power_and_differ_by_one_rung_elsewhere(limits):
    max_iter, min_iter, eta = limits
    geometric, paper = (rung_ends(min_iter, max_iter, eta, law) for law in get_args(RungLaw))
    power = min_iter * eta ** (rung_count(min_iter, max_iter, eta) - 1)
    assert (geometric == paper) == (power == max_iter)
    assert len(geometric) - len(paper) == (power != max_iter)
    assert geometric[0] == min(min_iter, max_iter)
    assert all(after == before * eta for before, after in pairwise(geometric[:-1]))


@given(bounds, variants, laws)
@settings(deadline=None, max_examples=60)
def test_every_bracket_rises_from_min_iter_to_max_iter_and_narrows(limits, variant, law):
    max_iter, min_iter, eta = limits
    brackets = hyperband_brackets(max_iter, min_iter, eta, variant, law)
    assert [len(bracket.rungs) for bracket in brackets] == list(range(len(brackets), 0, -1))
    for bracket in (*brackets, successive_halving_bracket(max_iter, min_iter, eta, law=law)):
        assert lengths(bracket)[0] >= min_iter
        assert lengths(bracket)[-1] == max_iter
        assert all(before < after for before, after in pairwise(lengths(bracket)))
        assert sizes(bracket) == [bracket.trials // eta**i for i in range(len(bracket.rungs))]
        assert sizes(bracket)[-1] >= 1


def test_successive_halving_leaves_one_trial_by_default():
    bracket = successive_halving_bracket(27, 1, 3)
    assert bracket == Bracket((Rung(1, 27), Rung(3, 9), Rung(9, 3), Rung(27, 1)))


def test_successive_halving_takes_more_trials_or_drops_empty_rungs():
    assert sizes(successive_halving_bracket(27, 1, 3, trials=60)) == [60, 20, 6, 2]
    few = successive_halving_bracket(27, 1, 3, trials=10)
    assert few == Bracket((Rung(1, 10), Rung(3, 3), Rung(9, 1)))


def test_cut_floors_the_rungs_and_drops_the_empty_ones():
    bracket = successive_halving_bracket(27, 1, 3)
    assert cut(bracket, 26, 3) == Bracket((Rung(1, 26), Rung(3, 8), Rung(9, 2)))
    assert cut(bracket, 1, 3) == Bracket((Rung(1, 1),))
    assert cut(bracket, 0, 3) == Bracket(())
    assert cut(bracket, 0, 3).trials == 0
    assert cut(bracket, 27, 3) is bracket
    assert cut(bracket, 1000, 3) is bracket


def test_thin_holds_the_later_rungs_to_what_reaches_them():
    bracket = successive_halving_bracket(27, 1, 3)
    assert thin(bracket, 1, 2) == Bracket((Rung(1, 27), Rung(3, 2), Rung(9, 2), Rung(27, 1)))
    assert thin(bracket, 1, 9) == bracket
    assert thin(bracket, 2, 0) == Bracket((Rung(1, 27), Rung(3, 9)))


@given(bounds, variants, st.integers(0, 20), st.none() | st.integers(0, 900), st.none() | st.integers(0, 40))
@settings(deadline=None, max_examples=80)
def test_upcoming_equals_counting_bracket_by_bracket(limits, variant, begun, trials, brackets):
    max_iter, min_iter, eta = limits
    if trials is None and brackets is None:
        brackets = 7
    cycle = hyperband_brackets(max_iter, min_iter, eta, variant)
    counted_trials = counted_iterations = position = 0
    while (trials is None or counted_trials < trials) and (brackets is None or position < brackets):
        bracket = cycle[(begun + position) % len(cycle)]
        if trials is not None:
            bracket = cut(bracket, trials - counted_trials, eta)
        counted_trials += bracket.trials
        counted_iterations += iterations(bracket)
        position += 1
    assert upcoming(cycle, begun, eta, trials, brackets) == (counted_trials, counted_iterations)


def test_upcoming_of_a_billion_trials_is_arithmetic():
    assert upcoming(hyperband_brackets(27), 0, 3, 49 * 10**9, None) == (49 * 10**9, 357 * 10**9)
