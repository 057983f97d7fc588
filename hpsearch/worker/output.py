"""Send what this process and its children print to a file, and back."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import TextIO, cast

__all__ = ["OutputRedirect"]

_STREAMS = (1, 2)
_FIRST_FREE = 3


class OutputRedirect:
    """Turns file descriptors 1 and 2, and `sys.stdout` and `sys.stderr`, to a file for a while.

    The descriptors carry what children and C libraries print. The two Python streams are swapped as well,
    because they may lead elsewhere (a notebook, pytest) or hold back what was printed. The whole process is
    turned: who must reach the terminal meanwhile, from another thread, writes to a duplicate of the
    descriptor that was made before.
    """

    def __init__(self) -> None:
        self._streams: list[TextIO] = []
        self._flush_c_streams = ctypes.CDLL(None).fflush

    @contextlib.contextmanager
    def to(self, path: Path) -> Iterator[None]:
        """Append to the file what is printed inside the context."""
        before = (sys.stdout, sys.stderr)
        _flush(*before)
        self._flush_c_streams(None)
        log = _open_above(path)  # first: it may fail
        try:
            duplicates = [_duplicate(descriptor) for descriptor in _STREAMS]
            for descriptor in _STREAMS:
                os.dup2(log, descriptor)
        finally:
            os.close(log)
        streams = self._open_streams()
        sys.stdout, sys.stderr = streams
        try:
            yield
        finally:
            _flush(sys.stdout, sys.stderr)
            _settle(streams)
            self._flush_c_streams(None)
            sys.stdout, sys.stderr = before
            for descriptor, duplicate in zip(_STREAMS, duplicates, strict=True):
                _give_back(descriptor, duplicate)

    def _open_streams(self) -> list[TextIO]:
        """Give streams onto the two descriptors: the same ones each time, unless someone closed them."""
        if not self._streams or any(stream.closed for stream in self._streams):
            self._streams = [_open_stream(descriptor) for descriptor in _STREAMS]
        return self._streams


def _open_stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        if stream is not None:
            with contextlib.suppress(Exception):  # a broken pipe, one that was closed, or a user's own that has none
                stream.flush()


def _settle(streams: Iterable[TextIO]) -> None:
    """Flush our streams; what the file doesn't take, on a full disk, is lost: kept, it would go to the next file."""
    for stream in streams:
        try:
            stream.flush()
        except Exception:
            # Without what it writes to, a stream counts as closed, and what it holds goes nowhere.
            with contextlib.suppress(Exception):
                cast(BufferedWriter, stream.buffer).raw.close()


def _open_above(path: Path) -> int:
    """Open for appending, with a descriptor above the standard ones even where those are free."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        return fcntl.fcntl(log, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    finally:
        os.close(log)


def _duplicate(descriptor: int) -> int | None:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    except OSError as error:
        if error.errno != errno.EBADF:  # a process without standard output
            raise
        return None


def _give_back(descriptor: int, duplicate: int | None) -> None:
    if duplicate is None:
        os.close(descriptor)
    else:
        os.dup2(duplicate, descriptor)
        os.close(duplicate)
