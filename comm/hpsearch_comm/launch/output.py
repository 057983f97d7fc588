"""The ranks' output to the terminal and to files. It is written in lines, so that lines of several ranks never mix."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.streams import Writer

MOST_BYTES = 1 << 20
"""Maximum length of a line; a longer line is written in pieces."""


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete lines with their line ends, and the incomplete last line.

    A carriage return also ends a line, as in progress bars.
    """
    *lines, last = data.splitlines(keepends=True) or [b""]
    # A carriage return at the end of the data may still be followed by a line feed.
    if last.endswith(b"\n") or len(last) > MOST_BYTES:
        return [*lines, last], b""
    return lines, last


class Page:
    """Formats the lines of many streams for one output, each line with its stream's prefix.

    If another stream writes after a piece of a line, the piece is ended with a line end first.
    """

    def __init__(self) -> None:
        self._open: Hashable = None
        """The stream whose line is incomplete; None if there is none."""
        self._returned = False
        """Whether the last piece ended with a carriage return, so that the next piece needs the prefix again."""

    def put(self, stream: Hashable, prefix: bytes, piece: bytes) -> bytes:
        """Return the bytes to write for a line or a piece of a line.

        Args:
            stream: The stream of the line; not None.
            prefix: The prefix of the stream's lines.
            piece: The line with its line end, or a piece of the line.
        """
        end = b"" if self._open in (None, stream) else b"\n"
        start = prefix if end or self._open is None or self._returned else b""
        self._open = None if piece.endswith(b"\n") else stream
        self._returned = piece.endswith(b"\r")
        return end + start + piece


STDOUT, STDERR = 1, 2
_TAIL = 1 << 15
"""Bytes of a rank's stderr that are kept for the report of a failure."""


@dataclass(slots=True)
class _Rank:
    prefix: bytes
    file: BinaryIO | None
    incomplete: dict[int, bytes] = field(default_factory=lambda: {STDOUT: b"", STDERR: b""})
    """The incomplete last line, by stream."""
    tail: bytes = b""


class Output:
    """Writes the ranks' lines to this process's standard output and error, and each rank's output to a file.

    Thread-safe.

    Args:
        writer: Writes to standard output and error.
        ranks: All ranks.
        prefix: Whether each line starts with its rank.
        directory: Directory of the ranks' files; None for no files.

    Raises:
        LaunchError: A file can't be written.
    """

    def __init__(self, writer: Writer, ranks: Iterable[int], prefix: bool, directory: Path | None) -> None:
        self._writer = writer
        self._lock = threading.RLock()
        numbers = list(ranks)
        width = len(str(numbers[-1]))
        self._ranks: dict[int, _Rank] = {}
        try:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
            for rank in numbers:
                name = f"rank.{rank:0{width}}.txt"
                file = None if directory is None else (directory / name).open("wb")
                self._ranks[rank] = _Rank(f"[{rank}] ".encode() if prefix else b"", file)
        except OSError as error:
            raise _unwritable(error) from None
        pages = {stream: Page() for stream in (STDOUT, STDERR)}
        if _is_one_file(STDOUT, STDERR):  # both streams go to the same file, so they share a page
            pages[STDERR] = pages[STDOUT]
        self._pages = pages

    def feed(self, rank: int, stream: int, data: bytes) -> None:
        """Write a chunk of a rank's output.

        Raises:
            LaunchError: The rank's file can't be written.
        """
        state = self._ranks[rank]
        if state.file is not None:
            try:
                state.file.write(data)
                state.file.flush()
            except OSError as error:
                raise _unwritable(error) from None
        with self._lock:
            if stream == STDERR:
                state.tail = (state.tail + data)[-_TAIL:]
            lines, state.incomplete[stream] = split_lines(state.incomplete[stream] + data)
            self._put(rank, stream, *lines)

    def finish(self, rank: int) -> None:
        """Write the incomplete lines of a rank that has ended."""
        with self._lock:
            incomplete = self._ranks[rank].incomplete
            for stream, piece in incomplete.items():
                if piece:
                    self._put(rank, stream, piece)
                    incomplete[stream] = b""

    def finish_all(self) -> None:
        """Write the incomplete lines of all ranks. Children of an ended rank may have written some."""
        for rank in self._ranks:
            self.finish(rank)

    def tail(self, rank: int) -> bytes:
        """Return the end of a rank's stderr."""
        return self._ranks[rank].tail

    def repeat(self, rank: int, data: bytes) -> None:
        """Write part of a rank's stderr again."""
        self._put(rank, STDERR, *(line + b"\n" for line in data.splitlines()))

    def log(self, text: str) -> None:
        """Write a message of the launcher to standard error."""
        line = f"{text}\n".encode("utf-8", "replace")
        with self._lock:
            self._writer.write(STDERR, self._pages[STDERR].put("launcher", b"hpsearch_comm.launch: ", line))

    def _put(self, rank: int, stream: int, *pieces: bytes) -> None:
        page, prefix = self._pages[stream], self._ranks[rank].prefix
        with self._lock:
            self._writer.write(stream, b"".join(page.put((rank, stream), prefix, piece) for piece in pieces))


def _is_one_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False


def _unwritable(error: OSError) -> LaunchError:
    return LaunchError(
        f"expected files of the ranks' output to be written, got {error.strerror} for "
        f"{error.filename or 'one of them'}: make room, or name another directory (--output)"
    )
