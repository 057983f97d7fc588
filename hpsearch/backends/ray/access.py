"""Access to a Ray instance: the interfaces that it listens on, and its token.

Anybody who can connect to a Ray instance without a token can run code there. Importing this module doesn't import Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

OPEN_CLUSTER = (
    "asks for no token, and Ray listens on all interfaces: anybody who reaches its ports can run code there. Stop it, "
    "run `ray get-auth-token --generate` on the head, copy ~/.ray/auth_token to every node, and start it again"
)

_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

_PROBE = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1])
except AuthenticationError:
    print("asks for a token")
else:
    print("open")
"""

_PROBE_SECONDS = 20.0


def token_file() -> Path:
    """Return the path where Ray looks for this user's token."""
    return Path(os.environ.get(_TOKEN_PATH) or Path.home() / ".ray" / "auth_token")


def make_private_token() -> None:
    """Create a token for a local Ray that only this user can read.

    Without a token, Ray creates one that all users of the machine can read.
    """
    if os.environ.get(_MODE, "token").lower() != "token" or _TOKEN in os.environ or _TOKEN_PATH in os.environ:
        return
    file = token_file()
    with contextlib.suppress(OSError):  # the home directory isn't writable: Ray reports that
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            file.chmod(0o600)
        else:
            with os.fdopen(descriptor, "w") as written:
                written.write(secrets.token_hex(32))


def is_open(address: str) -> bool | None:
    """Return whether the cluster accepts connections without a token; None if it can't be reached.

    Args:
        address: Host and port of its GCS.
    """
    environment = {name: value for name, value in os.environ.items() if name not in (_TOKEN, _TOKEN_PATH)}
    environment[_MODE] = "disabled"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [sys.executable, "-c", _PROBE, address]
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
        return {"open": True, "asks for a token": False}.get(process.stdout.strip())
    return None


def is_loopback(address: str) -> bool:
    """Return whether an address (host and port) can be reached only from this machine."""
    return address.rpartition(":")[0].strip("[]") in ("localhost", "127.0.0.1", "::1")


def known_cluster() -> str | None:
    """Return the address of this machine's cluster: `RAY_ADDRESS`, or the one in Ray's files, or None."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto", "local"):
        noted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
        with contextlib.suppress(OSError):
            return noted.read_text("utf-8").strip() or None
        return None
    return address
