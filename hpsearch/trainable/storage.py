"""Classification of OSErrors when a checkpoint is written or read.

- A storage error is not the trial's fault: the sweep ends and can be resumed.
- Any other write error is the trial's fault: its checkpoint cannot be copied, or its process reached a limit.
- On reading, a missing or replaced file means that the checkpoint is damaged: the trial restarts from scratch.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

from hpsearch.errors import StorageError, UnreadableCheckpointError, UnwritableError, causes

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_OF_STORAGE = _FULL | {
    errno.EIO,
    errno.EROFS,
    # The server of a network file system is gone.
    errno.ESTALE,
    errno.EREMOTEIO,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.ETIMEDOUT,
}

_OF_CHECKPOINT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
"""Error numbers of a missing or replaced file. Other read errors (permissions, an unreachable server, too many open
files) do not mean that the checkpoint is damaged, and the user has to resolve them."""


@contextlib.contextmanager
def writing(subject: str) -> Iterator[None]:
    """Convert an OSError that the block raises.

    Args:
        subject: What is written; the start of the error message.

    Raises:
        StorageError: The storage is full or failing.
        UnwritableError: For any other reason.
    """
    try:
        yield
    except OSError as error:
        message = f"{subject} can't be written: {error}"
        if error.errno not in _OF_STORAGE:
            raise UnwritableError(message) from error
        advice = "Make room, then resume." if error.errno in _FULL else "See that it can be written, then resume."
        raise StorageError(f"{message}. {advice}") from error


@contextlib.contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Convert an OSError that the block raises.

    Raises:
        StorageError: The storage cannot be read. The checkpoint may be intact.
        UnreadableCheckpointError: A file of the checkpoint is missing or replaced.
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
    """Return the OSError in the chain of an error; torch raises another error when it closes a file on a full disk.

    Args:
        error: The error.
        outer: The unrelated exception that the caller was already handling.
    """
    related = itertools.takewhile(lambda cause: cause is not outer, causes(error))
    return next((cause for cause in related if isinstance(cause, OSError)), None)
