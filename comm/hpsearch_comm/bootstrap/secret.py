"""The group's secret: 64 hexadecimal digits, or created by rank 0 and sent to the other ranks on its host.

Rank 0 sends it over an abstract Unix socket. Such a socket has no file and ends with its last descriptor, so nothing is
left behind even after `kill -9`. But any user on the host may connect to it, or take its name first. So before any data
is sent, each side asks the kernel which user the other side is. This is the only authentication here: the handshake
runs without a secret and only identifies the rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket

from hpsearch_comm.bootstrap.acceptor import peer_uid
from hpsearch_comm.bootstrap.exchange import Venue, meet
from hpsearch_comm.bootstrap.handshake import SECRET_BYTES, Credentials
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.bootstrap.interface import is_local, resolve
from hpsearch_comm.bootstrap.listener import listen
from hpsearch_comm.errors import ConfigurationError, RefusedError, RendezvousError

__all__ = ["SECRET_BYTES", "agree_on_secret", "meet_on_host", "meeting_address", "new_secret", "parse_secret"]

_VARIABLE = "HPSEARCH_COMM_SECRET"
_HOW_TO_MAKE = 'python -c "import secrets; print(secrets.token_hex(32))"'
_SET_IT = (
    f"A secret is agreed on only between processes of one user on one host (and one container). For all others set "
    f"{_VARIABLE} to the same {2 * SECRET_BYTES} hexadecimal digits on every rank: make them once with "
    f"`{_HOW_TO_MAKE}`"
)
_ADVICE = (
    "Start all ranks within start_timeout of each other, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and "
    f"see whether the missing ones have failed before. {_SET_IT}"
)


def new_secret() -> bytes:
    """Return a new secret: 32 random bytes."""
    return secrets.token_bytes(SECRET_BYTES)


def parse_secret(text: str, source: str = _VARIABLE) -> bytes:
    """Return the secret of 64 hexadecimal digits.

    Args:
        text: The digits.
        source: Where the digits come from, for the error. The error never shows the digits.

    Raises:
        ConfigurationError: The text isn't 64 hexadecimal digits.
    """
    text = text.strip()
    stranger = re.search(r"[^0-9a-fA-F]", text)
    if stranger is None and len(text) == 2 * SECRET_BYTES:
        return bytes.fromhex(text)
    actual = f"{len(text)} characters"
    if stranger is not None:
        actual += f", of which number {stranger.start() + 1} is none"
    raise ConfigurationError(
        f"expected {source} to be {2 * SECRET_BYTES} hexadecimal digits, got {actual}; make them with `{_HOW_TO_MAKE}`"
    )


def agree_on_secret(rank: int, size: int, name: str, deadline: float, *, host: str | None = None) -> bytes:
    """Return a secret that only the ranks of one user on one host know. Returns on all ranks or on none.

    Args:
        rank: This rank. Rank 0 makes the secret.
        size: Number of ranks.
        name: Name of the group: the same on every rank, and unique among the user's groups that start on this host.
        deadline: When to give up, in seconds of `time.monotonic()`. The earliest deadline of all ranks applies.
        host: Host of rank 0, if known; a rank on another host then fails without waiting.

    Raises:
        RendezvousError: Not all ranks started; names the missing ones.
        ConfigurationError: A rank runs on another host than rank 0, or as another user.
    """
    if host is not None and size > 1 and not any(is_local(address) for address in _resolved(host)):
        where = "on another host than MASTER_ADDR names" if rank == 0 else "on another host than rank 0"
        raise ConfigurationError(
            f"rank {rank} runs {where} ({host!r}): MASTER_ADDR must be an address or a name of rank 0's host. {_SET_IT}"
        )
    socket_name = f"a Unix socket of user {os.geteuid()} for {name}"
    venue = Venue(size, Credentials(bytes(SECRET_BYTES), name), deadline, socket_name, _ADVICE)
    texts = meet_on_host(venue, rank, new_secret().hex() if rank == 0 else "", name, deadline)
    return bytes.fromhex(texts[0])


def meet_on_host(venue: Venue, rank: int, text: str, name: str, patience: float) -> list[str]:
    """Run `meet` at an abstract Unix socket of rank 0, which must be a process of this user.

    Args:
        venue: See `meet`.
        rank: This rank.
        text: This rank's text.
        name: Name of the group: the same on every rank, and unique among the user's groups that start on this host.
        patience: Until when rank 0 waits for another group to release the socket, in seconds of `time.monotonic()`.
    """
    address = meeting_address(name)

    def listening() -> list[socket.socket]:
        _check_owner(address)
        try:
            return [listen(address, patience)]
        except OSError as error:
            raise RendezvousError(
                f"rank 0 could not open {venue.description}: {error}. Another group of the same name is starting at "
                "the same place, or two processes have RANK=0"
            ) from None

    try:
        return meet(venue, rank, text, listening, lambda: [address])
    except RefusedError:
        _check_owner(address)
        raise


def meeting_address(name: str) -> str:
    """Return the abstract Unix socket of this user's group with this name."""
    return f"\0hpsearch-comm-{os.geteuid()}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _check_owner(address: str) -> None:
    with close_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        sock.connect(address)
        if peer_uid(sock) != os.geteuid():
            raise ConfigurationError(
                f"expected rank 0 to be a process of user {os.geteuid()}, but the Unix socket of its name is one of "
                f"user {peer_uid(sock)}. {_SET_IT}"
            )


def _resolved(host: str) -> tuple[str, ...]:
    try:
        return resolve(host)
    except ConfigurationError:
        return (host,)  # unknown, so not local: it can't be bound
