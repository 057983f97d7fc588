"""How ranks start NCCL together: all of them have a communicator in the end, or none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from hpsearch_comm.cuda import devices
from hpsearch_comm.cuda.nccl_wheels import installed_nccl_wheels
from hpsearch_comm.errors import NcclError, PeerLost
from hpsearch_comm.group import Group
from tests.comm.bare_nccl import BareNccl
from tests.comm.host_nccl import HostNccl, HostStream, HostWorld, run_ranks
from tests.comm.nccl_world import Ranks


@pytest.fixture
def ranks():
    ranks = Ranks(3)
    yield ranks
    ranks.close()


def start(ranks: Ranks, rank: int, timeout: float = 60.0) -> BareNccl | str:
    """Give the rank's communicator, or why there is none."""
    try:
        return ranks.communicator(rank, timeout)
    except NcclError as error:
        return str(error)


def test_all_ranks_have_a_communicator(ranks):
    communicators = run_ranks(3, lambda rank: start(ranks, rank))
    assert all(isinstance(communicator, BareNccl) for communicator in communicators)
    assert [nccl.log for nccl in ranks.nccl] == [["init"]] * 3


def test_where_one_rank_cannot_begin_all_are_told_and_abort(ranks):
    ranks.nccl[1].fails["ncclCommInitRankConfig"] = 1
    said = "NCCL hasn't started on rank 1: ncclCommInitRankConfig failed: 1"
    assert run_ranks(3, lambda rank: start(ranks, rank)) == [said] * 3
    assert [nccl.log for nccl in ranks.nccl] == [["init", "abort"], [], ["init", "abort"]]
    assert all(abort_state.error is None for abort_state in ranks.abort_states)


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
            for abort_state in ranks.abort_states:
                abort_state.fail(lost)
            return "died"
        with pytest.raises(PeerLost, match="rank 2 has died"):
            ranks.communicator(rank)
        return "told"

    assert run_ranks(3, work) == ["told", "told", "died"]
    assert [nccl.log for nccl in ranks.nccl[:2]] == [["init", "abort"]] * 2


@pytest.mark.parametrize("before", [None, ""])
def test_nccls_sockets_use_the_groups_interface_until_it_has_started(ranks, monkeypatch, before):
    if before is None:
        monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    else:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", before)
    run_ranks(3, lambda rank: ranks.communicator(rank, interface="eth7"))
    assert [nccl.interfaces for nccl in ranks.nccl] == [["=eth7"] * 3, ["=eth7"] * 2, ["=eth7"] * 2]
    assert os.environ.get("NCCL_SOCKET_IFNAME") == before


def test_a_start_that_fails_puts_the_environment_back(ranks, monkeypatch):
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    ranks.nccl[1].fails["ncclCommInitRankConfig"] = 1

    def failing(rank: int) -> None:
        with pytest.raises(NcclError):
            ranks.communicator(rank, interface="eth7")

    run_ranks(3, failing)
    assert "NCCL_SOCKET_IFNAME" not in os.environ


@pytest.mark.parametrize(("interface", "found"), [("eth7", "ib"), (None, "ib"), (None, None)])
def test_what_the_user_says_to_nccl_itself_counts(ranks, monkeypatch, interface, found):
    if found is None:
        monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    else:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", found)
    run_ranks(3, lambda rank: ranks.communicator(rank, interface=interface))
    assert {seen for nccl in ranks.nccl for seen in nccl.interfaces} == {found}
    assert os.environ.get("NCCL_SOCKET_IFNAME") == found


@pytest.mark.parametrize(
    ("interface", "name"),
    [("lo", "lo"), ("127.0.0.1", "lo"), ("127.0.0.0/8", "lo"), (None, None), ("127.0.0.3", None), ("nosuch0", None)],
)
def test_nccl_is_given_the_name_of_the_interface_that_the_user_has_chosen(monkeypatch, caplog, interface, name):
    given = {}
    monkeypatch.setattr(devices, "load_nccl", lambda: None)
    monkeypatch.setattr(devices, "CudaStream", HostStream)
    monkeypatch.setattr(devices, "NcclCommunicator", lambda *_, **named: given.update(named))
    with Group(0, 1) as group:
        options = replace(group._options, interface=interface)
        devices.CudaParts().communicator(options, torch.device("cpu"), lambda value: [value], group._abort_state, None)
    assert given["interface"] == name
    assert ("set NCCL_SOCKET_IFNAME" in caplog.text) == (interface is not None and name is None)


@pytest.mark.exhaustive
def test_nccl_itself_listens_on_the_interface_that_it_is_given():
    if not any(wheel.libraries for wheel in installed_nccl_wheels()):
        pytest.skip("no nvidia-nccl wheel is installed")
    script = (
        "from hpsearch_comm.cuda.nccl_interface import bound_to\n"
        "from hpsearch_comm.cuda.nccl_library import load_nccl\n"
        "with bound_to('lo'):\n"
        "    print(load_nccl().unique_id().hex())"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    # The id holds the address at which rank 0 waits for the others.
    assert socket.inet_aton("127.0.0.1") in bytes.fromhex(ran.stdout)
