"""Agents and their driver over HTTP."""

from __future__ import annotations

import http.client
import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch.backends.agents.http import AGENT, AgentClient, Client, DriverServer, RefusedError
from hpsearch.backends.agents.messages import FORMAT, VERSION, AgentState, Announcement, Orders
from hpsearch.errors import BackendError, CheckpointError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.serving.server import Listen
from hpsearch.task import Task
from hpsearch.trainable import checkpoints, random_state
from hpsearch.trial import Segment, Trial
from tests.hpsearch.support.agents import AnyJobBackend, agent_beside
from tests.hpsearch.support.certificates import certificate
from tests.hpsearch.support.command_line import call, write_sweep
from tests.hpsearch.support.driver import Driver, closed_in_the_end
from tests.hpsearch.support.lossy_proxy import lossy_proxy

ONE, OTHER = "a" * 32, "b" * 32
TOKEN = "t" * 20
STATE = AgentState(ONE, 1, "lab-3", "", True, False, "", "", None)
CHECKPOINT = "trials/00003/1/hpsearch-checkpoint-2"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPSEARCH_AGENT_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(autouse=True)
def closed_backends() -> Iterator[None]:
    with closed_in_the_end():
        yield


@pytest.fixture
def study(tmp_path: Path) -> Path:
    StudyDirectory(tmp_path / "study").create({"sweep": {}}, None)
    checkpoints.write(tmp_path / "study" / "trials/00003/1", 2, {"a": torch.ones(3)}, random_state.capture())
    return tmp_path / "study"


@pytest.fixture
def server(study: Path) -> Iterator[DriverServer]:
    """A driver, of whose agents one has attempt 2 of trial 3, from the checkpoint of attempt 1."""
    server = DriverServer(Listen(), frozenset({"localhost"}), study)
    announcement = Announcement(FORMAT, VERSION, "d", str(study), {}, None, False, None, (), (), 30.0)
    server.open(announcement)
    task = Task(Trial(3, {}, 7, "random"), Segment(3, 2, 9, CHECKPOINT, 2), None)
    orders = Orders("d", 1, ONE, 0, task, False, 0, 0, "")
    server.publish({ONE: orders, OTHER: replace(orders, agent=OTHER, task=None)})
    yield server
    server.close(replace(announcement, stop="it ended"), ())


def client(server: DriverServer, agent: str = ONE, token: str = TOKEN) -> Client:
    return Client(server.address, token, agent)


def request(client: Client, method: str, path: str, body: bytes = b"") -> bytes:
    connection = client.connect()
    try:
        return client.request(connection, method, path, body).read()
    finally:
        connection.close()


def packed(study: Path) -> bytes:
    return checkpoints.pack(study / CHECKPOINT)


def test_documents_are_exchanged_and_older_ones_change_nothing(server: DriverServer) -> None:
    link = AgentClient(client(server))
    try:
        assert link.announcement() is not None
        assert link.announcement() is None
        for counter in (2, 1):  # the second was delayed
            orders = link.exchange(replace(STATE, counter=counter))
            assert orders is not None
            assert orders.task is not None
            assert orders.task.key == (3, 2)
        assert server.collect() == ([replace(STATE, counter=2)], [])
        assert server.collect() == ([], [])
    finally:
        link.close()


