"""What successive halving and Hyperband make of what nobody said."""

from __future__ import annotations

import pytest

from hpsearch.schedulers.halving import Halving, Hyperband, SuccessiveHalving
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.scripted import sweep_of


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        (SuccessiveHalving(81), (3, 9, 27, 81)),
        (SuccessiveHalving(50), (2, 6, 18, 50)),
        (SuccessiveHalving(27), (1, 3, 9, 27)),
        (SuccessiveHalving(2), (1, 2)),
        (SuccessiveHalving(81, min_iter=1), (1, 3, 9, 27, 81)),
        (SuccessiveHalving(50, rungs="paper"), (5, 16, 50)),
        (Hyperband(81), (1, 3, 9, 27, 81)),
    ],
)
def test_the_first_rung_is_chosen_where_nobody_names_it(settings: Halving, ends):
    assert settings.ends == ends


def test_the_summary_says_where_the_first_rung_ends_and_that_it_was_chosen():
    assert SuccessiveHalving(81).summary() == (
        "SuccessiveHalving from 3 (min_iter, not given: max_iter / 3^3) to 81 iterations by 3"
    )
    assert SuccessiveHalving(81, min_iter=3).summary() == "SuccessiveHalving from 3 to 81 iterations by 3"
    assert Hyperband(81).summary() == "Hyperband from 1 to 81 iterations by 3"


@pytest.mark.parametrize("early", [Hyperband(50), SuccessiveHalving(50), SuccessiveHalving(50, min_iter=2)])
def test_what_was_not_given_is_stored_as_it_was_asked_for(early):
    sweep = sweep_of(early_terminate=early)
    assert Sweep.from_json(sweep.to_json()) == sweep
