from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hpsearch.objective import Metric, Objective
from hpsearch.task import Result
from hpsearch.trainable import checkpoints
from hpsearch.trial import Segment
from hpsearch.worker.gang import Board, Ending, GangStore, RankInfo, StoreLostError
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.worker import Worker
from tests.hpsearch.support.segments import TRIAL, Listening, wait_until

SH = ("sh", "${program}")
PYTHON = ("${interpreter}", "${program}")
SECRET = bytes(range(32))


class Gang:
    """Two workers on one script: a thread each, as only the scripts compute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mine"
        self.root = folder / "study"
        self.folder.mkdir()
        self.workers: list[Worker] = []

    def open(self, text: str, command: tuple[str, ...] = SH) -> None:
        """Write the script, and make the workers."""
        (self.folder / "script").write_text(textwrap.dedent(text))
        line = CommandLine("script", command, str(self.folder))
        job = Job(str(self.root), "sweep", line, (), Objective(Metric("loss")), None, 1, widest=2)
        self.workers = [Worker(job, self.root, node="a", interface="127.0.0.1") for _ in range(2)]

    def run(
        self,
        end: int | None,
        cut_at: Sequence[int | None] = (None, None),
        start: int = 0,
        checkpoint: str | None = None,
    ) -> list[Result]:
        """Run a segment as the attempt of its start's number plus one; return the ranks' results."""
        part = Segment(TRIAL.number, start, end, checkpoint, start + 1, width=2)
        addresses = tuple(worker.address for worker in self.workers)
        results: dict[int, Result] = {}

        def work(rank: int) -> None:
            rank_info = RankInfo(rank, addresses, ("a", "a"), SECRET)
            results[rank] = self.workers[rank].run(TRIAL, part, Listening(cut_at[rank]), rank_info)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[rank] for rank in range(2)]

    def output(self, rank: int, attempt: int = 1) -> str:
        """Read what a rank printed."""
        directory = self.root / "trials" / "00003" / str(attempt)
        return (directory / ("" if rank == 0 else f"rank-{rank}") / "output.log").read_text("utf-8")


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    made = Gang(tmp_path)
    yield made
    for worker in made.workers:
        worker.close()


def kinds(results: list[Result]) -> list[str | None]:
    return [None if result.failure is None else result.failure.kind for result in results]


# Scripts in any language.

COUNTS = """
    i=$HPSEARCH_START
    while [ "$i" -lt "$HPSEARCH_END" ]; do
        i=$((i + 1))
        echo "$i" > "$HPSEARCH_DIRECTORY/count"
        echo "{\\"loss\\": $i, \\"checkpoint\\": \\"count\\"}" >> "$HPSEARCH_REPORTS"
    done
"""


def test_each_rank_runs_the_script_and_the_lines_of_rank_0_count(gang: Gang) -> None:
    gang.open(COUNTS)
    first, second = gang.run(2)
    assert kinds([first, second]) == [None, None]
    assert [report.metrics for report in first.reports] == [{"loss": 1.0}, {"loss": 2.0}]
    assert (first.checkpoint, second.checkpoint) == ("trials/00003/1/hpsearch-checkpoint-2", None)
    assert (second.iteration, second.reports) == (2, ())


def test_a_script_finds_the_others_in_its_environment(gang: Gang) -> None:
    gang.open(
        """
        echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GROUP_RANK of $GROUP_WORLD_SIZE"
        echo "$MASTER_ADDR $MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE $HPSEARCH_COMM_HOST $HPSEARCH_COMM_INTERFACE"
        echo "$HPSEARCH_COMM_SECRET"
        [ "$RANK" = 1 ] || echo '{"loss": 1}' >> "$HPSEARCH_REPORTS"
        """
    )
    host, _, port = gang.workers[0].address.rpartition(":")
    assert kinds(gang.run(1)) == [None, None]
    for rank in range(2):
        assert gang.output(rank).splitlines() == [
            f"{rank} of 2, {rank} of 2, 0 of 1",
            f"{host} {port} True a 127.0.0.1",
            SECRET.hex(),
        ]
    assert gang.workers[0].address != f"{host}:{port}"


def test_a_script_whose_trial_may_grow_finds_itself_alone_meanwhile(gang: Gang) -> None:
    gang.open('echo "$RANK $WORLD_SIZE"; echo \'{"loss": 1}\' >> "$HPSEARCH_REPORTS"')
    result = gang.workers[0].run(TRIAL, Segment(TRIAL.number, 0, 1, None, 1), Listening())
    assert (result.failure, gang.output(0)) == (None, "0 1\n")


def test_a_script_is_no_rank_of_what_has_started_the_workers(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    for name in sizes:
        monkeypatch.setenv(name, "4")
    gang.open(f'''echo "{" ".join(f"${name}" for name in sizes)}"; echo '{{"loss": 1}}' >> "$HPSEARCH_REPORTS"''')
    result = gang.workers[0].run(TRIAL, Segment(TRIAL.number, 0, 1, None, 1), Listening())
    assert (result.failure, gang.output(0)) == (None, "  \n")


WAITS = """
    [ "$RANK" = 1 ] && exec sleep 600
    while true; do
        echo '{"loss": 1}' >> "$HPSEARCH_REPORTS"
        sleep 0.01
    done
