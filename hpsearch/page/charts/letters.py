"""Estimate the width of a text, and shorten a text to a width."""

from __future__ import annotations

import unicodedata

__all__ = ["fitted", "width_of"]

_LETTER = 0.6
"""Width of letters, as a fraction of the font size."""


def width_of(text: str, size: float) -> float:
    """Return how many pixels a text takes at most, in common fonts.

    Args:
        text: In one line.
        size: Of the letters, in pixels.
    """
    return size * sum(map(_wide, text))


def fitted(text: str, room: float, size: float) -> str:
    """Return the first line of a text, with its middle cut out if it doesn't fit: names often differ at their ends.

    Args:
        text: The text.
        room: Available width in pixels.
        size: Font size in pixels.
    """
    line = next(iter(text.splitlines()), "")
    if width_of(line, size) <= room:
        return line
    half = (room / size - _LETTER) / 2
    return f"{line[: _letters(line, half)]}…{line[len(line) - _letters(line[::-1], half) :]}"


def _letters(text: str, room: float) -> int:
    """Return the number of letters that fit, from the left."""
    for count, letter in enumerate(text):
        room -= _wide(letter)
        if room < 0:
            return count
    return len(text)


def _wide(letter: str) -> float:
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else _LETTER
