"""Errors between processes. Each names what must hold, what was seen, and what to do."""

from __future__ import annotations


class CommError(Exception):
    """Base class of the errors of this package."""


class UsageError(CommError, ValueError):
    """An invalid call: a tensor, an operation or an argument that can't be used. The group continues."""


class ConfigurationError(CommError):
    """A variable, an argument or an interface that can't be used to create a group."""


class RendezvousError(CommError):
    """Not all ranks of a group started; names the missing ones."""


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
    """A rank has died, or has left the group while others needed it.

    Attributes:
        rank: The rank that was lost.
    """


class CommTimeoutError(_OfRankError, TimeoutError):
    """An operation made no progress for the group's `timeout`.

    Attributes:
        rank: The rank that did not respond.
    """


class MismatchError(CommError):
    """Two ranks called different operations, or the same operation with different shapes, dtypes or arguments."""


class NcclError(CommError):
    """NCCL couldn't be loaded, or one of its calls failed."""
