"""Buckets in memory, and a real S3 server on loopback with a proxy that fails as a test says."""

from __future__ import annotations

import hashlib
import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any

import pytest

from hpsearch.storage.bucket import Bucket

KEYS = {"AWS_ACCESS_KEY_ID": "ada", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


class Memory:
    """What all buckets in memory hold.

    Args:
        objects: By their URLs.
    """

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.written: Callable[[], None] = lambda: None
        """Called after each write and delete."""
        self.before: Callable[[str], None] = lambda name: None
        """Called with the name before each write and delete; may raise."""
        self.guard = threading.RLock()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have all of hpsearch use these buckets."""
        for module in ("mirror", "studies"):
            monkeypatch.setattr(f"hpsearch.storage.{module}.Bucket", lambda url: MemoryBucket(url, self))


class MemoryBucket(Bucket):
    """A bucket in memory."""

    def __init__(self, url: str, memory: Memory) -> None:
        self.url = url.rstrip("/")
        self.memory = memory

    def _write(self, name: str, content: bytes | None, new: bool = False) -> bool:
        self.memory.before(name)
        with self.memory.guard:
            key = f"{self.url}/{name}"
            if new and key in self.memory.objects:
                return False
            if content is None:
                self.memory.objects.pop(key, None)
            else:
                self.memory.objects[key] = content
            self.memory.written()
        return True

    def create(self, name: str, content: bytes) -> bool:
        return self._write(name, content, new=True)

    def read(self, name: str) -> bytes | None:
        return self.memory.objects.get(f"{self.url}/{name}")

    def upload(self, name: str, file: IO[bytes]) -> None:
        file.seek(0)
        self._write(name, file.read())

    def download(self, name: str, file: IO[bytes]) -> None:
        file.write(self.memory.objects[f"{self.url}/{name}"])
        file.seek(0)

    def names(self, folder: str = "") -> dict[str, str]:
        with self.memory.guard:
            inside = sorted(item for item in self.memory.objects.items() if item[0].startswith(f"{self.url}/"))
        tags = {key.removeprefix(f"{self.url}/"): hashlib.sha256(value).hexdigest() for key, value in inside}
        return {name: tag for name, tag in tags.items() if name.startswith(folder)}

    def folders(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.names() if "/" in name})

    def delete(self, name: str) -> None:
        self._write(name, None)


Answer = Callable[[str, str, dict[str, str]], str]
"""Receives method, path and headers of a request, which it may change; returns what happens: see `Proxy`."""


class Proxy(ThreadingHTTPServer):
    """Stands before an S3 server, and does with each request what `decide` says.

    `pass`: it is passed on; `slow down`: the answer is 503; `lose`: it is passed on, but the answer is lost; `refuse`:
    the answer is 403.
    """

    daemon_threads = True

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.decide: Answer = lambda method, path, headers: "pass"
        self.requests: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _handle(self) -> None:
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path))
        what = self.server.decide(self.command, self.path, headers)
        if what == "slow down":
            self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>")
            return
        if what == "refuse":
            text = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist</Message></Error>"
            self._answer(403, {}, text)
            return
        for name in ("transfer-encoding", "expect"):
            headers.pop(name, None)
        connection = http.client.HTTPConnection(*self.server.target)
        connection.request(self.command, self.path, body, headers | {"content-length": str(len(body))})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if what == "lose":
            self.close_connection = True
            return
        self._answer(answer.status, dict(answer.getheaders()), content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length", str(len(content))) if self.command == "HEAD" else str(len(content))
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def proxy_before(target: tuple[str, int]) -> Iterator[Proxy]:
    """Run a proxy on a free port."""
    with Proxy(target) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
