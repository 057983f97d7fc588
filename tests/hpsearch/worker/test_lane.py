from __future__ import annotations

from hpsearch.worker.lane import Parked


def test_what_came_first_goes_first_where_there_are_too_many_or_they_are_too_large():
    parked: Parked[str] = Parked(most=3, most_bytes=100)
    for trial in range(4):
        parked.put(trial, f"object {trial}", {trial: 10})
    assert parked.take(0) is None
    assert parked.take(2) == "object 2"
    assert parked.take(2) is None
    parked.put(5, "large", {5: 85})
    assert parked.take(1) is None
    assert parked.take(3) == "object 3"
    parked.put(6, "larger than all", {6: 101})
    assert [parked.take(trial) for trial in (5, 6)] == [None, None]


def test_what_several_hold_counts_once_and_until_the_last_of_them_is_gone():
    parked: Parked[str] = Parked(most=64, most_bytes=100)
    for trial in range(4):
        parked.put(trial, f"object {trial}", {70: 70, trial: 5})
    assert len(parked) == 4
    parked.put(4, "large", {4: 30})
    assert (len(parked), parked.take(4)) == (1, "large"), "it had room only without what the others share"


def test_what_a_trial_leaves_again_is_in_place_of_what_it_left_before():
    parked: Parked[str] = Parked(most=2, most_bytes=100)
    parked.put(1, "first", {7: 60})
    parked.put(1, "second", {8: 60})
    assert parked.take(1) == "second"
    parked.put(1, "third", {9: 1})
    parked.clear()
    assert parked.take(1) is None
