"""The errors that hpsearch raises on purpose. Each message names the rule, the value, the location and the fix."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

_MAX_LINE = 500


class HpsearchError(Exception):
    """Base class of the errors that hpsearch raises on purpose."""


class HpsearchWarning(UserWarning):
    """Warning of `search` and `rerun`: results that point to a mistake in the trainable."""


class SweepError(HpsearchError):
    """A sweep (a file, or the arguments of `search`) asks for something that can't be done."""


class DesignError(HpsearchError):
    """A network for a data set can't be designed as requested."""


class TrainableError(HpsearchError):
    """A trainable can't be imported, or breaks the contract of `trial.report` and `trial.iterations`.

    Args:
        message: What is wrong.
        key: The key of the sweep that the error is about: `program`, `command`, or `metric.NAME` for a metric that
            wasn't reported. Empty: the trainable itself.
    """

    def __init__(self, message: str = "", key: str = "") -> None:
        super().__init__(message)
        self.key = key


class CheckpointError(HpsearchError):
    """A checkpoint can't be written so that it can be read again, or can't be read."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that was written is missing or damaged."""


class UnwritableError(HpsearchError):
    """The system refuses to write a trial's file, although the storage works."""


class StorageError(HpsearchError):
    """A study's directory can't be written or read: the disk is full, broken, or was removed."""


class JournalError(HpsearchError):
    """A study's directory or journal is missing, isn't hpsearch's, or doesn't match the sweep that it is opened for."""


class StudyInUseError(JournalError):
    """Another live process runs this study."""


class SearcherError(HpsearchError):
    """A searcher that learns, or its process, has failed."""


class TellError(HpsearchError):
    """A result passed to `tell` doesn't match its trial."""


class BackendError(HpsearchError):
    """The backend can't be reached, or can't hold a worker of the requested size."""


class StopSearch(Exception):
    """Raise it in a callback of `search` to stop the sweep as `hpsearch stop` does; the sweep can be resumed."""


class Interrupted(KeyboardInterrupt):
    """The user ends the process at once. Any other KeyboardInterrupt in a trainable was raised by the trainable."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes in sequence, each once, even if `raise error from error` makes a cycle."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def exception_line(error: BaseException) -> str:
    """Return the line that names an exception: `ValueError: the rate must be positive`."""
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    # A SyntaxError shows the code first; other errors start with the message, which may be pages long.
    line = lines[-1] if isinstance(error, SyntaxError) else lines[0]
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 3] + "..."
