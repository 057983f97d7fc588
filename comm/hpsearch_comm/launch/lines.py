"""What ranks write, cut into lines, so that those of several ranks never mix within one."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable

__all__ = ["Lines", "Page"]

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
"""A line, or one state of a progress bar, which ends with a carriage return."""

MOST_BYTES = 1 << 20
"""Of a line: a longer one is passed on in pieces."""


class Lines:
    """One stream of one rank."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take some bytes; give the lines that are complete, each with its end."""
        self._rest += data
        # Of a carriage return at the very end it isn't known yet whether it ends a line, or a line feed follows.
        known = len(self._rest) - self._rest.endswith(b"\r")
        end = 1 + max(self._rest.rfind(mark, 0, known) for mark in (b"\n", b"\r"))
        lines: list[bytes] = _LINE.findall(self._rest, 0, end)
        self._rest = self._rest[end:]
        if len(self._rest) > MOST_BYTES:
            lines.append(self.rest())
        return lines

    def rest(self) -> bytes:
        """Return what has come of the line that isn't complete."""
        rest, self._rest = self._rest, b""
        return rest

    def __bool__(self) -> bool:
        """Whether a line has begun."""
        return bool(self._rest)


class Page:
    """Where lines of many streams are written, each with its stream's prefix.

    A piece of a line is followed by the rest of it, or by a line end where another stream's comes first.

    Args:
        write: Is given what to write.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._open: Hashable = None
        """Whose line isn't at its end."""
        self._returned = False
        """Whether the next piece of it begins at its begin, after a carriage return."""

    def put(self, stream: Hashable, prefix: bytes, piece: bytes) -> None:
        """Write a line, or a piece of one.

        Args:
            stream: Whose it is; not None.
            prefix: What the line begins with.
            piece: The line with its end, or what there is of it.
        """
        start = b""
        if self._open is not None and self._open != stream:
            self.end_line()
        if self._open is None or self._returned:
            start = prefix
        self._write(start + piece)
        self._open = None if piece.endswith(b"\n") else stream
        self._returned = piece.endswith(b"\r")

    def end_line(self) -> None:
        """Begin a new line where one isn't at its end."""
        if self._open is not None:
            self._write(b"\n")
        self._open, self._returned = None, False
