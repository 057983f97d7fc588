"""Classification of OSErrors when a checkpoint is written or read.

- A storage error is not the fault of a trial: the sweep ends and can be resumed.
- Another error in writing is the trial's fault: its checkpoint cannot be copied, or a limit of its process is reached.
- A missing or replaced file in reading means that the checkpoint is damaged: its trial starts again from scratch.
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
"""A file is missing or replaced. Other errors in reading do not mean that the checkpoint is damaged (permissions, an
unreachable server, too many open files), so that the user has to look at them."""


@contextlib.contextmanager
def writing(subject: str) -> Iterator[None]:
    """Convert an OSError in the context.

    Args:
        subject: What is written, the beginning of the message.

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
    """Convert an OSError in the context.

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
    """Return the OSError among the causes of an error of torch, which raises another one when it closes a full file.

    Args:
        error: The error.
        outer: The exception that the caller was already handling, which is unrelated.
    """
    related = itertools.takewhile(lambda cause: cause is not outer, causes(error))
    return next((cause for cause in related if isinstance(cause, OSError)), None)
