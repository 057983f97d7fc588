"""hpsearch_comm.horovod.elastic: a training that has failed goes on from its last commit, to the same end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.comm.horovod.horovod_ranks import HorovodRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[HorovodRanks]:
    with HorovodRanks(3, "tests.comm.horovod.horovod_elastic") as ranks:
        yield ranks


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("failing", "commit_every", "resets"),
    [
        ({0: "disagree"}, 1, ["reset at 0"]),
        ({5: "disagree"}, 1, ["reset at 5"]),
        ({5: "disagree"}, 3, ["reset at 3"]),
        ({5: "leave"}, 3, ["reset at 3"]),
        ({5: "within backward"}, 3, ["reset at 3"]),
        ({2: "leave", 4: "disagree", 7: "within backward"}, 2, ["reset at 2", "reset at 4", "reset at 6"]),
    ],
)
def test_it_ends_as_if_nothing_had_failed(ranks, failing, commit_every, resets):
    forget = "behind" if 5 in failing else "before"
    for difference, told in ranks.call("goes_on", failing, commit_every, forget):
        assert difference == 0.0
        assert told == resets


def test_one_that_gets_no_further_is_given_up(ranks):
    for calls, text, total in ranks.call("gives_up"):
        assert calls == [0, 0, 1, 1]  # a commit in the second call begins the count anew
        assert "the ranks disagree on allreduce.unlike" in text
        assert total == 3.0


def test_other_errors_end_it(ranks):
    assert ranks.call("passes_other_errors_on") == [["KeyError", "MissingError", "a", "missing"]] * 3


def test_all_ranks_begin_with_rank_0s_state_and_can_be_put_back_to_it(ranks):
    for synced, restored, epoch, commits in ranks.call("begins_alike"):
        assert synced == [[0.0, 1.0, 2.0, 3.0, 4.0], 0.1, 0, {"epoch": 0, "processed_num": 3}, 5, [0], 3]
        assert restored == [5, [0], 0.0, 0, 3]
        assert (epoch, commits) == (50, 1)


def test_a_rank_that_has_died_is_named():
    with HorovodRanks(3, "tests.comm.horovod.horovod_elastic", init=True, HPSEARCH_COMM_START_TIMEOUT="5") as ranks:
        first, second, third = ranks.outcomes("loses_a_rank")
    assert second.code == -9
    for outcome in (first, third):
        assert "and not all of them came back" in outcome.result[0]
        assert "--min-np" in outcome.result[0]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("length", "batch", "done"), [(30, 2, 0), (30, 2, 2), (31, 3, 2), (4, 1, 1), (10, 4, 1)])
def test_a_sampler_divides_what_is_left(ranks, length, shuffle, batch, done):
    parts = ranks.call("rows_of", length, shuffle, batch, done)
    first, rest, other_epoch = (list(itertools.chain(*lists)) for lists in zip(*parts, strict=True))
    assert len({len(rows) for _, rows, _ in parts}) == 1
    assert set(first) | set(rest) == set(other_epoch) == set(range(length))
    assert len(set(first) & set(rest)) == 0
    assert len(rest) - len(set(rest)) < 3
    assert sorted(other_epoch) != other_epoch or not shuffle
