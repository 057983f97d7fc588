"""hpsearch_comm.horovod on real ranks: what operations give, and that a disagreement doesn't end the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.horovod_ranks import HorovodRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[HorovodRanks]:
    with HorovodRanks(3, "tests.comm.horovod_calls") as ranks:
        yield ranks


def test_ranks_know_their_places(ranks):
    assert ranks.call("places") == [[rank, 3, rank, 3, 0, 1] for rank in range(3)]


def test_reductions_gathers_and_broadcasts(ranks):
    rows = [[0.0, 0.0], *[[1.0, 1.0]] * 2, *[[2.0, 2.0]] * 3]
    assert ranks.call("simple_operations") == [[[1.0, 2.0], rows, [10, 11, 12]]] * 3


def test_operations_find_each_other_by_name_whatever_their_order(ranks):
    names = list("abcdefg")
    assert ranks.call("in_another_order_on_each_rank", names) == [[3.0 * at + 300 for at in range(7)]] * 3


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("shape", "its shape must be the same on every rank, but is [3] on rank 0 and [4] on rank 1"),
        ("dtype", "its dtype must be the same on every rank, but is float32 on rank 0 and float64 on rank 1"),
        ("op", "its op must be the same on every rank, but is Max on rank 0 and Sum on rank 1"),
        ("root", "its root must be the same on every rank, but is (0,) on rank 0 and (1,) on rank 1"),
        ("factor", "its prescale_factor must be the same on every rank, but is 1.0 on rank 0 and 2.0 on rank 1"),
        ("columns", "its shape must be the same on every rank, but is ['any', 1] on rank 0 and ['any', 2] on rank 1"),
    ],
)
def test_a_disagreement_is_told_to_all_and_the_job_goes_on(ranks, kind, words):
    for text in ranks.call("disagree", kind):
        assert words in text


def test_a_name_can_be_under_way_once(ranks):
    for rank, text in enumerate(ranks.call("the_same_name_twice")):
        assert f"allreduce.twice{rank} hasn't ended yet" in text


def test_a_job_can_be_started_again_after_a_shutdown(ranks):
    for _ in range(3):
        assert ranks.call("start_again") == [[rank, 3] for rank in range(3)]
