"""The group's secret: 64 hexadecimal digits, or created by rank 0 and sent to the other ranks on its host."""

from __future__ import annotations

import re
import secrets

from hpsearch_comm.bootstrap.handshake import SECRET_BYTES, Credentials
from hpsearch_comm.bootstrap.interface import is_local, resolve
from hpsearch_comm.bootstrap.rendezvous import LocalRendezvous
from hpsearch_comm.errors import ConfigurationError

__all__ = ["SECRET_BYTES", "agree_on_secret", "new_secret", "parse_secret"]

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
    # Each side asks the kernel which user the other side is, before any data is sent. This is the only authentication
    # here: the handshake runs without a secret and only identifies the rank.
    texts = LocalRendezvous(name, _ADVICE).exchange(
        rank, size, new_secret().hex() if rank == 0 else "", Credentials(bytes(SECRET_BYTES)), deadline
    )
    return bytes.fromhex(texts[0])


def _resolved(host: str) -> tuple[str, ...]:
    try:
        return resolve(host)
    except ConfigurationError:
        return (host,)  # unknown, so not local: it can't be bound
