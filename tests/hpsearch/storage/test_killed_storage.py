"""Processes that are killed while they write to a real server, and one that goes on on another host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpsearch.results.study import load
from hpsearch.storage.batches import FOLDER, Batch
from hpsearch.storage.bucket import Bucket
from hpsearch.tables.trials import rows_to_csv
from hpsearch_comm.errors import ConfigurationError
from tests.benchmarks.collectives.namespaces import Namespaces
from tests.hpsearch.support.buckets import KEYS
from tests.hpsearch.support.cli_trainables import GATE, OPEN, REACHED
from tests.hpsearch.support.command_line import PROGRAM, begin, environment, wait_for, write_sweep
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
    assert server.call("begin", str(tmp_path / "whole"), f"{s3.url}/whole", str(pid_file)) == 0
    expected = csv(tmp_path / "whole")
    killed = 0
    for index, number in enumerate(range(1, 90, 8)):  # how many writes there are depends on how busy the machine is
        s3.proxy.decide = Killer(pid_file, number, "slow down" if index % 2 else "lose")
        storage = f"{s3.url}/{number}"
        code = server.call("begin", str(tmp_path / f"first-{number}"), storage, str(pid_file))
        s3.proxy.decide = lambda *_: "pass"
        if code == 0:
            break  # there were fewer writes
        assert code == -signal.SIGKILL
        if not Bucket(f"{storage}/first-{number}").names():
            continue  # killed before it was there
        before = load(f"{storage}/first-{number}")
        killed += 1
        assert server.call("resume", str(tmp_path / f"then-{number}"), storage, f"first-{number}") == 0
        assert csv(tmp_path / f"then-{number}") == expected == csv(f"{storage}/first-{number}")
        output = tmp_path / f"then-{number}.txt"  # there is none where all trials had ended
        ran = output.read_text().splitlines() if output.exists() else []
        assert not {f"{row.number} {row.iterations}" for row in before.trials if row.iterations} & set(ran)
    assert killed > 3


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


SERVER = """
import logging, threading, warnings
warnings.simplefilter("ignore")
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="10.213.0.1", port=0, verbose=False)
server.start()
address, port = server.get_host_and_port()
import boto3
boto3.session.Session().client("s3", endpoint_url=f"http://{address}:{port}").create_bucket(Bucket="bucket")
print(port, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def hosts() -> Iterator[Namespaces]:
    """Two network namespaces that are joined by a cable."""
    try:
        hosts = Namespaces()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with hosts:
        yield hosts


@pytest.mark.slow
def test_a_study_goes_on_in_another_network_namespace_with_the_same_table(hosts, tmp_path, processes):
    """The store and the first process are on one host. The other host sees nothing but the store."""
    variables = {**KEYS, GATE: str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()

    def started(host: int, cwd: Path, *words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*hosts.command(host), *map(str, words)],
            cwd=cwd,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    def answer(*words: object) -> str:
        process = started(1, there, PROGRAM, *words)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    server = started(0, tmp_path, sys.executable, "-c", SERVER)
    assert server.stdout is not None
    variables["AWS_ENDPOINT_URL"] = f"http://10.213.0.1:{server.stdout.readline().strip()}"
    folder, url = "s3://bucket/studies", "s3://bucket/studies/digits-1"
    sweep = write_sweep(here / "digits.yaml", trainable="gated", storage=folder, observers=[])
    first = started(0, here, PROGRAM, "run", sweep, "--backend", "inline")
    wait_for((tmp_path / REACHED).exists, first)
    wait_for(lambda: json.loads(answer("list", folder, "--format", "json"))[0]["trials"] == 3, first)
    first.kill()
    first.wait()
    shutil.rmtree(here)
    (tmp_path / OPEN).touch()
    answer("resume", url, "--backend", "inline")
    table = answer("trials", url, "--format", "csv")
    assert answer("trials", "runs/digits-1", "--format", "csv") == table
    write_sweep(there / "digits.yaml", trainable="gated", observers=[])
    answer("run", "digits.yaml", "--dir", "alone", "--backend", "inline")
    assert answer("trials", "alone", "--format", "csv") == table
