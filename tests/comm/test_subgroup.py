"""Groups of some ranks of a group: who is in them, that they are groups like any other, and who disagrees."""

from __future__ import annotations

import gc
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch_comm as comm
from hpsearch_comm.subgroup import check_members, related_secret
from tests.comm.thread_ranks import run_ranks

WAYS: dict[str, dict[str, Any]] = {
    "shared": {},
    "tcp": {"transport": "tcp"},
    "hosts": {"hosts": ["a", "a", "b", "b"]},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_subset_is_a_group_of_its_own_in_the_order_given(way):
    subsets = [list(ranks) for size in (1, 2, 3, 4) for ranks in itertools.combinations(range(4), size)]
    subsets += [[3, 1], [2, 0, 3], [3, 2, 1, 0]]

    def work(group: comm.Group) -> None:
        for ranks in subsets:
            subgroup = group.subgroup(ranks)
            if group.rank not in ranks:
                assert subgroup is None
                continue
            assert subgroup is not None
            with subgroup:
                assert (subgroup.rank, subgroup.size) == (ranks.index(group.rank), len(ranks))
                mine = torch.tensor([float(group.rank)])
                assert subgroup.allgather(mine).tolist() == ranks
                assert subgroup.allreduce(mine, "sum").item() == sum(ranks)
                assert subgroup.broadcast(torch.tensor([group.rank]), root=len(ranks) - 1).item() == ranks[-1]

    run_ranks(4, work, **WAYS[way])


def test_it_knows_its_hosts():
    def work(group: comm.Group) -> object:
        subgroup = group.subgroup([3, 1, 0])
        return subgroup and (subgroup.hosts, subgroup.local_rank)

    hosts = ((0,), (1, 2))
    assert run_ranks(4, work, hosts=["a", "a", "b", "b"]) == [(hosts, 1), (hosts, 0), None, (hosts, 0)]


def test_disjoint_subgroups_the_group_itself_and_subgroups_of_subgroups_dont_meet():
    def work(group: comm.Group) -> list[float]:
        pairs = [group.subgroup([0, 1]), group.subgroup([2, 3])]
        pair = pairs[group.rank // 2]
        assert pair is not None
        assert pairs[1 - group.rank // 2] is None
        alone = pair.subgroup([0])
        whole = torch.full((70_000,), float(group.rank))
        mine = whole.clone()
        # In another order on every rank: they are independent.
        calls = [(group, whole), (pair, mine)]
        handles = [on.allreduce_async(tensor, "sum") for on, tensor in (calls if group.rank % 2 else calls[::-1])]
        for handle in handles:
            handle.wait()
        assert (alone is None) == (pair.rank == 1)
        if alone is not None:
            assert alone.allreduce(torch.ones(3), "sum").tolist() == [1, 1, 1]
        return [whole[-1].item(), mine[-1].item()]

    assert run_ranks(4, work) == [[6.0, 1.0], [6.0, 1.0], [6.0, 5.0], [6.0, 5.0]]


def test_it_outlives_its_group_and_its_end_is_its_own():
    def work(group: comm.Group) -> None:
        parent = group.duplicate()
        subgroup = parent.subgroup([2, 0])
        parent.close()
        if subgroup is not None:
            assert subgroup.allreduce(torch.ones(1), "sum").item() == 2
            with pytest.raises(comm.CommError):
                subgroup.allreduce(torch.ones(1 + subgroup.rank))
        assert group.allreduce(torch.ones(1), "sum").item() == 3

    run_ranks(3, work)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_ranks_that_name_others_are_shown_both_lists(transport):
    def work(group: comm.Group) -> str:
        with pytest.raises(comm.MismatchError) as caught:
            group.subgroup([0, 1] if group.rank else [0, 2])
        with pytest.raises(comm.MismatchError):
            group.barrier()
        return str(caught.value)

    for message in run_ranks(3, work, transport=transport):
        assert "[0, 1]" in message
        assert "[0, 2]" in message


def test_the_order_is_part_of_the_list():
    def work(group: comm.Group) -> None:
        with pytest.raises(comm.MismatchError, match=r"for ranks \[(0, 1|1, 0)\]"):
            group.subgroup([0, 1] if group.rank else [1, 0])

    run_ranks(2, work)


@pytest.mark.parametrize("ranks", [[], [3], [-1], [0, 0], [0, 1.5], ["0"], [True], 1, None, "01"])
def test_what_is_no_list_of_ranks_is_refused_and_the_group_goes_on(ranks):
    def work(group: comm.Group) -> None:
        with pytest.raises(comm.UsageError, match="must have one or more ranks from 0 to 2, each of them once, got"):
            group.subgroup(ranks)
        subgroup = group.subgroup(torch.tensor([2, 1]))  # type: ignore[arg-type]
        if subgroup is not None:
            assert subgroup.allgather_object(group.rank) == [2, 1]

    run_ranks(3, work)


@given(st.integers(1, 9), st.lists(st.integers(-2, 10), max_size=10))
def test_exactly_the_lists_of_different_ranks_are_taken(size, ranks):
    good = bool(ranks) and len(set(ranks)) == len(ranks) and all(0 <= rank < size for rank in ranks)
    if good:
        assert check_members(ranks, size) == ranks
    else:
        with pytest.raises(comm.UsageError):
            check_members(ranks, size)


@settings(max_examples=20)
@given(st.lists(st.text(max_size=5), min_size=2, unique=True))
def test_each_name_has_a_secret_of_its_own(names):
    secrets = {related_secret(bytes(range(32)), name) for name in names}
    assert len(secrets) == len(names)
    assert all(len(secret) == 32 for secret in secrets)


def test_a_subgroup_listens_where_its_group_does():
    def work(group: comm.Group) -> str:
        subgroup = group.subgroup([1, 0])
        assert subgroup is not None
        with subgroup, subgroup._listen() as listener:
            return listener.address.ip

    assert run_ranks(2, work) == ["127.0.0.1"] * 2


@pytest.mark.parametrize(
    ("algorithm", "hosts", "ranks", "taken"),
    [
        ("hierarchical", ["a", "a", "b"], [0, 2], "auto"),
        ("hierarchical", ["a", "a", "b"], [0, 1], "hierarchical"),
        ("direct", ["a", "a", "a"], [1, 2], "direct"),
        ("naive", ["a", "a", "b"], [0, 2], "naive"),
    ],
)
def test_a_forced_algorithm_is_taken_over_where_the_ranks_can_use_it(algorithm, hosts, ranks, taken):
    def work(group: comm.Group) -> str | None:
        subgroup = group.subgroup(ranks)
        return subgroup._options.algorithm if subgroup is not None else None

    found = run_ranks(3, work, hosts=hosts, algorithm=algorithm)
    assert found == [taken if rank in ranks else None for rank in range(3)]


def test_it_isnt_in_the_groups_timeline(tmp_path):
    def work(group: comm.Group) -> None:
        subgroup = group.subgroup([0])
        assert subgroup is None or not subgroup.timeline.on
        if subgroup is not None:
            subgroup.allreduce(torch.ones(3))

    run_ranks(2, work, timeline=str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.rank0.json").read_text())
    assert not [event for event in events if event["name"] == "allreduce"]


def test_a_forgotten_subgroup_gives_everything_back():
    def work(group: comm.Group) -> None:
        for ranks in ([0, 2], [1], [0, 1, 2]):
            group.subgroup(ranks)

    run_ranks(3, work)
    gc.collect()
    files, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    for _ in range(3):
        run_ranks(3, work)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    assert threading.active_count() == threads
