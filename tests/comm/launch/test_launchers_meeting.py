"""Where the ranks of mpirun, mpiexec and srun meet, by the variables that these were seen to set."""

from __future__ import annotations

import functools
import re
import socket
import uuid

import pytest
from torch.distributed import DistBackendError, rendezvous  # type: ignore[attr-defined]

import hpsearch_comm.torch_backend  # noqa: F401
from hpsearch_comm import ConfigurationError, Group, RendezvousError
from hpsearch_comm.bootstrap.rendezvous import LocalRendezvous, MasterRendezvous, StoreRendezvous
from hpsearch_comm.environment import Arguments, read_environment
from tests.comm.forming import LOOPBACK, PATIENCE
from tests.comm.launch.launched import under_torchrun
from tests.comm.launch.recorded_launchers import (
    HYDRA,
    HYDRA_TWO_HOSTS,
    OPEN_MPI_4,
    OPEN_MPI_5,
    OPEN_MPI_TWO_HOSTS,
    SRUN,
    SRUN_PMI2,
    SRUN_TWO_HOSTS,
)
from tests.comm.meeting import outcomes

ONE_HOST = [OPEN_MPI_4, OPEN_MPI_5, SRUN, SRUN_PMI2]
PLACE = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": "29500"}
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_LOCALID", "PMI_FD")


def as_rank(rank: int, env: dict[str, str]) -> dict[str, str]:
    return env | {name: str(rank) for name in RANKS if name in env}


def local_job(env: dict[str, str]) -> str:
    arguments = read_environment(env)
    assert isinstance(arguments.rendezvous, LocalRendezvous)
    assert arguments.all_local
    return arguments.rendezvous.job


def place_of(env: dict[str, str]) -> tuple[str, int]:
    rendezvous = read_environment(env).rendezvous
    assert isinstance(rendezvous, MasterRendezvous)
    return rendezvous.host, rendezvous.port


@pytest.mark.parametrize("env", ONE_HOST)
def test_ranks_of_one_host_meet_there_without_a_port(env):
    assert [local_job(as_rank(rank, env)) for rank in (0, 1)] == [local_job(env)] * 2
    assert (read_environment(env).rank, read_environment(env).size) == (1, 2)


@pytest.mark.parametrize(
    ("env", "other"),
    [
        (OPEN_MPI_5, {"PMIX_NAMESPACE": "prterun-node1-23826@2"}),
        # Open MPI 4 may name two jobs alike.
        (OPEN_MPI_4, {"PMIX_SERVER_URI4": "1910636544.0;tcp4://127.0.0.1:36994"}),
        (SRUN, {"SLURM_JOB_ID": "3"}),
        (SRUN, {"SLURM_STEP_ID": "1"}),
        (SRUN, {"SLURM_CLUSTER_NAME": "two"}),
        (SRUN, {"SLURM_RESTART_COUNT": "1"}),
        (SRUN_PMI2, {"SLURM_STEP_ID": "1", "PMI_JOBID": "2.1"}),
    ],
)
def test_two_jobs_of_a_host_have_two_places(env, other):
    assert local_job(env) != local_job(env | other)


@pytest.mark.parametrize(
    "env",
    [
        OPEN_MPI_TWO_HOSTS,
        {name: value for name, value in OPEN_MPI_4.items() if name != "PMIX_NAMESPACE"},
        {name: value for name, value in OPEN_MPI_4.items() if not name.startswith("PMIX_SERVER_URI")},
        HYDRA,  # as this process isn't below Hydra's daemon
        HYDRA_TWO_HOSTS,
        # In a step of srun whose tasks have PMI, mpiexec's ranks aren't srun's.
        SRUN_PMI2 | HYDRA,
        SRUN_PMI2 | HYDRA_TWO_HOSTS,
        SRUN | {"PMI_SIZE": "2", "PMI_RANK": "1"},
        {name: value for name, value in SRUN.items() if name != "SLURM_JOB_ID"},
        {name: value for name, value in SRUN_TWO_HOSTS.items() if name != "SLURM_STEP_NODELIST"},
    ],
)
def test_where_no_place_follows_the_user_is_asked_for_it(env):
    with pytest.raises(ConfigurationError, match=r"expected MASTER_ADDR and MASTER_PORT to be set, .* as by `"):
        read_environment(env)


@pytest.mark.parametrize("env", [*ONE_HOST, HYDRA, SRUN_TWO_HOSTS])
def test_what_the_user_or_torchrun_says_counts_first(env):
    assert place_of(env | PLACE) == (LOOPBACK, 29500)
    size = {"RANK": "1", "WORLD_SIZE": "4"}
    assert isinstance(read_environment(env | under_torchrun(**size)).rendezvous, StoreRendezvous)
    with pytest.raises(ConfigurationError, match=r"expected MASTER_PORT to be set, .* MASTER_ADDR=127.0.0.1, which"):
        read_environment(env | {"MASTER_ADDR": LOOPBACK})