def test_a_checkpoint_that_comes_twice_is_written_once_and_comes_back_as_it_was(
    server: DriverServer, study: Path, tmp_path: Path
) -> None:
    client(server).fetch(tmp_path / "fetched" / "hpsearch-checkpoint-2")
    assert torch.equal(checkpoints.read_state(tmp_path / "fetched" / "hpsearch-checkpoint-2")["a"], torch.ones(3))
    there = study / "trials/00003/2/hpsearch-checkpoint-5"
    inodes = set()
    for _ in range(2):
        client(server).send(study / CHECKPOINT, Segment(3, 2, 9, None, 2), 5)
        inodes.add(there.stat().st_ino)
    assert len(inodes) == 1
    assert checkpoints.pack(there) == packed(study)
    request(client(server), "PUT", "/output/3/2", b"hello\n")
    assert (there.parent / "output.log").read_text() == "hello\n"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def linked() -> bytes:
    buffer, member = io.BytesIO(), tarfile.TarInfo("state.pt")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("agent", "method", "path", "body", "status"),
    [
        (OTHER, "PUT", "/checkpoint/3/2/5", b"", 409),
        (OTHER, "GET", "/checkpoint", b"", 409),
        (ONE, "PUT", "/checkpoint/3/1/2", b"", 409),
        (ONE, "PUT", "/checkpoint/4/2/5", b"", 409),
        (ONE, "PUT", "/output/3/1", b"", 409),
        ("c" * 32, "PUT", "/output/3/2", b"", 409),
        (ONE, "PUT", "/checkpoint/3/2/5", b"no archive", 400),
        (ONE, "PUT", "/checkpoint/3/2/5", linked(), 400),
        (ONE, "PUT", "/checkpoint/..%2f..%2f3/2/5", b"", 404),
        (ONE, "PUT", "/checkpoint/3/2/../../study.db", b"", 404),
        (ONE, "POST", "/exchange", b"{}", 400),
        (OTHER, "POST", "/exchange", b"", 400),
    ],
)
def test_what_is_not_an_agents_own_or_no_checkpoint_is_refused_and_changes_nothing(
    server: DriverServer, study: Path, agent: str, method: str, path: str, body: bytes, status: int
) -> None:
    before = files(study)
    with pytest.raises(RefusedError) as caught:
        request(client(server, agent), method, path, body)
    assert caught.value.status == status
    assert files(study) == before


def announced(server: DriverServer, path: str, length: int) -> http.client.HTTPConnection:
    """Begin to send a body of this length."""
    connection = client(server).connect()
    connection.putrequest("PUT", path)
    for name, value in (("Authorization", f"Bearer {TOKEN}"), (AGENT, ONE), ("Content-Length", str(length))):
        connection.putheader(name, value)
    connection.endheaders()
    return connection


@pytest.mark.parametrize(("path", "most"), [("/output/3/2", 1 << 20), ("/checkpoint/3/2/5", 1 << 36), ("/x", 1 << 26)])
def test_what_would_be_too_large_is_refused_before_it_is_sent(server: DriverServer, path: str, most: int) -> None:
    connection = announced(server, path, most + 1)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_checkpoint_that_breaks_off_is_not_written(server: DriverServer, study: Path) -> None:
    content = packed(study)
    connection = announced(server, "/checkpoint/3/2/5", len(content))
    connection.send(content[: len(content) // 2])
    connection.close()
    client(server).send(study / CHECKPOINT, Segment(3, 2, 9, None, 2), 6)
    assert sorted(path.name for path in (study / "trials/00003/2").iterdir()) == ["hpsearch-checkpoint-6"]


@pytest.mark.parametrize("path", ["/announcement", "/exchange", "/checkpoint", "/checkpoint/3/2/5", "/output/3/2"])
def test_every_address_needs_the_agents_token(server: DriverServer, path: str) -> None:
    for wrong in ("u" * 20, "t" * 19, ""):
        with pytest.raises(BackendError, match="the driver refuses this agent"):
            request(client(server, token=wrong), "PUT" if "/3/2" in path else "GET", path)


def test_a_checkpoint_that_is_gone_is_the_attempts_failure(server: DriverServer, study: Path, tmp_path: Path) -> None:
    StudyDirectory(study).discard([CHECKPOINT])
    with pytest.raises(RefusedError, match="there is none: was it deleted") as caught:
        client(server).fetch(tmp_path / "hpsearch-checkpoint-2")
    assert caught.value.status == 404
    assert not isinstance(caught.value, CheckpointError)


def test_an_agents_files_end_with_it(server: DriverServer) -> None:
    link = AgentClient(client(server))
    assert link.root.is_dir()
    link.close()
    assert not link.root.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "127.0.0.1:0"], "--listen: needs --backend agents, got ray"),
        (["--backend", "agents", "--listen", "8643"], "--listen: must be HOST:PORT, such as 0.0.0.0:8643, got '8643'"),
        (["--backend", "agents", "--insecure"], "--insecure: needs --listen HOST:PORT"),
        (
            ["--backend", "agents", "--listen", "0.0.0.0:0"],
            "other machines would send tokens that anyone",
        ),
    ],
)
def test_where_a_driver_cannot_listen_is_refused_before_a_study_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, "run", write_sweep(Path("sweep.yaml")), *arguments)
    assert answer.code == 1
    assert message in answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://192.0.2.1:8643", "anyone on the way could read the token"),
        ("https://lab-1:8643/study", "must be a study's directory, or the address that the driver prints"),
        ("http://", "must be a study's directory, or the address that the driver prints"),
    ],
)
def test_an_address_to_which_no_token_should_go_is_refused(
    capsys: pytest.CaptureFixture[str], url: str, message: str
) -> None:
    answer = call(capsys, "agent", url)
    assert answer.code == 1
    assert message in answer.err


