"""How much room a text takes, and a text that fits into some."""

from __future__ import annotations

import unicodedata

__all__ = ["fitted", "width_of"]

_LETTER = 0.6
"""Of a text's size: how wide its letters are."""


def width_of(text: str, size: float) -> float:
    """Say how many pixels a text takes at most, in common fonts.

    Args:
        text: In one line.
        size: Of the letters, in pixels.
    """
    return size * sum(map(_wide, text))


def fitted(text: str, room: float, size: float) -> str:
    """Give the first line of a text, without its middle where it has no room: names often differ at their ends.

    Args:
        text: Any.
        room: Pixels.
        size: Of the letters, in pixels.
    """
    line = next(iter(text.splitlines()), "")
    if width_of(line, size) <= room:
        return line
    half = (room / size - _LETTER) / 2
    return f"{line[: _letters(line, half)]}…{line[len(line) - _letters(line[::-1], half) :]}"


def _letters(text: str, room: float) -> int:
    """Count the letters from the left that have room, in sizes."""
    for count, letter in enumerate(text):
        room -= _wide(letter)
        if room < 0:
            return count
    return len(text)


def _wide(letter: str) -> float:
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else _LETTER
