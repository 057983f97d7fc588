"""An HTTP proxy that loses, doubles, delays and repeats requests and their answers."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@contextmanager
def lossy_proxy(address: str, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Run a proxy of a server.

    Args:
        address: The server's address.
        seed: Of what becomes of each request.

    Yields:
        The proxy's address, and what became of requests so far.
    """
    target, draw, guard = urlsplit(address), random.Random(seed), threading.Lock()
    fates: list[str] = []
    former: list[tuple[str, str, dict[str, str], bytes]] = []

    def forward(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(str(target.hostname), target.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            request = (self.command, self.path, headers, body)
            with guard:
                fate = draw.choice(["well"] * 4 + ["lost", "unanswered", "doubled", "delayed", "repeated"])
                other = draw.choice(former) if former else request
                former.append(request)
                fates.append(fate)
            if fate == "lost":
                self.close_connection = True
                return
            if fate == "delayed":
                time.sleep(0.3)
            if fate in ("doubled", "repeated"):
                with suppress(OSError, http.client.HTTPException):
                    forward(*(request if fate == "doubled" else other))
            status, answer = forward(*request)
            if fate == "unanswered":
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", fates
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
