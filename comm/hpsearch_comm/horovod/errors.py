"""What Horovod's scripts catch."""

from __future__ import annotations

from hpsearch_comm.errors import CommError, UsageError

__all__ = ["HorovodInternalError", "MissingError", "OrderError"]


class HorovodInternalError(CommError, RuntimeError):
    """A collective couldn't be carried out: the ranks ask for different things, or one of them is gone.

    After a disagreement the job goes on; after a rank's death every operation raises this.
    """


class MissingError(HorovodInternalError, NotImplementedError):
    """A part of Horovod's that isn't there. Nothing has been announced, and the job goes on."""


class OrderError(UsageError, AssertionError):
    """An optimizer was called when it can't be: where Horovod raises AssertionError."""
