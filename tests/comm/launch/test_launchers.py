"""Ranks that mpirun, mpiexec or srun has started, each with the variables of its launcher."""

from __future__ import annotations

import pytest

from hpsearch_comm import ConfigurationError
from hpsearch_comm.bootstrap.rendezvous import MasterRendezvous, StoreRendezvous
from hpsearch_comm.environment import Arguments, read_environment
from tests.comm.launch.launched import launched, under_torchrun

MPIRUN = {
    "OMPI_UNIVERSE_SIZE": "8",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "2",
}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2", "PMI_FD": "9", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}
ALLOCATION = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NODELIST": "node[1-2]",
}
BATCH_SCRIPT = ALLOCATION | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
SHELL_OF_SALLOC = BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
SRUN = ALLOCATION | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}
PLACE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "env",
    [
        MPIRUN,
        HYDRA,
        SRUN,
        SRUN | {"PMI_SIZE": "4", "PMI_RANK": "2"},  # srun --mpi=pmi2
        BATCH_SCRIPT | MPIRUN,
        # The daemons of mpirun and mpiexec are tasks of srun, one on each other node.
        SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"} | MPIRUN,
        SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"} | HYDRA,
        SRUN | {"RANK": "2", "WORLD_SIZE": "4"},
        MPIRUN | {"WORLD_SIZE": "4"},
        SRUN | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    ],
)
def test_other_launchers_say_which_rank_a_process_is(env, caplog):
    arguments = read_environment(env | PLACE)
    assert (arguments.rank, arguments.size) == (2, 4)
    assert isinstance(arguments.rendezvous, MasterRendezvous)
    assert (arguments.rendezvous.host, arguments.rendezvous.port) == ("127.0.0.1", 29500)
    assert not caplog.text


@pytest.mark.parametrize(
    ("env", "named"),
    [
        (MPIRUN, "under Open MPI's mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"),
        (HYDRA, "under mpiexec (PMI_RANK, PMI_SIZE)"),
        (SRUN, "under srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)"),
        (SHELL_OF_SALLOC | MPIRUN, "under Open MPI's mpirun"),
        (SRUN | {"SLURM_STEP_NODELIST": "node[1-2]", "PMI_SIZE": "4", "PMI_RANK": "2"}, "under mpiexec"),
    ],
)
@pytest.mark.parametrize("absent", [("MASTER_ADDR",), ("MASTER_PORT",), ("MASTER_ADDR", "MASTER_PORT")])
def test_a_launchers_rank_that_cannot_find_the_others_is_told_what_to_set(env, named, absent):
    place = {name: value for name, value in PLACE.items() if name not in absent}
    with pytest.raises(ConfigurationError) as error:
        read_environment(env | place)
    said = str(error.value)
    assert said.startswith(f"expected {' and '.join(absent)} to be set, since this process is rank 2 of 4 {named}")
    assert "as by `" in said
    assert "To have it train by itself, take " in said


@pytest.mark.parametrize("env", [MPIRUN, HYDRA, SRUN])
@pytest.mark.parametrize(
    "ours", [{"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "1", "WORLD_SIZE": "4"}, {"WORLD_SIZE": "2"}, {"RANK": "3"}]
)
def test_a_rank_that_is_another_one_under_its_launcher_is_refused(env, ours):
    with pytest.raises(
        ConfigurationError, match=r"since this process is rank 2 of 4 under .*: unset RANK and WORLD_SIZE"
    ):
        read_environment(env | PLACE | ours)


@pytest.mark.parametrize("env", [MPIRUN, HYDRA, SRUN])
def test_what_torchrun_says_counts_before_what_has_started_it(env, caplog):
    arguments = read_environment(env | under_torchrun())
    assert (arguments.rank, arguments.size) == (1, 4)
    assert isinstance(arguments.rendezvous, StoreRendezvous)
    assert not caplog.text
    # One process of it may call mpirun; or several of it, of one process each, may not know of each other.
    for alone in ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, {"RANK": None, "WORLD_SIZE": None}):
        with pytest.raises(ConfigurationError, match="since this process is rank 2 of 4 under"):
            read_environment(env | under_torchrun(**alone, MASTER_ADDR=None))


def test_a_launcher_that_does_not_name_the_rank_is_refused():
    with pytest.raises(ConfigurationError, match="expected PMI_RANK to be set, since PMI_SIZE=4 is"):
        read_environment({"PMI_SIZE": "4"} | PLACE)
    with pytest.raises(ConfigurationError, match=r"RANK to be a whole number from 0 to 3 .*, got '4'"):
        read_environment({"PMI_SIZE": "4", "PMI_RANK": "4"} | PLACE)


def test_one_rank_of_a_launcher_is_a_group_of_one(caplog):
    for env in (MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "1"}):
        assert read_environment(env) == Arguments()
    assert not caplog.text


@pytest.mark.parametrize("env", [ALLOCATION, BATCH_SCRIPT, SHELL_OF_SALLOC])
def test_a_process_of_an_allocation_that_is_no_task_is_alone_and_told_so(env, caplog):
    assert read_environment(env) == Arguments()
    assert "SLURM_NTASKS is 4, but this process is no task of srun: it trains by itself" in caplog.text
    caplog.clear()
    assert read_environment(env | launched()).size == 4
    assert not caplog.text
