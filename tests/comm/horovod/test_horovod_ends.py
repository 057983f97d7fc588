"""How jobs of hpsearch_comm.horovod end, and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.comm.launch.launching import launching, script
from tests.comm.process_ranks import ProcessRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.comm.horovod.horovod_ends") as ranks:
        yield ranks


def results(ranks: ProcessRanks, size: int, function: str, *arguments: Any) -> list[Any]:
    outcomes = ranks.call(size, function, *arguments)
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


@pytest.mark.parametrize("when", ["at rest", "with a handle", "joined"])
def test_a_ranks_death_is_an_error_of_every_operation_on_the_others(ranks, when):
    outcomes = ranks.call(3, "one_dies", when)
    assert outcomes[1].code == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert len(outcome.result) == (3 if when == "joined" else 4)
        for text in outcome.result:
            assert "PeerLost: " in text
            assert "rank 1" in text


def test_a_rank_that_shuts_down_early_says_so_to_all(ranks):
    first, left, third = results(ranks, 3, "one_leaves")
    assert "rank 1 has left the job by hvd.shutdown() or its end" in left[0]
    for text, still in (first, third):
        assert "rank 1 has left" in text
        assert still


def test_threads_that_wait_are_told_of_a_shutdown(ranks):
    first, said = results(ranks, 2, "one_leaves_while_its_threads_wait")
    assert len(said) == 2
    for text in (*first, *said):
        assert "rank 1 has left" in text


def test_a_shutdown_never_hangs(ranks):
    assert results(ranks, 3, "all_leave_without_waiting") == ["left"] * 3


def test_removing_a_process_set_ends_what_is_under_way_in_it_alone(ranks):
    first, second, third = results(ranks, 3, "removed_under_way")
    assert "has left" in first
    assert "has left" in second
    assert third == ""


def test_a_forked_child_has_no_part_in_the_job(ranks):
    for said, total in results(ranks, 2, "a_child"):
        assert said.startswith("False a forked child, such as a worker of a data loader, has no part in the job")
        assert total == 2.0


def test_a_late_rank_is_waited_for_and_named_not_given_up(ranks):
    (total, said), (other, nothing) = results(ranks, 2, "one_is_late")
    assert (total, other, nothing) == (2.0, 2.0, [])
    assert said[:2] == [f"allreduce.late has waited {seconds} s for some of ranks [1]" for seconds in (0.3, 0.6)]


@pytest.mark.parametrize(("how", "name"), [("called", "allreduce.late"), ("joined", "join")])
def test_a_late_rank_is_given_up_where_the_user_wants_that_and_all_can_start_anew(ranks, how, name):
    first, second, third = results(ranks, 3, "one_is_given_up", how)
    ends = f"{name} has waited 0.5 s for some of ranks ["
    assert any(text.startswith(ends) for text in (first[0], third[0]))
    for text in (*first, *second, *third):
        assert "which ends the job (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)" in text


def test_jobs_follow_each_other(ranks):
    assert results(ranks, 3, "again_and_again") == [[0.0, 3.0, 6.0, 9.0, 12.0]] * 3


def test_a_process_set_of_an_earlier_job_is_none_of_this_one(ranks):
    for stale, other, said in results(ranks, 3, "stale_process_sets"):
        assert stale is None
        assert other == 1
        assert "has not been registered, or has been removed" in said


ENDS = """
    import sys
    import torch
    import hpsearch_comm.horovod as hvd

    hvd.init()
    print("sum", hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
    {end}
"""
PENDING = "hvd.allreduce_async(torch.ones(1), name='nobody waits')"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "end",
    [
        f"hvd.rank() or {PENDING}",
        "",
        PENDING,
        "hvd.rank() and hvd.shutdown()",
    ],
)
def test_a_script_that_just_ends_ends_well(tmp_path, end):
    with launching(tmp_path, "-np", "2", script(tmp_path, ENDS.format(end=end))) as run:
        out, err = run.communicate()
    assert run.process.returncode == 0, err
    assert (sorted(out.splitlines()), err) == (["[0] sum 2.0", "[1] sum 2.0"], "")


@pytest.mark.exhaustive
def test_the_traceback_of_the_rank_that_failed_comes_first_and_no_rank_hangs(tmp_path):
    end = "1 / hvd.rank()\n    hvd.allreduce(torch.ones(1))"
    with launching(tmp_path, "-np", "2", script(tmp_path, ENDS.format(end=end))) as run:
        _, err = run.communicate()
    assert run.process.returncode == 1
    assert err.splitlines()[0] == "[0] Traceback (most recent call last):"
    assert "[0] ZeroDivisionError: division by zero" in err
    assert "[1] hpsearch_comm.horovod.errors.HorovodInternalError: PeerLost: rank 0 " in err


ALONE = """
    import hpsearch_comm.horovod as hvd
    from tests.comm.horovod.horovod_oracle import adasums, allreduces, alltoalls, gathers, reducescatters

    hvd.init()
    for work in (adasums, allreduces, alltoalls, gathers, reducescatters):
        work()
    print(hvd.size(), hvd.join(), hvd.is_homogeneous())
"""


@pytest.mark.exhaustive
def test_without_a_launcher_it_is_a_job_of_one(tmp_path):
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    root = str(Path(__file__).parents[3])
    env |= {"PYTHONPATH": os.pathsep.join([root, f"{root}/comm"]), "OMP_NUM_THREADS": "1"}
    (tmp_path / "alone.py").write_text(textwrap.dedent(ALONE))
    run = subprocess.run([sys.executable, str(tmp_path / "alone.py")], env=env, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "1 0 True\n", "")
