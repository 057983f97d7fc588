"""Runs an ASGI application on a port. Off this machine it needs TLS, unless the user explicitly does without."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpsearch.config.import_paths import installing, is_installed
from hpsearch.errors import HpsearchError
from hpsearch.serving.access import App

_LOOK_SECONDS = 0.01
_LAST_SECONDS = 2
"""Seconds that open requests may take when the server ends."""


@dataclass(frozen=True)
class Listen:
    """Where a server listens.

    Raises:
        HpsearchError: Other machines can send requests, without TLS or `insecure`; or a value is unusable.
    """

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    certificate: Path | None = None
    """File with the chain of certificates, for TLS; None: HTTP without TLS."""
    key: Path | None = None
    """File with the certificate's private key; None: it is in the certificate's file."""
    insecure: bool = False
    """Whether other machines may send requests without TLS."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise HpsearchError(f"--port: must be from 0 to 65535, got {self.port}")
        if self.key is not None and self.certificate is None:
            raise HpsearchError(f"--tls-key {self.key}: needs --tls-cert FILE, the certificate of this key")
        if not (self.is_local or self.certificate is not None or self.insecure):
            raise HpsearchError(
                f"--host {self.host}: other machines would send tokens that anyone on the way can read. Give "
                "--tls-cert FILE, or use 127.0.0.1 and a tunnel (ssh -L), or add --insecure on a network that you trust"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can send requests."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def url(self, port: int) -> str:
        """Return the server's address, with this machine's name if it listens on all interfaces."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::", "") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http{'' if self.certificate is None else 's'}://{host}:{port}"


@contextmanager
def running(app: App, listen: Listen) -> Iterator[int]:
    """Run an application in a thread until the block ends.

    Args:
        app: The application, with its `Access`.
        listen: Where to listen.

    Yields:
        The port.

    Raises:
        HpsearchError: Nothing can listen there, or uvicorn isn't installed.
    """
    if not is_installed("uvicorn"):
        raise HpsearchError(f"a server needs uvicorn, which isn't installed: {installing('serve')}")
    import uvicorn

    _check_certificate(listen)
    with _bound(listen) as bound:
        port = int(bound.getsockname()[1])
        config = uvicorn.Config(
            app,
            http="h11",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_LAST_SECONDS,
            ws="none",
            ssl_certfile=listen.certificate,
            ssl_keyfile=listen.key,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([bound],), name="hpsearch-server", daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise HpsearchError(f"the server on {listen.url(port)} ended as it began; its error is above")
                time.sleep(_LOOK_SECONDS)
            yield port
        finally:
            server.should_exit = True
            thread.join()


def _bound(listen: Listen) -> socket.socket:
    try:
        family = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as error:
        raise HpsearchError(
            f"--host {listen.host} --port {listen.port}: nothing can listen there: {error.strerror or error}. "
            "--port 0 takes a free port"
        ) from error


def _check_certificate(listen: Listen) -> None:
    if listen.certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(listen.certificate, listen.key, password="")
    except (OSError, ValueError) as error:
        raise HpsearchError(
            f"--tls-cert {listen.certificate}: must be a PEM file with a certificate, and its key without a password "
            f"there or in --tls-key, got: {error}"
        ) from error
