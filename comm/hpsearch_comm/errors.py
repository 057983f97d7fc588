"""What goes wrong between processes: each error says what must hold, what was seen, and what to do."""

from __future__ import annotations

__all__ = [
    "CommError",
    "CommTimeoutError",
    "ConfigurationError",
    "GroupClosedError",
    "MismatchError",
    "NcclError",
    "PeerLost",
    "RefusedError",
    "RendezvousError",
    "UsageError",
]


class CommError(Exception):
    """Every error of this package."""


class UsageError(CommError, ValueError):
    """A call that can't be carried out: a tensor, an operation or an argument that doesn't fit. The group goes on."""


class ConfigurationError(CommError):
    """A variable, an argument or an interface that a group can't be made from."""


class RendezvousError(CommError):
    """The ranks of a group didn't come together; names those that are missing."""


class RefusedError(CommError):
    """A connection that didn't prove the group's secret, or that belongs to another group, epoch or rank."""


class GroupClosedError(CommError):
    """The group was used after `close()`."""


class _OfRankError(CommError):
    """An error that concerns one rank."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message, rank)
        self.rank = rank

    def __str__(self) -> str:
        return str(self.args[0])


class PeerLost(_OfRankError):
    """A rank has died, or has left the group while others still needed it.

    Attributes:
        rank: The rank that is gone.
    """


class CommTimeoutError(_OfRankError, TimeoutError):
    """An operation made no progress for the group's `timeout`.

    Attributes:
        rank: The rank that was waited for.
    """


class MismatchError(CommError):
    """Two ranks called different operations, or the same with other shapes, dtypes or arguments."""


class NcclError(CommError):
    """NCCL couldn't be loaded, or one of its calls failed."""
