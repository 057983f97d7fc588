"""Whose fault an error of the operating system is, where a checkpoint is written or read.

The storage's: no trial is to blame, the sweep ends and can be resumed. Else, in writing, the trial's own: it offered
what can't be copied, or has used up what its process may have. In reading, the checkpoint's, where something is gone
or something else is in its place: its trial starts again from zero.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

from hpsearch.errors import StorageError, UnreadableCheckpointError, UnwritableError, causes

__all__ = ["os_error_behind", "reading", "writing"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_OF_STORAGE = _FULL | {
    errno.EIO,
    errno.EROFS,
    # What stands behind a network file system has gone.
    errno.ESTALE,
    errno.EREMOTEIO,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.ETIMEDOUT,
}

_OF_CHECKPOINT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
"""A part is gone, or another kind of thing is there. Whatever else the system says in reading, it may say of a
checkpoint that is whole (it may not be read, its server is away, this process has too many files open), so it is
for someone to look at."""


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn what the system refuses inside the context into our own errors.

    Args:
        what: What is being written, to begin the message with.

    Raises:
        StorageError: The storage is full, or out of order.
        UnwritableError: For any other reason.
    """
    try:
        yield
    except OSError as error:
        message = f"{what} can't be written: {error}"
        if error.errno not in _OF_STORAGE:
            raise UnwritableError(message) from error
        advice = "Make room, then resume." if error.errno in _FULL else "See that it can be written, then resume."
        raise StorageError(f"{message}. {advice}") from error


@contextlib.contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Turn what the system refuses inside the context into our own errors.

    Raises:
        StorageError: The storage doesn't give the checkpoint, which may be whole.
        UnreadableCheckpointError: A part is missing, or something else is in its place.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _OF_CHECKPOINT:
            raise UnreadableCheckpointError(f"the checkpoint {checkpoint} is damaged: {error}") from error
        raise StorageError(
            f"the checkpoint {checkpoint} can't be read: {error}. See that it can be read, then resume."
        ) from error


def os_error_behind(error: BaseException, outer: BaseException | None) -> OSError | None:
    """Find the system's error behind torch's: closing a file that is full raises another one on top.

    Args:
        error: What was raised.
        outer: What was being handled before, by whoever called us: it has nothing to do with this.
    """
    behind = itertools.takewhile(lambda cause: cause is not outer, causes(error))
    return next((cause for cause in behind if isinstance(cause, OSError)), None)
