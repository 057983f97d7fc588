"""Where a checkpoint lies, as the journal has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.trainable.addresses import count_in_pack, in_pack, is_pack, pack_of, pack_of_all, path_of

PLACE = "trials/00012/3/hpsearch-checkpoint-9"
OTHERS = ["trials/00013/1/hpsearch-checkpoint-9", "trials/00014/1/hpsearch-checkpoint-1"]
PACK = "trials/packs/00007-2-9x3.zip"


def places() -> st.SearchStrategy[str]:
    number = st.integers(0, 10**6)
    return st.builds("trials/{:05d}/{}/hpsearch-checkpoint-{}".format, number, number, number)


def test_an_address_says_the_pack_and_the_place():
    address = in_pack(PACK, PLACE)
    assert address == "trials/packs/00007-2-9x3.zip#trials/00012/3/hpsearch-checkpoint-9"
    assert (pack_of(address), path_of(address)) == (PACK, PLACE)
    assert (pack_of(PLACE), path_of(PLACE)) == (None, PLACE)


def test_a_packs_name_says_its_first_checkpoint_and_how_many_it_holds():
    pack = pack_of_all([PLACE, *OTHERS])
    assert pack == "trials/packs/00012-3-9x3.zip"
    assert count_in_pack(in_pack(pack, OTHERS[1])) == 3


ROOTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["a#b", in_pack(PACK, PLACE), f"{PACK}#", f"{PACK}#trials", "trials/packs", "x\ny", "", "trials"]),
).map(lambda text: f"/{text.strip('/')}" if text.strip("/") else "")


@given(root=ROOTS, first=places(), place=places())
def test_a_study_may_lie_anywhere(root: str, first: str, place: str):
    pack = pack_of_all([first, place])
    address = f"{root}/{in_pack(pack, place)}"
    assert (pack_of(address), path_of(address)) == (f"{root}/{pack}", f"{root}/{place}")
    plain = f"{root}/{place}"
    assert (pack_of(plain), path_of(plain)) == (None, plain)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00012-3-9x3.zip", True),
        (".00012-3-9x3.zip.part", True),
        ("output.log", False),
        ("00012-3-9x3.zip.part", False),
        ("mine.zip", False),
        ("00012-3-9x3.zip.bak", False),
    ],
)
def test_what_is_a_pack_and_what_is_somebody_elses(name: str, expected: bool):
    assert is_pack(name) is expected
