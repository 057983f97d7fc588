from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import secrets
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm import ConfigurationError, Group, RendezvousError
from hpsearch_comm import environment as environment_module
from hpsearch_comm.bootstrap.rendezvous import KnownAddresses, MasterRendezvous, StoreRendezvous
from hpsearch_comm.environment import VARIABLES, Arguments, init, read_environment
from tests.comm.forming import PATIENCE
from tests.comm.launch.launched import launched, under_torchrun
from tests.comm.meeting import all_said, free_port, given_time, leaving_nothing, outcomes
from tests.forked import forked

SECRET = secrets.token_hex(32)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Take all variables that a launcher may have set out of this process's environment."""
    for name in os.environ:
        if name in launched() or name.startswith(("HPSEARCH_COMM_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_")):
            monkeypatch.delenv(name)
    return monkeypatch


def test_the_usual_variables_lead_to_rank_0():
    arguments = read_environment(launched())
    assert (arguments.rank, arguments.size, arguments.epoch) == (1, 4, 0)
    assert isinstance(arguments.rendezvous, MasterRendezvous)
    assert (arguments.rendezvous.host, arguments.rendezvous.port) == ("127.0.0.1", 29500)
    assert arguments.secret is None
    assert arguments.options == {}
    assert not arguments.all_local


def test_torchrun_leads_to_its_store():
    arguments = read_environment(under_torchrun())
    assert isinstance(arguments.rendezvous, StoreRendezvous)
    assert (arguments.rendezvous.host, arguments.rendezvous.port) == ("127.0.0.1", 29500)
    assert "job 7" in arguments.rendezvous.prefix
    assert "job 7" in arguments.meeting
    assert arguments.epoch == 2
    assert arguments.all_local


def test_a_torchrun_that_keeps_its_store_to_itself_leads_to_rank_0():
    assert isinstance(
        read_environment(under_torchrun(TORCHELASTIC_USE_AGENT_STORE="False")).rendezvous, MasterRendezvous
    )


def test_several_agents_count_restarts_apart_so_that_none_counts():
    arguments = read_environment(under_torchrun(GROUP_WORLD_SIZE="2", LOCAL_WORLD_SIZE="2"))
    assert arguments.epoch == 0
    assert not arguments.all_local


def test_an_ipv6_address_may_stand_in_brackets():
    place = read_environment(launched(MASTER_ADDR="[::1]")).rendezvous
    assert place is not None
    assert place.host == "::1"


def test_our_own_variables_are_arguments_of_the_group():
    arguments = read_environment(
        launched(
            HPSEARCH_COMM_SECRET=SECRET,
            HPSEARCH_COMM_INTERFACE="eth1",
            HPSEARCH_COMM_HOST="left",
            HPSEARCH_COMM_TIMEOUT="2.5",
            HPSEARCH_COMM_START_TIMEOUT="120",
            HPSEARCH_COMM_HEARTBEAT_TIMEOUT="20",
            HPSEARCH_COMM_ALGORITHM="ring",
            HPSEARCH_COMM_TRANSPORT="tcp",
            HPSEARCH_COMM_STREAMS="2",
            HPSEARCH_COMM_CUDA="host",
            HPSEARCH_COMM_TIMELINE="trace.json",
        )
    )
    assert arguments.secret == bytes.fromhex(SECRET)
    assert SECRET not in repr(arguments)
    assert str(arguments.secret) not in repr(arguments)
    assert arguments.options == {
        "interface": "eth1",
        "host": "left",
        "timeout": 2.5,
        "start_timeout": 120.0,
        "heartbeat_timeout": 20.0,
        "algorithm": "ring",
        "transport": "tcp",
        "streams": 2,
        "cuda": "host",
        "timeline": "trace.json",
    }
    parameters = inspect.signature(Group).parameters
    assert {"secret", *arguments.options} <= parameters.keys()
    names = {name.removeprefix("HPSEARCH_COMM_").lower() for name in VARIABLES}
    # The library is loaded once for all groups of a process, and the launcher speaks to a process.
    assert names - {"nccl", "elastic"} == {"secret", *arguments.options}
    assert environment_module.__doc__ is not None
    assert all(name in environment_module.__doc__ for name in VARIABLES)


