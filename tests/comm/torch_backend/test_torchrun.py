"""Scripts under a real torchrun. Its agent holds MASTER_PORT, so the ranks meet in the store behind it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.comm.forming import PATIENCE
from tests.comm.meeting import free_port

SCRIPT = Path(__file__).with_name("torchrun_ranks.py")


@contextlib.contextmanager
def torchrun(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run torchrun; whatever it has started ends with the block."""
    # A port for MASTER_PORT and the like would otherwise come from this process's own environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HPSEARCH_COMM_", "MASTER_"))}
    env |= {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1", **variables}
    with (
        tempfile.TemporaryDirectory() as logs,  # else torch makes a folder for them that it leaves behind
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", f"--log-dir={logs}", *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as run,
    ):
        try:
            yield run
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def found(folder: Path, attempt: int, size: int) -> list[list[dict[str, Any]]]:
    """Return what each rank found in each of its two starts."""
    return [json.loads((folder / f"{attempt}.{rank}.json").read_text()) for rank in range(size)]


def check(ranks: list[list[dict[str, Any]]]) -> None:
    for start in range(2):
        mine = [rank[start]["mine"] for rank in ranks]
        assert len(set(mine)) == len(ranks)
        for rank in ranks:
            assert rank[start]["addresses"] == mine
            assert rank[start]["secret"] == ranks[0][start]["secret"]
            assert rank[start]["place"] == "StoreRendezvous"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("starts", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_ranks_of_one_host_need_nothing_but_torchrun_and_may_be_restarted(tmp_path, starts):
    most = f"--max-restarts={starts - 1}"
    with torchrun("--standalone", "--nproc-per-node=2", most, str(SCRIPT), str(tmp_path), str(starts)) as run:
        output = run.communicate(timeout=2 * PATIENCE)[0]
    assert run.returncode == 0, output
    for attempt in range(starts):
        check(found(tmp_path, attempt, 2))
    attempts = [found(tmp_path, attempt, 2)[0] for attempt in range(starts)]
    assert len({meeting["secret"] for meetings in attempts for meeting in meetings}) == 2 * starts


@pytest.mark.exhaustive
@pytest.mark.slow
def test_agents_that_count_restarts_differently_still_bring_their_ranks_together(tmp_path):
    # One agent counts the restart that its own rank has caused, the other doesn't count that of its neighbour.
    port = free_port()
    common = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=pair")
    place = (f"--rdzv-endpoint=127.0.0.1:{port}", "--monitor-interval=0.1", "--local-addr=127.0.0.1")
    arguments = (*common, *place, str(SCRIPT), str(tmp_path), "2")
    secret = secrets.token_hex(32)
    with (
        torchrun(*arguments, HPSEARCH_COMM_SECRET=secret) as one,
        torchrun(*arguments, HPSEARCH_COMM_SECRET=secret) as two,
    ):
        outputs = [run.communicate(timeout=2 * PATIENCE)[0] for run in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0), "\n".join(outputs)
    for attempt in range(2):
        check(found(tmp_path, attempt, 2))
    assert [rank[0]["restarts"] for rank in found(tmp_path, 1, 2)] in (["0", "1"], ["1", "0"])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_script_of_torch_distributed_on_the_page_runs(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "torch-distributed.md").read_text()
    (script,) = re.findall(r"```python\n(# train_distributed\.py\n.*?)```", page, re.DOTALL)
    path = tmp_path / "train_distributed.py"
    path.write_text(script + '\nprint(f"rank {dist.is_initialized()} done")\n')
    with torchrun("--standalone", "--nproc-per-node=2", str(path)) as run:
        output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, output
    assert output.count("rank False done") == 2
