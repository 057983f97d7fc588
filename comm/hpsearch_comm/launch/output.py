"""What ranks write, on its way to the terminal and to files: in lines, so that those of several ranks never mix."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.streams import Writer

MOST_BYTES = 1 << 20
"""Of a line: a longer one is passed on in pieces."""


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines that are complete, each with its end, and what has come of the next one.

    A line is also one state of a progress bar, which ends with a carriage return.
    """
    *lines, last = data.splitlines(keepends=True) or [b""]
    # Of a carriage return at the very end it isn't known yet whether it ends a line, or a line feed follows.
    if last.endswith(b"\n") or len(last) > MOST_BYTES:
        return [*lines, last], b""
    return lines, last


class Page:
    """Where lines of many streams are written, each with its stream's prefix.

    A piece of a line is followed by the rest of it, or by a line end where another stream's comes first.
    """

    def __init__(self) -> None:
        self._open: Hashable = None
        """Whose line isn't at its end."""
        self._returned = False
        """Whether the next piece of it begins at its begin, after a carriage return."""

    def put(self, stream: Hashable, prefix: bytes, piece: bytes) -> bytes:
        """Take a line, or a piece of one; return what to write.

        Args:
            stream: Whose it is; not None.
            prefix: What the line begins with.
            piece: The line with its end, or what there is of it.
        """
        end = b"" if self._open in (None, stream) else b"\n"
        start = prefix if end or self._open is None or self._returned else b""
        self._open = None if piece.endswith(b"\n") else stream
        self._returned = piece.endswith(b"\r")
        return end + start + piece


STDOUT, STDERR = 1, 2
_PIECE_SECONDS = 0.2
"""After which a terminal shows a line that isn't complete, such as a question."""
_TAIL = 1 << 15
"""Bytes of a rank's stderr that are kept, to see why it failed."""


@dataclass(slots=True)
class _Rank:
    prefix: bytes
    file: BinaryIO | None
    incomplete: dict[int, bytes] = field(default_factory=lambda: {STDOUT: b"", STDERR: b""})
    """What has come of the next line, by stream."""
    began: dict[int, float] = field(default_factory=dict)
    """When it was last added to, by stream."""
    tail: bytes = b""


class Output:
    """Writes the lines of all ranks to this process's standard output and error, and all that each writes to a file.

    Threads may call it at the same time.

    Args:
        writer: Writes to standard output and error.
        ranks: All of them.
        prefix: Whether each line begins with its rank.
        directory: Where each rank's file is made; None for no files.

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
        if _is_one_file(STDOUT, STDERR):  # a line of one must end there before one of the other begins
            pages[STDERR] = pages[STDOUT]
        self._pages = pages
        self._terminals = {stream for stream in pages if os.isatty(stream)}

    def feed(self, rank: int, stream: int, data: bytes) -> None:
        """Take what a rank has written.

        Raises:
            LaunchError: Its file can't be written.
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
            state.began[stream] = time.monotonic()

    def finish(self, rank: int) -> None:
        """Show what a rank that has ended has begun to write."""
        with self._lock:
            for stream in self._pages:
                self._show_incomplete(rank, stream)

    def finish_all(self) -> None:
        """Show what anybody has begun to write, such as what a rank has left behind for a while."""
        for rank in self._ranks:
            self.finish(rank)

    def tail(self, rank: int) -> bytes:
        """Return the end of what a rank has written to stderr."""
        return self._ranks[rank].tail

    def flush_stale_lines(self) -> None:
        """Show what has waited for long enough."""
        now = time.monotonic()
        with self._lock:
            for rank, state in self._ranks.items():
                for stream in self._terminals:
                    if now - state.began.get(stream, now) > _PIECE_SECONDS:
                        self._show_incomplete(rank, stream)

    def repeat(self, rank: int, data: bytes) -> None:
        """Show once more what a rank wrote to stderr."""
        self._put(rank, STDERR, *(line + b"\n" for line in data.splitlines()))

    def log(self, text: str) -> None:
        """Write a line of the launcher's own to standard error."""
        line = f"{text}\n".encode("utf-8", "replace")
        with self._lock:
            self._writer.write(STDERR, self._pages[STDERR].put("launcher", b"hpsearch_comm.launch: ", line))

    def _show_incomplete(self, rank: int, stream: int) -> None:
        incomplete = self._ranks[rank].incomplete
        if piece := incomplete[stream]:
            incomplete[stream] = b""
            self._put(rank, stream, piece)

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