def test_tasks_of_several_nodes_meet_on_the_first():
    host, port = place_of(SRUN_TWO_HOSTS)
    assert host == "na1"
    assert 20000 <= port < 32000
    assert place_of(as_rank(3, SRUN_TWO_HOSTS) | {"SLURM_NODEID": "1"}) == (host, port)
    # Steps that may run at once: of one job, and of jobs that follow each other.
    others = [{"SLURM_JOB_ID": job, "SLURM_STEP_ID": step} for job in "34567" for step in "01234"]
    assert len({place_of(SRUN_TWO_HOSTS | other) for other in others}) == len(others)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("na1", "na1"),
        ("na1,na2", "na1"),
        ("na[1-2]", "na1"),
        ("n[08-11,20],m[1-3]", "n08"),
        ("n[7,9]", "n7"),
        ("rack[0-1]n[01-10,12]-ib,login", "rack0n01-ib"),
        ("gpu-a.example,gpu-b.example", "gpu-a.example"),
    ],
)
def test_the_first_of_slurms_nodes(nodes, first):
    assert place_of(SRUN_TWO_HOSTS | {"SLURM_STEP_NODELIST": nodes})[0] == first


def test_jobs_of_several_nodes_with_one_secret_stay_apart():
    one = {**SRUN_TWO_HOSTS, "HPSEARCH_COMM_SECRET": "ab" * 32}
    secrets = [read_environment(env).secret for env in (one, as_rank(3, one), one | {"SLURM_STEP_ID": "1"})]
    assert secrets[0] == secrets[1] != secrets[2]
    assert secrets[0] != bytes.fromhex("ab" * 32)


def test_ranks_that_can_not_use_the_place_are_told_where_it_comes_from():
    """The names of Slurm's nodes may be no hosts', rank 0 may be on another one, and the port may be taken."""

    def fails_with(rank: int, nodes: str, words: str) -> None:
        env = as_rank(rank, SRUN_TWO_HOSTS) | {"SLURM_STEP_NODELIST": nodes, "HPSEARCH_COMM_SECRET": "ab" * 32}
        with pytest.raises(ConfigurationError, match=f"{words}.* made from srun's variables.* set both before srun"):
            Group(**read_environment(env).for_group({"start_timeout": 0.1}))

    fails_with(1, "no-such-host.invalid,na2", "as a name or address that this host can resolve")
    fails_with(0, "203.0.113.7,na2", "expected MASTER_ADDR to be an address of the host of rank 0")
    with socket.create_server(place_of(SRUN_TWO_HOSTS | {"SLURM_STEP_NODELIST": f"{LOOPBACK},na2"})):
        fails_with(0, f"{LOOPBACK},na2", "rank 0 can't listen on MASTER_PORT")
    with pytest.raises(ConfigurationError, match=r"HPSEARCH_COMM_SECRET to the same .* made from srun's variables"):
        read_environment(SRUN_TWO_HOSTS | {"SLURM_STEP_NODELIST": "203.0.113.7,na2"}).for_group({})


def of_a_job(env: dict[str, str]) -> dict[str, str]:
    """Return the variables with a job name that no other job of this host has, as launchers choose it."""
    return env | {"PMIX_NAMESPACE": uuid.uuid4().hex}


def group_of(arguments: Arguments, name: str = "") -> tuple[int, int, list[tuple[int, ...]]]:
    with Group(**arguments.for_group({"start_timeout": PATIENCE, "name": name})) as group:
        return group.rank, group.size, list(group.hosts)


def test_two_jobs_at_once_and_two_groups_of_a_job_meet_without_any_variable():
    """With a secret, too, which both jobs may have been given."""
    jobs = [of_a_job(env) for env in (OPEN_MPI_5, OPEN_MPI_5, {**OPEN_MPI_5, "HPSEARCH_COMM_SECRET": "ab" * 32})]
    jobs.append(of_a_job(jobs[-1]))
    for _ in range(2):
        ranks = {
            (number, rank, name): functools.partial(group_of, read_environment(as_rank(rank, job)), name)
            for number, job in enumerate(jobs)
            for rank in (0, 1)
            for name in ("one", "other")
        }
        assert outcomes(ranks) == {key: (key[1], 2, [(0, 1)]) for key in ranks}


def test_a_rank_that_never_comes_is_named_with_its_job():
    job = of_a_job(OPEN_MPI_5)
    arguments = read_environment(as_rank(0, job))
    for secret in (None, bytes(32)):
        with pytest.raises(RendezvousError, match=rf"rank 1 of 2 did not come .*{re.escape(job['PMIX_NAMESPACE'])}"):
            Group(**arguments.for_group({"start_timeout": 0.1, "secret": secret}))


def test_torchs_rendezvous_is_alone_without_a_launcher_and_takes_no_other_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *OPEN_MPI_5, *HYDRA, *SRUN):
        monkeypatch.delenv(name, raising=False)
    store, rank, size = next(rendezvous("launcher://"))
    assert (rank, size) == (0, 1)
    store.set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(DistBackendError, match=r"launcher:// takes rank and world_size from .*, got .*rank=1"):
        next(rendezvous("launcher://", 1, 2))
    for name, value in OPEN_MPI_TWO_HOSTS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistBackendError, match="expected MASTER_ADDR and MASTER_PORT to be set"):
        next(rendezvous("launcher://"))
