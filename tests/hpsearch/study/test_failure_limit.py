from __future__ import annotations

import pytest

from hpsearch.events import Failed
from hpsearch.study.stopping import Tally, mistake_of, too_many
from hpsearch.trial import Failure


@pytest.mark.parametrize(
    ("failed", "tried", "limit", "ends"),
    [
        (1, 1, "auto", False),
        (4, 4, "auto", False),
        (5, 5, "auto", True),
        (5, 6, "auto", False),  # one came through
        (18, 19, "auto", False),
        (10, 20, "auto", True),
        (9, 20, "auto", False),
        (20, 41, "auto", False),
        (50, 100, "auto", True),
        (1, 100, 1, True),
        (2, 2, 3, False),
        (3, 100, 3, True),
        (1000, 1000, "none", False),
    ],
)
def test_a_sweep_ends_when_its_first_five_trials_or_half_of_twenty_have_failed_or_as_many_as_it_says(
    failed, tried, limit, ends
):
    assert too_many(Tally(failed, tried), limit) is ends


def failed(kind: str = "raised") -> Failed:
    return Failed(7, 1, Failure(kind, "ValueError: no", "Traceback\n  line 3\n"), False, (), 1.0)  # type: ignore[arg-type]


def test_the_mistake_says_how_many_failed_the_last_traceback_and_how_to_go_on():
    assert mistake_of(failed(), Tally(4, 4), "auto") is None
    text = str(mistake_of(failed(), Tally(5, 5), "auto"))
    assert text.startswith("5 of the 5 trials that were tried have failed; the last one, trial 7: ValueError: no\n")
    assert "Traceback\n  line 3\n" in text
    assert "--set limits.max_failures=none" in text


@pytest.mark.parametrize("limit", ["auto", "none", 9])
def test_a_broken_contract_ends_a_sweep_in_which_nothing_came_through_and_no_other(limit):
    assert str(mistake_of(failed("contract"), Tally(1, 1), limit)) == "ValueError: no"
    assert str(mistake_of(failed("contract"), Tally(2, 2), limit)) == "ValueError: no"
    assert mistake_of(failed("contract"), Tally(1, 2), limit) is None
