"""Errors that Horovod's scripts catch."""

from __future__ import annotations

from hpsearch_comm.errors import CommError, UsageError


class HorovodInternalError(CommError, RuntimeError):
    """A collective failed: the ranks disagree, or one of them is gone.

    After a disagreement the job continues; after a rank's death every operation raises this.
    """


class MissingError(HorovodInternalError, NotImplementedError):
    """Raised by a part of Horovod that isn't supported. Nothing has been sent, and the job continues."""


class OrderError(UsageError, AssertionError):
    """An optimizer was called at a wrong time, where Horovod raises AssertionError."""