def test_without_variables_it_is_a_group_of_one():
    assert read_environment({"PATH": "/bin"}) == Arguments()
    assert read_environment(dict.fromkeys(launched(), " ")) == Arguments()
    assert read_environment({"HPSEARCH_COMM_ALGORITHM": "naive"}).options == {"algorithm": "naive"}


def test_one_rank_needs_no_place_to_meet():
    arguments = read_environment({"RANK": "0", "WORLD_SIZE": "1"})
    assert (arguments.rank, arguments.size, arguments.rendezvous) == (0, 1, None)
    assert read_environment(launched(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")).rendezvous is None


@pytest.mark.parametrize(
    ("absent", "named"),
    [
        (("MASTER_PORT",), "expected MASTER_PORT to be set, since RANK=1, WORLD_SIZE=4, MASTER_ADDR=127.0.0.1"),
        (("MASTER_ADDR", "MASTER_PORT"), "expected MASTER_ADDR and MASTER_PORT to be set"),
        (("RANK",), "expected RANK to be set"),
        (("WORLD_SIZE",), "expected WORLD_SIZE to be set"),
        (("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "expected RANK and WORLD_SIZE to be set"),
    ],
)
def test_what_is_missing_is_named(absent, named):
    with pytest.raises(ConfigurationError) as error:
        read_environment(launched(**dict.fromkeys(absent)))
    assert named in str(error.value)
    assert "or none of them for a group of one" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("RANK", "4", "from 0 to 3 (WORLD_SIZE - 1), got '4'"),
        ("RANK", "-1", "from 0 to 3 (WORLD_SIZE - 1), got '-1'"),
        ("RANK", "one", "a whole number from 0 to 3 (WORLD_SIZE - 1), got 'one'"),
        ("RANK", "1.0", "got '1.0'"),
        ("RANK", "0_1", "got '0_1'"),
        ("RANK", "\N{ARABIC-INDIC DIGIT ONE}", "a whole number"),
        ("RANK", "1" * 5000, "a whole number"),
        ("WORLD_SIZE", "0", "a whole number from 1 to"),
        ("WORLD_SIZE", "", "to be set"),
        ("MASTER_PORT", "0", "a whole number from 1 to 65535, got '0'"),
        ("MASTER_PORT", "65536", "a whole number from 1 to 65535, got '65536'"),
        ("MASTER_PORT", "http", "a whole number from 1 to 65535, got 'http'"),
        ("HPSEARCH_COMM_SECRET", "ab" * 31, "64 hexadecimal digits, got 62 characters"),
        ("HPSEARCH_COMM_TIMEOUT", "0", "a number of seconds above 0, such as 300, got '0'"),
        ("HPSEARCH_COMM_TIMEOUT", "-3", "a number of seconds above 0"),
        ("HPSEARCH_COMM_TIMEOUT", "nan", "a number of seconds above 0"),
        ("HPSEARCH_COMM_START_TIMEOUT", "inf", "a number of seconds above 0"),
        ("HPSEARCH_COMM_START_TIMEOUT", "30s", "a number of seconds above 0, such as 300, got '30s'"),
        ("HPSEARCH_COMM_HEARTBEAT_TIMEOUT", "0", "a number of seconds above 0"),
        ("HPSEARCH_COMM_ALGORITHM", "rings", "butterfly, hierarchical, naive, got 'rings'; did you mean ring?"),
        ("HPSEARCH_COMM_TRANSPORT", "infiniband", "one of auto, tcp, got 'infiniband'"),
        ("HPSEARCH_COMM_CUDA", "ncl", "one of auto, nccl, host, got 'ncl'; did you mean nccl?"),
        ("HPSEARCH_COMM_STREAMS", "0", "a whole number from 1 to 64, got '0'"),
    ],
)
def test_a_bad_value_is_named_with_what_it_must_be(name, value, expected):
    with pytest.raises(ConfigurationError) as error:
        read_environment(launched(**{name: value}))
    assert f"expected {name} to be" in str(error.value) or "to be set" in expected
    assert expected in str(error.value)


def test_a_variable_that_is_none_of_ours_is_pointed_out(caplog):
    with caplog.at_level(logging.WARNING):
        read_environment({"HPSEARCH_COMM_TIMOUT": "3"})
    assert "HPSEARCH_COMM_TIMOUT is no variable of hpsearch_comm; did you mean HPSEARCH_COMM_TIMEOUT?" in caplog.text


def test_a_script_by_itself_gets_a_group_of_one(bare):
    with init(timeout=3.0) as group:
        assert (group.rank, group.size, group.hosts) == (0, 1, ((0,),))
        assert group.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]


def test_an_argument_that_group_does_not_have_is_refused(bare):
    with pytest.raises(TypeError, match="time_out"):
        init(time_out=3.0)
    with pytest.raises(ConfigurationError, match="start_timeout to be a number of seconds above 0, got -1"):
        read_environment(launched()).for_group({"start_timeout": -1})


def as_ranks(size: int, **variables: str) -> dict[int, Any]:
    """Make a group from these variables in each of several threads, and sum the ranks with it."""
    port = str(free_port())

    def run(rank: int) -> float:
        env = launched(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_PORT=port, **variables)
        overrides = {"start_timeout": PATIENCE, "name": "both"}
        with Group(**read_environment(env).for_group(overrides)) as group:
            assert (group.rank, group.size, group.hosts) == (rank, size, (tuple(range(size)),))
            return group.allreduce(torch.tensor([float(rank)]), op="sum").item()

    return outcomes({rank: functools.partial(run, rank) for rank in range(size)})


def test_ranks_of_one_user_agree_on_a_secret():
    with leaving_nothing():
        assert as_ranks(3) == dict.fromkeys(range(3), 3.0)


def test_ranks_may_be_given_a_secret():
    with leaving_nothing():
        assert as_ranks(3, HPSEARCH_COMM_SECRET=SECRET) == dict.fromkeys(range(3), 3.0)


def test_what_the_caller_brings_counts_in_place_of_the_environment():
    arguments = read_environment(launched(HPSEARCH_COMM_TIMEOUT="5", HPSEARCH_COMM_ALGORITHM="ring"))
    brought = {"secret": bytes(32), "timeout": 7.0, "start_timeout": 0.5}
    given = arguments.for_group(brought)
    assert given.pop("deadline") <= time.monotonic() + 0.5
    assert given == {
        "rank": 1,
        "size": 4,
        "rendezvous": arguments.rendezvous,
        "epoch": 0,
        "algorithm": "ring",
        **brought,
    }
    # With a place of one's own, there is nobody to agree on a secret with.
    elsewhere = KnownAddresses([])
    assert arguments.for_group({"rendezvous": elsewhere})["rendezvous"] is elsewhere


def test_secret_and_connections_share_one_deadline(monkeypatch):
    began = time.monotonic()
    monkeypatch.setattr(environment_module, "agree_on_secret", lambda *_arguments, **_options: bytes(32))
    arguments = read_environment(launched(RANK="0", MASTER_PORT=str(free_port()))).for_group(
        {"start_timeout": PATIENCE}
    )
    assert began + PATIENCE <= arguments["deadline"] <= time.monotonic() + PATIENCE
    # As if the ranks had taken that long to agree on the secret.
    arguments["deadline"] = time.monotonic() + 0.1
    with pytest.raises(RendezvousError, match=r"ranks 1 to 3 of 4 did not come.* waited \d+\.\d s"):
        Group(**arguments)


def test_ranks_that_never_come_are_named():
    port = str(free_port())

    def meet(soon: float) -> dict[int, Any]:
        ranks = {rank: read_environment(launched(RANK=str(rank), MASTER_PORT=port)) for rank in (0, 2)}
        return outcomes(
            {rank: functools.partial(read.for_group, {"start_timeout": soon}) for rank, read in ranks.items()}
        )

    found = given_time(meet, all_said("ranks 1 and 3 of 4 did not come"))
    for error in found.values():
        assert isinstance(error, RendezvousError)
        assert "ranks 1 and 3 of 4 did not come" in str(error)


def sum_of_ranks(channel: Connection, env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    with comm.init() as group:
        total = group.allreduce(torch.tensor([group.rank + 1.0]), op="sum").item()
        channel.send((total, group.local_rank, group.local_size))


def test_processes_need_nothing_but_the_usual_variables(bare):
    port, size = str(free_port()), 2
    with contextlib.ExitStack() as ranks:
        channels = []
        for rank in range(size):
            variables = launched(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_PORT=port)
            channels.append(ranks.enter_context(forked(sum_of_ranks, {**os.environ, **variables}))[1])
        assert [channel.recv() for channel in channels] == [(3.0, rank, size) for rank in range(size)]


def test_the_package_offers_it():
    assert comm.init is init