def test_by_tls_an_agent_talks_to_a_driver_whose_certificate_it_trusts_alone(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    server = DriverServer(Listen(certificate=cert, key=key), frozenset({"localhost"}), study)
    announcement = Announcement(FORMAT, VERSION, "d", str(study), {}, None, False, None, (), (), 30.0)
    server.open(announcement)
    try:
        with pytest.raises(BackendError, match="must have a certificate that this machine trusts, got: self-signed"):
            request(client(server), "GET", "/announcement")
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert b'"driver":"d"' in request(client(server), "GET", "/announcement")
    finally:
        server.close(announcement, ())


def test_a_client_does_not_show_its_token() -> None:
    assert TOKEN not in repr(Client("http://127.0.0.1:1", TOKEN, ONE))


@pytest.mark.exhaustive
def test_a_sweep_over_a_network_that_loses_doubles_and_delays_counts_each_iteration_once(
    tmp_path: Path,
) -> None:
    with ExitStack() as ending:
        fates: list[str] = []

        def start(address: str) -> None:
            proxy, seen = ending.enter_context(lossy_proxy(address, seed=3))
            fates.append("began")
            ending.callback(lambda: fates.extend(seen))
            for _ in range(2):
                ending.enter_context(agent_beside(proxy))

        backend = AnyJobBackend(listen=Listen(), start=start)
        driver = Driver(backend, tmp_path / "study", "total", save_every=1)
        ending.callback(backend.close, kill=True)
        values = {}
        for number in range(4):
            driver.start(number, {"x": 0.5 + number, "folder": str(tmp_path)}, end=3)
        firsts = {number: driver.outcome(number) for number in range(4)}
        for number, first in firsts.items():
            driver.start(number, {"x": 0.5 + number, "folder": str(tmp_path)}, end=6, after=first)
        for number in range(4):
            driver.outcome(number, 2)
        for message in driver.messages:
            for report in getattr(message, "reports", ()) if type(message).__name__ in ("Saved", "Result") else ():
                key = (report.trial, report.iteration)
                assert key not in values, "counted once"
                values[key] = report.metrics["value"]
        assert values == {(n, i): pytest.approx((0.5 + n) * i) for n in range(4) for i in range(1, 7)}
        assert (tmp_path / "study/trials/00003/2/output.log").read_text().count("node mnt:") == 3
    assert {"lost", "unanswered", "doubled", "delayed", "repeated"} <= set(fates)
    assert not [thread.name for thread in threading.enumerate() if thread.name == "hpsearch-server"]
