"""A pack goes when all the checkpoints in it were heard of and none is needed, and no sooner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpsearch.study.trial_records import PackUsers
from hpsearch.trainable.addresses import in_pack, pack_of_all

PLACES = [f"trials/{trial:05d}/1/hpsearch-checkpoint-3" for trial in range(8)]
PACKS = {pack_of_all(places): places for places in (PLACES[:2], PLACES[2:6])}
ADDRESSES = [in_pack(pack, place) for pack, places in PACKS.items() for place in places] + PLACES[6:]


def test_a_pack_goes_with_its_last_checkpoint():
    users = PackUsers()
    assert users.release([PLACES[7], ADDRESSES[1]]) == []
    assert users.release([ADDRESSES[1]]) == [], "it was counted before"
    assert users.release([ADDRESSES[0], PLACES[6]]) == list(PACKS)[:1]


def test_one_that_nobody_was_told_of_keeps_its_pack():
    assert PackUsers().release(ADDRESSES[2:5]) == []


@given(order=st.permutations(ADDRESSES), sizes=st.lists(st.integers(0, 4)))
def test_in_whatever_order_they_go_each_pack_goes_with_its_last(order: list[str], sizes: list[int]) -> None:
    users, there, needed = PackUsers(), set(PACKS), set(ADDRESSES)
    for size in [*sizes, len(order)]:
        gone, order = order[:size], order[size:]
        needed -= set(gone)
        there -= set(users.release(gone))
        assert there == {pack for pack, places in PACKS.items() if {in_pack(pack, place) for place in places} & needed}
