"""Redirect the output of this process and its children to a file, and back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from io import BufferedWriter
from pathlib import Path
from typing import TextIO, cast

_STREAMS = (1, 2)


class OutputRedirect:
    """Redirects file descriptors 1 and 2, and `sys.stdout` and `sys.stderr`, to a file.

    Children and C libraries print to the descriptors. The Python streams are replaced as well, because they may lead
    elsewhere (a notebook, pytest) or buffer output. The whole process is redirected: another thread that must write to
    the terminal uses a duplicate of the descriptor, made before.
    """

    def __init__(self) -> None:
        for descriptor in (0, *_STREAMS):
            try:
                os.fstat(descriptor)
            except OSError:  # a process without this stream: otherwise another file would get its number
                os.open(os.devnull, os.O_RDWR)
        self._streams: list[TextIO] = []
        self._flush_c_streams = ctypes.CDLL(None).fflush

    @contextlib.contextmanager
    def to(self, path: Path) -> Iterator[None]:
        """Append the output of the context to the file."""
        before = (sys.stdout, sys.stderr)
        _flush(*before)
        self._flush_c_streams(None)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # first: it may fail
        try:
            duplicates = [os.dup(descriptor) for descriptor in _STREAMS]
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
                os.dup2(duplicate, descriptor)
                os.close(duplicate)

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