"""


def test_a_cut_ends_the_scripts_of_all_ranks(gang: Gang) -> None:
    gang.open(WAITS)
    results = gang.run(None, cut_at=[2, None])
    assert kinds(results) == [None, None]
    assert (results[0].iteration >= 2, results[0].cut) == (True, True)


def test_the_end_of_the_segment_ends_the_scripts_of_all_ranks(gang: Gang) -> None:
    gang.open(WAITS)
    results = gang.run(3)
    assert kinds(results) == [None, None]
    assert (results[0].iteration, results[0].cut) == (3, False)


def test_a_script_that_fails_as_rank_0s_is_ended_hasnt_failed(gang: Gang) -> None:
    gang.open(
        """
        if [ "$RANK" = 1 ]; then
            until [ -s ../pid ]; do sleep 0.001; done
            trap 'exit 1' TERM
            while kill -0 "$(cat ../pid)"; do sleep 0.001; done
            exit 1
        fi
        echo $$ > ../pid.part && mv ../pid.part ../pid
        while true; do
            echo '{"loss": 1}' >> "$HPSEARCH_REPORTS"
            sleep 0.01
        done
        """
    )
    results = gang.run(None, cut_at=[2, None])
    assert kinds(results) == [None, None]
    assert results[0].cut


@pytest.mark.parametrize("rank", [0, 1])
def test_a_script_that_fails_ends_the_others(gang: Gang, rank: int) -> None:
    gang.open(
        f"""
        echo '{{"loss": 1}}' >> "$HPSEARCH_REPORTS"
        [ "$RANK" = {rank} ] || exec sleep 600
        echo "no such file"
        exit 3
        """
    )
    results = gang.run(2)
    assert kinds(results) == ["raised" if number == rank else "peer" for number in range(2)]
    failures = [result.failure for result in results if result.failure is not None]
    assert failures[rank].message == "the script exited with status 3: no such file"
    assert failures[1 - rank].message == f"the script of rank {rank} failed first: {failures[rank].message}"


def test_a_line_that_breaks_the_contract_ends_the_others(gang: Gang) -> None:
    gang.open(
        """
        [ "$RANK" = 1 ] && exec sleep 600
        echo '{"loss": "much"}' >> "$HPSEARCH_REPORTS"
        exec sleep 600
        """
    )
    assert kinds(gang.run(2)) == ["contract", "peer"]


def test_closed_workers_leave_no_port_open(gang: Gang) -> None:
    def ports() -> set[int]:
        connections = psutil.Process().net_connections("tcp")
        return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}

    before = ports()
    gang.open(COUNTS)
    gang.run(1)
    opened = [int(worker.address.rpartition(":")[2]) for worker in gang.workers]
    assert set(opened) <= ports()
    for worker in gang.workers:
        worker.close()
    wait_until(lambda: ports() <= before)


def test_a_worker_of_rank_0_that_cant_be_reached_is_a_lost_peer(gang: Gang) -> None:
    gang.open(COUNTS)
    address = gang.workers[0].address
    gang.workers[0].close()
    rank_info = RankInfo(1, (address, gang.workers[1].address), ("a", "a"), SECRET)
    result = gang.workers[1].run(TRIAL, Segment(TRIAL.number, 0, 1, None, 1, 2), Listening(), rank_info)
    assert result.failure is not None
    assert result.failure.kind == "peer"
    assert f"rank 0's worker can't be reached at {address}" in result.failure.message


def test_the_first_ending_on_the_board_stands() -> None:
    store = GangStore("", "127.0.0.1")
    rank_infos = [RankInfo(rank, (store.address, "x"), ("", ""), SECRET) for rank in range(2)]
    zero, one = (store.board(rank_info) for rank_info in rank_infos)
    assert (zero.read(), one.read()) == (None, None)
    first = Ending(1, True, 'it said "no"')
    assert one.post(first) == first
    assert zero.post(Ending(0, False)) == first
    assert (zero.read(), one.read()) == (first, first)
    del zero
    store.renew()
    assert one.read() == first  # the others may still be leaving
    assert store.board(rank_infos[0]).read() is None
    store.close()
    for _ in range(2):
        with pytest.raises(StoreLostError, match="the worker of rank 0 is gone"):
            one.post(first)


def test_a_script_by_itself_has_a_board_without_readers() -> None:
    board = Board(None)
    ending = Ending(0, True, "no")
    assert (board.read(), board.post(ending)) == (None, ending)


# Python scripts.

WITH_TRIAL = """
    import hpsearch, os, torch
    trial = hpsearch.current_trial()
    group = trial.group
    print(trial.rank, trial.world_size, group.rank, group.size, group.hosts)
    for iteration in trial.iterations():
        total = group.allreduce(torch.tensor([float(trial.rank + iteration)]), op="sum")
        trial.report({"loss": total}, checkpoint=lambda: {"drawn": torch.rand(1), "at": iteration})
        torch.rand(trial.rank)
