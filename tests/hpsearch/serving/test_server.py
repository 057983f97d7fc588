"""The server: where it listens, and what it refuses to listen to."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from hpsearch.errors import HpsearchError
from hpsearch.serving.access import Access, Policy, Rule, Tokens
from hpsearch.serving.server import Listen, running
from tests.hpsearch.support.certificates import certificate


async def hello(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["scheme"].encode()})


def app() -> Access:
    tokens = Tokens(read="r" * 20, steer="s" * 20, agent="a" * 20)
    return Access(hello, Policy(tokens, lambda method, path: Rule(None)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_it_answers_on_a_free_port_until_the_block_ends(host: str):
    listen = Listen(host)
    before = threading.active_count()
    try:
        with running(app(), listen) as port, urlopen(listen.url(port), timeout=60) as answer:
            assert answer.read() == b"http"
            assert answer.headers["server"] is None
    except HpsearchError as error:
        if host != "::1":
            raise
        pytest.skip(f"this machine has no IPv6: {error}")
    assert threading.active_count() == before
    with pytest.raises(OSError, match="refused"):
        urlopen(listen.url(port), timeout=60)


def test_with_a_certificate_it_speaks_tls_also_on_all_interfaces(tmp_path: Path):
    cert, key = certificate(tmp_path)
    with running(app(), Listen("0.0.0.0", certificate=cert, key=key)) as port:
        trusted = ssl.create_default_context(cafile=str(cert))
        with urlopen(f"https://localhost:{port}", context=trusted, timeout=60) as answer:
            assert answer.read() == b"https"
        with pytest.raises(OSError, match=r"."):
            urlopen(f"http://localhost:{port}", timeout=60)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpu.example", ""])
def test_elsewhere_it_needs_tls_or_insecure(host: str):
    with pytest.raises(HpsearchError, match=r"--tls-cert FILE, or use 127.0.0.1 and a tunnel .* or add --insecure"):
        Listen(host)
    assert not Listen(host, insecure=True).is_local
    assert Listen("127.8.9.1").is_local


def test_what_can_not_be_is_said_before_it_listens(tmp_path: Path):
    key = tmp_path / "key.pem"
    key.write_text("nothing")
    with pytest.raises(HpsearchError, match="--port: must be from 0 to 65535, got 70000"):
        Listen(port=70000)
    with pytest.raises(HpsearchError, match=r"--tls-key .*needs --tls-cert FILE"):
        Listen(key=key)
    for cert in (key, tmp_path / "none.pem"):
        with (
            pytest.raises(HpsearchError, match="must be a PEM file with a certificate"),
            running(app(), Listen(certificate=cert)),
        ):
            pass
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(HpsearchError, match=f"--port {port}: nothing can listen there: Address already in use"),
            running(app(), Listen(port=port)),
        ):
            pass


def test_without_uvicorn_it_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with (
        pytest.raises(HpsearchError, match=r'needs uvicorn.*pip install "hpsearch\[serve\]"'),
        running(app(), Listen()),
    ):
        pass
