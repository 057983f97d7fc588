"""How ranks start NCCL together: all of them have a communicator in the end, or none."""

from __future__ import annotations

import pytest

from hpsearch_comm.cuda.nccl_communicator import NcclCommunicator
from hpsearch_comm.errors import NcclError, PeerLost
from tests.comm.host_nccl import HostNccl, HostWorld, run_ranks
from tests.comm.nccl_world import Ranks


@pytest.fixture
def ranks():
    ranks = Ranks(3)
    yield ranks
    ranks.close()


def start(ranks: Ranks, rank: int, timeout: float = 60.0) -> NcclCommunicator | str:
    """Give the rank's communicator, or why there is none."""
    try:
        return ranks.communicator(rank, timeout)
    except NcclError as error:
        return str(error)


def test_all_ranks_have_a_communicator(ranks):
    communicators = run_ranks(3, lambda rank: start(ranks, rank))
    assert all(isinstance(communicator, NcclCommunicator) for communicator in communicators)
    assert [nccl.log for nccl in ranks.nccl] == [["init"]] * 3


def test_where_one_rank_cannot_begin_all_are_told_and_abort(ranks):
    ranks.nccl[1].fails["ncclCommInitRankConfig"] = 1
    said = "NCCL hasn't started on rank 1: ncclCommInitRankConfig failed: 1"
    assert run_ranks(3, lambda rank: start(ranks, rank)) == [said] * 3
    assert [nccl.log for nccl in ranks.nccl] == [["init", "abort"], [], ["init", "abort"]]
    assert all(fate.error is None for fate in ranks.fates)


def test_where_it_fails_in_the_background_on_one_rank_all_are_told_and_abort(ranks):
    ranks.nccl[2].fails["ncclCommGetAsyncError"] = 3
    said = "NCCL hasn't started on rank 2: ncclCommInitRankConfig failed: 3"
    assert run_ranks(3, lambda rank: start(ranks, rank)) == [said] * 3
    assert [nccl.log for nccl in ranks.nccl] == [["init", "abort"]] * 3


def test_others_learn_that_rank_0_has_no_id(ranks):
    ranks.nccl[0].fails["ncclGetUniqueId"] = 2
    said = "NCCL hasn't started on rank 0: ncclGetUniqueId failed: 2"
    assert run_ranks(3, lambda rank: start(ranks, rank)) == [said] * 3
    assert [nccl.log for nccl in ranks.nccl] == [[]] * 3


def test_ranks_that_do_not_find_each_other_give_up(ranks):
    elsewhere = HostWorld(3)
    ranks.nccl[2] = HostNccl(elsewhere, 2)
    for said in run_ranks(3, lambda rank: start(ranks, rank, timeout=0.1)):
        assert isinstance(said, str)
        assert said.startswith("NCCL hasn't started on rank 0: it was still waiting for its peers after 0.1 s")
        assert "NCCL_SOCKET_IFNAME" in said
    assert [nccl.log for nccl in ranks.nccl] == [["init", "abort"]] * 3


def test_a_group_that_fails_meanwhile_ends_the_start(ranks):
    lost = PeerLost("rank 2 has died", 2)

    def work(rank: int) -> str:
        if rank == 2:
            ranks.gathering.of(2)([None, None])
            for fate in ranks.fates:
                fate.fail(lost)
            return "died"
        with pytest.raises(PeerLost, match="rank 2 has died"):
            ranks.communicator(rank)
        return "told"

    assert run_ranks(3, work) == ["told", "told", "died"]
    assert [nccl.log for nccl in ranks.nccl[:2]] == [["init", "abort"]] * 2
