"""What a launcher has started several times doesn't search in each of its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import hpsearch
from hpsearch.errors import SweepError, TellError
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.launched import check_launched_once
from hpsearch.trial import TrialState
from tests.comm.launch.recorded_launchers import HYDRA, OPEN_MPI_4, OPEN_MPI_5, SRUN, SRUN_PMI2, SRUN_TWO_HOSTS
from tests.hpsearch.support.asking import ask, asked_sweep
from tests.hpsearch.support.command_line import call, write_sweep
from tests.hpsearch.support.warm import search_bowl

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}
BATCH_SCRIPT = {"SLURM_JOB_ID": "2", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0"}
ONE_TASK = SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}  # in a job of several


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what a launcher would have set."""

    def start(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return start


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (TORCHRUN, "rank 1 of 2 under torchrun.*: env -u WORLD_SIZE"),
        (SRUN, "rank 1 of 2 under srun.*: env -u SLURM_STEP_NUM_TASKS"),
        (SRUN_PMI2, "rank 1 of 2 under mpiexec"),
        (SRUN_TWO_HOSTS, "rank 1 of 4 under srun"),
        (OPEN_MPI_4, "rank 1 of 2 under Open MPI's mpirun.*: env -u OMPI_COMM_WORLD_SIZE"),
        (OPEN_MPI_5, "rank 1 of 2 under Open MPI's mpirun"),
        (HYDRA, "rank 1 of 2 under mpiexec.*: env -u PMI_SIZE"),
    ],
)
def test_one_of_several_ranks_is_refused(tmp_path, monkeypatch, started, variables, told):
    started(variables)
    with pytest.raises(SweepError, match=f"^search: must be called in one process, but this one is {told}"):
        search_bowl(tmp_path / "study")
    assert not (tmp_path / "study").exists()
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)  # as the message advises, but for those that nest
    for size in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(size, raising=False)
    check_launched_once("search")


def test_the_commands_are_refused_likewise(tmp_path, started, capsys):
    sweep = write_sweep(tmp_path / "sweep.yaml")
    study = search_bowl(tmp_path / "study", run_cap=2)
    started(SRUN)
    for command, *words in (
        ("run", sweep, "--dir", tmp_path / "new"),
        ("rerun", study.directory, "--dir", tmp_path / "new"),
        ("resume", study.directory),
        ("retry", study.directory),
        ("design", tmp_path / "data.csv", "--output", tmp_path / "new"),
    ):
        refused = call(capsys, command, *words)
        assert (refused.code, f"hpsearch {command}: must be called in one process" in refused.err) == (1, True)
    assert call(capsys, "plan", sweep).code == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("variables", [{}, BATCH_SCRIPT, ONE_TASK, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_a_process_that_is_alone_searches(tmp_path, started, variables):
    started(variables)
    assert search_bowl(tmp_path / "study", run_cap=1).count == 1


def test_a_rank_of_a_trial_may_search(tmp_path, started):
    def train(trial: hpsearch.RunningTrial) -> None:
        started(TORCHRUN)
        check_launched_once("search")
        trial.report({"loss": 0.5})

    study = hpsearch.search(
        train,
        parameters={"x": [0, 1]},
        metric="loss",
        max_iter=1,
        run_cap=1,
        backend="inline",
        directory=tmp_path / "study",
    )
    assert [row.state for row in study.trials] == [TrialState.COMPLETE]


def test_simulations_in_memory_run_in_each_rank(started):
    started(SRUN)
    assert search_bowl(":memory:", backend="simulated", resources={"workers": 1}, run_cap=2).count == 2


@pytest.fixture
def second_rank() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_ranks_that_train_apart_ask_for_trials_of_their_own(tmp_path, started):
    started(SRUN)
    assert ask(AskTell(asked_sweep(), directory=tmp_path / "lab")).number == 0


@pytest.mark.usefixtures("second_rank")
def test_ranks_that_train_together_ask_once(tmp_path):
    lab = AskTell(asked_sweep(), directory=tmp_path / "lab")
    with pytest.raises(TellError, match=r"rank 0 of the process group.*this is rank 1.*broadcast_object_list"):
        lab.ask()