"""


@pytest.mark.exhaustive
def test_a_python_script_has_the_group_and_is_cut_on_all_ranks(gang: Gang) -> None:
    gang.open(WITH_TRIAL, PYTHON)
    results = gang.run(60000, cut_at=[2, None])
    assert kinds(results) == [None, None], [gang.output(rank) for rank in range(2)]
    reached = results[0].iteration
    assert [(result.iteration, result.cut) for result in results] == [(reached, True)] * 2
    assert [report.metrics["loss"] for report in results[0].reports[:2]] == [3.0, 5.0]
    assert results[0].checkpoint is not None
    assert checkpoints.read_state(gang.root / results[0].checkpoint)["at"] == reached
    assert [gang.output(rank) for rank in range(2)] == [f"{rank} 2 {rank} 2 ((0, 1),)\n" for rank in range(2)]


@pytest.mark.exhaustive  # one in Python is told what ended another as one in any language is
def test_a_python_script_that_is_killed_is_lost_to_the_others(gang: Gang) -> None:
    gang.open(
        """
        import os, signal
        import hpsearch
        trial = hpsearch.current_trial()
        for iteration in trial.iterations():
            if trial.rank == 1 and iteration == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            trial.report({"loss": 1.0})
        """,
        PYTHON,
    )
    results = gang.run(5)
    assert kinds(results) == ["peer", "raised"]
    assert results[1].failure is not None
    assert results[1].failure.message.startswith("the script was killed by SIGKILL")
    assert results[0].iteration == 2  # reported before the others were asked


SUMS = """
    import json, os, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    with open(os.environ["HPSEARCH_REPORTS"], "a") as file:
        file.write(json.dumps({"loss": tensor.item()}) + "\\n")
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.exhaustive
def test_torch_distributed_works_in_a_script(gang: Gang) -> None:
    gang.open(SUMS, PYTHON)
    first, second = gang.run(1)
    assert kinds([first, second]) == [None, None], [gang.output(rank) for rank in range(2)]
    assert first.reports[0].metrics == {"loss": 2.0}


@pytest.mark.exhaustive
def test_torch_distributed_works_in_a_script_of_one_rank_too(gang: Gang) -> None:
    gang.open(SUMS, PYTHON)
    alone = gang.workers[0].run(replace(TRIAL), Segment(TRIAL.number, 0, 1, None, 9), Listening())
    assert alone.failure is None
    assert alone.reports[0].metrics == {"loss": 1.0}
