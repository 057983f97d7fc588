"""Errors that Horovod's scripts catch."""

from __future__ import annotations

from hpsearch_comm.errors import CommError, UsageError


class HorovodInternalError(CommError, RuntimeError):
    """A collective failed: the ranks disagree, or a rank is gone.

    After a disagreement the job continues. After a rank's death every operation raises this error.
    """


class MissingError(HorovodInternalError, NotImplementedError):
    """A part of Horovod's API is not supported. Nothing has been sent, and the job continues."""


class OrderError(UsageError, AssertionError):
    """A method of an optimizer was called at the wrong time. Horovod raises AssertionError in these cases."""
