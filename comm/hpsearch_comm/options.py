"""The arguments of a group, checked before anything is opened."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hpsearch_comm.bootstrap.connect import MOST_STREAMS
from hpsearch_comm.bootstrap.handshake import SECRET_BYTES, Credentials
from hpsearch_comm.bootstrap.rendezvous import Rendezvous
from hpsearch_comm.errors import ConfigurationError

ALGORITHMS = ("auto", "direct", "ring", "butterfly", "hierarchical", "naive")
TRANSPORTS = ("auto", "tcp")
CUDA_WAYS = ("auto", "nccl", "host")


@dataclass(frozen=True)
class Options:
    """The options of a group. See `Group` for each of them.

    Raises:
        ConfigurationError: An option is invalid.
    """

    rank: int
    size: int
    rendezvous: Rendezvous | None
    secret: bytes | None = field(repr=False)
    epoch: int
    name: str
    timeout: float
    start_timeout: float
    heartbeat_timeout: float
    deadline: float | None
    algorithm: str
    transport: str
    interface: str | None
    host: str | None
    streams: int
    cuda: str

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ConfigurationError(f"size must be a number of ranks from 1, got {self.size!r}")
        if type(self.rank) is not int or not 0 <= self.rank < self.size:
            raise ConfigurationError(f"rank must be from 0 to {self.size - 1}, got {self.rank!r}")
        for name in ("timeout", "start_timeout", "heartbeat_timeout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigurationError(f"{name} must be a number of seconds above 0, got {value!r}")
        for name, choices in (("algorithm", ALGORITHMS), ("transport", TRANSPORTS), ("cuda", CUDA_WAYS)):
            if getattr(self, name) not in choices:
                raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if not 1 <= self.streams < MOST_STREAMS:
            raise ConfigurationError(f"streams must be from 1 to {MOST_STREAMS - 1}, got {self.streams}")
        if self.size > 1 and self.rendezvous is None:
            raise ConfigurationError(
                "a group of several ranks needs a rendezvous where they exchange their addresses, such as "
                'MasterRendezvous("10.0.0.1", 29500); comm.init() makes one from the environment'
            )
        if self.size > 1 and self.secret is None:
            raise ConfigurationError(
                "a group of several ranks needs a secret, the same 32 bytes on every rank: make it once with "
                "secrets.token_bytes(32), or use comm.init(), which reads HPSEARCH_COMM_SECRET"
            )

    def credentials(self) -> Credentials:
        """Return the credentials for the handshake. A group of one needs no secret and uses zeros."""
        return Credentials(self.secret if self.secret is not None else bytes(SECRET_BYTES), self.name, self.epoch)
