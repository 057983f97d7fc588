"""The errors that hpsearch raises on purpose; each says what must hold, what it got, where, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

__all__ = [
    "BackendError",
    "CheckpointError",
    "DesignError",
    "HpsearchError",
    "HpsearchWarning",
    "Interrupted",
    "JournalError",
    "SearcherError",
    "StopSearch",
    "StorageError",
    "StudyInUseError",
    "SweepError",
    "TellError",
    "TrainableError",
    "UnreadableCheckpointError",
    "UnwritableError",
    "causes",
    "exception_line",
]

_MAX_LINE = 500


class HpsearchError(Exception):
    """Root of every error that hpsearch raises on purpose."""


class HpsearchWarning(UserWarning):
    """What `search` and `rerun` warn of, by `warnings.warn`: results that point to a mistake in the trainable."""


class SweepError(HpsearchError):
    """A sweep (a file, or the arguments of `search`) asks for something that can't be done."""


class DesignError(HpsearchError):
    """A network for a data set can't be designed as it was asked for."""


class TrainableError(HpsearchError):
    """A trainable can't be imported, or breaks the contract of `trial.report` and `trial.iterations`."""


class CheckpointError(HpsearchError):
    """A checkpoint can't be written so that it can be read again, or can't be read."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that was written is missing or damaged."""


class UnwritableError(HpsearchError):
    """The system refuses to write what a trial has to write, and the storage isn't to blame."""


class StorageError(HpsearchError):
    """A study's directory can't be written or read: the disk is full, out of order, or was taken away."""


class JournalError(HpsearchError):
    """A study's directory or journal is missing, foreign, or doesn't fit the sweep it is opened for."""


class StudyInUseError(JournalError):
    """Another live process runs this study."""


class SearcherError(HpsearchError):
    """A searcher that learns has failed, or the process that it works in."""


class TellError(HpsearchError):
    """What is told of a trial doesn't fit what was asked for."""


class BackendError(HpsearchError):
    """The place where trials run can't be reached or can't hold a worker of the size asked for."""


class StopSearch(Exception):
    """Raised in a callback of `search`: the sweep ends as by `hpsearch stop`, and can be resumed."""


class Interrupted(KeyboardInterrupt):
    """The user wants an end at once. Any other KeyboardInterrupt in a trainable is one that it raised itself."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Give an exception and what it came of, one behind the other, each once: `raise error from error` is a circle."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def exception_line(error: BaseException) -> str:
    """Give the line that names an exception: `ValueError: the rate must be positive`."""
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    # A SyntaxError shows the code first; of any other the message comes first, and may go on for pages.
    line = lines[-1] if isinstance(error, SyntaxError) else lines[0]
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 3] + "..."
