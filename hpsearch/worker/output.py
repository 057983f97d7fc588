"""Redirect the output of this process and its children to a file, and back."""

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

_STREAMS = (1, 2)
_FIRST_FREE = 3


class OutputRedirect:
    """Redirects file descriptors 1 and 2, and `sys.stdout` and `sys.stderr`, to a file.

    Children and C libraries print to the descriptors. The Python streams are replaced as well, because they may lead
    elsewhere (a notebook, pytest) or buffer output. The whole process is redirected: another thread that must write to
    the terminal uses a duplicate of the descriptor, made before.
    """

    def __init__(self) -> None:
        self._streams: list[TextIO] = []
        self._flush_c_streams = ctypes.CDLL(None).fflush

    @contextlib.contextmanager
    def to(self, path: Path) -> Iterator[None]:
        """Append the output of the context to the file."""
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
        """Return streams for the two descriptors: the same streams each time, unless user code closed them."""
        if not self._streams or any(stream.closed for stream in self._streams):
            self._streams = [_open_stream(descriptor) for descriptor in _STREAMS]
        return self._streams


def _open_stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        if stream is not None:
            with contextlib.suppress(Exception):  # a broken pipe, a closed one, or a user's object without `flush`
                stream.flush()


def _settle(streams: Iterable[TextIO]) -> None:
    """Flush our streams. If the disk is full, discard the output: otherwise it would go to the next file."""
    for stream in streams:
        try:
            stream.flush()
        except Exception:
            # Without its raw file a stream counts as closed, and its buffer is discarded.
            with contextlib.suppress(Exception):
                cast(BufferedWriter, stream.buffer).raw.close()


def _open_above(path: Path) -> int:
    """Open for appending, with a descriptor above the standard ones even if those are free."""
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
