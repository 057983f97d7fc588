"""Processes that are killed while they write to a real server, and one that goes on on another host."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpsearch.results.study import load
from hpsearch.storage.batches import FOLDER, Batch
from hpsearch.storage.bucket import Bucket
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.cli_trainables import GATE, OPEN, REACHED
from tests.hpsearch.support.command_line import begin, wait_for, write_sweep
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.scripted import events_of

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def server(s3) -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.stored_sweep") as server:
        yield server


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Those that are killed at the end."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def csv(study: Path | str) -> str:
    return rows_to_csv(load(study).trials, ["lr"])


class Killer:
    """Kills the process that writes, at one of its writes: before the server gets it, or before the answer."""

    def __init__(self, pid_file: Path, number: int, how: str) -> None:
        self.pid_file = pid_file
        self.number = number
        self.how = how
        self.writes = 0

    def __call__(self, method: str, path: str, headers: dict[str, str]) -> str:
        self.writes += method != "GET"
        if self.writes != self.number or method == "GET":
            return "pass"
        os.kill(int(self.pid_file.read_text()), signal.SIGKILL)
        return self.how


@pytest.mark.slow
def test_a_study_whose_process_is_killed_at_a_write_is_resumed_to_the_same_table(s3, server, tmp_path):
    pid_file = tmp_path / "pid"
    counting = Killer(pid_file, 0, "pass")
    s3.proxy.decide = counting
    assert server.call("begin", str(tmp_path / "whole"), f"{s3.url}/whole", str(pid_file)) == 0
    expected = csv(tmp_path / "whole")
    assert counting.writes > 60
    steps = range(1, counting.writes - 10, counting.writes // 12)
    killed = 0
    for index, number in enumerate(steps):
        s3.proxy.decide = Killer(pid_file, number, "slow down" if index % 2 else "lose")
        storage = f"{s3.url}/{number}"
        code = server.call("begin", str(tmp_path / f"first-{number}"), storage, str(pid_file))
        s3.proxy.decide = lambda *_: "pass"
        assert code == -signal.SIGKILL
        if not Bucket(f"{storage}/first-{number}").names():
            continue  # killed before it was there
        before = load(f"{storage}/first-{number}")
        killed += 1
        assert server.call("resume", str(tmp_path / f"then-{number}"), storage, f"first-{number}") == 0
        assert csv(tmp_path / f"then-{number}") == expected == csv(f"{storage}/first-{number}")
        ran = (tmp_path / f"then-{number}.txt").read_text().splitlines()
        assert not {f"{row.number} {row.iterations}" for row in before.trials if row.iterations} & set(ran)
    assert killed > 8


@pytest.mark.slow
def test_a_throttled_server_that_loses_answers_gets_the_whole_study(s3, server, tmp_path):
    assert server.call("begin", str(tmp_path / "whole"), f"{s3.url}/whole") == 0
    requests = [0]

    def decide(method: str, path: str, headers: dict[str, str]) -> str:
        requests[0] += 1
        return "slow down" if requests[0] % 3 == 0 else "lose" if requests[0] % 5 == 0 else "pass"

    s3.proxy.decide = decide
    assert server.call("begin", str(tmp_path / "study"), s3.url) == 0
    s3.proxy.decide = lambda *_: "pass"
    assert csv(f"{s3.url}/study") == csv(tmp_path / "study") == csv(tmp_path / "whole")


@pytest.mark.slow
def test_two_commands_on_one_study_end_with_one_table(s3, tmp_path, processes):
    sweep = write_sweep(tmp_path / "digits.yaml", trainable="gated", storage=s3.url, observers=[])
    url = f"{s3.url}/digits-1"

    def started(*words: object) -> subprocess.Popen[str]:
        process = begin(*words, "--backend", "inline", cwd=tmp_path, **s3.environment, **{GATE: str(tmp_path)})
        processes.append(process)
        return process

    first = started("run", sweep)
    wait_for(lambda: (tmp_path / REACHED).exists(), first)
    before = len(events_of(tmp_path / "runs" / "digits-1"))
    wait_for(lambda: events_in(url) == before, first)
    second = started("resume", url, "--dir", "elsewhere")
    wait_for(lambda: events_in(url) > before, second)
    (tmp_path / OPEN).touch()
    out, err = second.communicate()
    assert second.returncode == 0, err
    assert "if that runs on, it ends once this run has begun" in out
    _, err = first.communicate()
    assert first.returncode == 1
    assert "has continued this study in the bucket, so it ends here" in err
    assert load(url).state == "finished"
    assert rows_to_csv(load(url).trials, ["x"]) == rows_to_csv(load(tmp_path / "elsewhere").trials, ["x"])


def events_in(url: str) -> int:
    *_, last = (None, *Bucket(url).names(FOLDER))
    return 0 if last is None else Batch.decode(last, Bucket(url).read(last) or b"").end[0]
