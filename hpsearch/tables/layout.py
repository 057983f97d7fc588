"""Tables for people: no wider than the terminal, and whole where there is none."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from rich.cells import cell_len, chop_cells

_GAP = "   "
_LEAST_TEXT = 24
"""Smallest width of a text column, when others need space."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The terminal or file that a table is printed to."""

    width: int | None = None
    """Columns of the terminal; None: a pipe, or a file, where nothing is cut."""
    draws: bool = True
    """Its encoding has line and block characters; else ASCII is used."""


WHOLE = Screen()
"""A pipe or a file."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    head: str
    cells: Sequence[str]
    """One of each row."""
    is_text: bool = False
    """Text, which is left-aligned and may be cut, unlike numbers."""
    is_kept: bool = False
    """Is there however narrow the terminal is."""
    is_constant: bool = False
    """A constant: if equal in all rows, it is printed below the table."""


def screen_of(stream: TextIO | None) -> Screen:
    """Return what a stream leads to."""
    if stream is None:
        return WHOLE
    try:
        "\u2500\u2588\u2840".encode(stream.encoding or "ascii")
        draws = True
    except (UnicodeEncodeError, LookupError):
        draws = False
    return Screen(shutil.get_terminal_size().columns if stream.isatty() else None, draws)


def table_text(columns: Sequence[Column], screen: Screen = WHOLE, see: str = "in a wider terminal") -> str:
    """Return a table as plain text.

    What is the same in all rows, and can't be otherwise, is named once beneath it. Where the terminal is too narrow,
    texts are cut first, then columns are left out, from the right, and named beneath.

    Args:
        columns: All of them, with equally many cells.
        screen: What it is printed on.
        see: How to see the columns that are left out.
    """
    columns = [
        replace(column, head=one_line(column.head), cells=[one_line(cell) for cell in column.cells])
        for column in columns
    ]
    constants = [column for column in columns if _stands_beneath(column)]
    shown, left_out = _fitted([column for column in columns if column not in constants], screen)
    lines = ["", *_lines(shown, screen), ""]
    if constants:
        lines.append(f"the same in all: {', '.join(f'{column.head}={column.cells[0]}' for column in constants)}")
    if left_out:
        lines.append(f"left out, as there is no room: {', '.join(left_out)}; see them {see}")
    return "".join(f"{line}\n" for line in lines)


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for a Chinese letter, none for an accent of its own."""
    return len(text) if text.isascii() else cell_len(text)


def cut_to(text: str, width: int, draws: bool = True) -> str:
    """Return a text cut to a width, with an ellipsis."""
    if display_width(text) <= width:
        return text
    sign = "…" if draws else "..."
    room = width - len(sign)
    return chop_cells(text, room)[0] + sign if room > 0 else sign[: max(width, 1)]


def one_line(text: str) -> str:
    r"""Return a text with `\n` and other control characters escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _stands_beneath(column: Column) -> bool:
    return column.is_constant and len(column.cells) > 1 and len(set(column.cells)) == 1


def _fitted(columns: Sequence[Column], screen: Screen) -> tuple[list[tuple[Column, int]], list[str]]:
    """Return the columns that fit, each with its width, and the names of the others."""
    full = [(column, _width(column)) for column in columns]
    if screen.width is None:
        return full, []
    least = [(column, min(width, _LEAST_TEXT) if column.is_text else width) for column, width in full]
    left_out: list[str] = []
    while _total(least) > screen.width:
        index = max((index for index, (column, _) in enumerate(least) if not column.is_kept), default=None)
        if index is None:
            break
        left_out.append(least[index][0].head)
        del least[index], full[index]
    room = screen.width - _total(least)
    fitted = []
    for (column, width), (_, full_width) in zip(least, full, strict=True):
        more = max(0, min(room, full_width - width))
        room -= more
        fitted.append((column, width + more))
    return fitted, left_out[::-1]


def _width(column: Column) -> int:
    return max(map(display_width, (column.head, *column.cells)))


def _total(columns: Sequence[tuple[Column, int]]) -> int:
    return 1 + sum(width for _, width in columns) + len(_GAP) * (len(columns) - 1)


def _lines(columns: Sequence[tuple[Column, int]], screen: Screen) -> Iterator[str]:
    heads = (padded(column.head, width, column.is_text, screen.draws) for column, width in columns)
    yield f" {_GAP.join(heads)}".rstrip()
    yield f" {('─' if screen.draws else '-') * (_total(columns) - 1)}"
    rows = [[padded(cell, width, column.is_text, screen.draws) for cell in column.cells] for column, width in columns]
    for row in zip(*rows, strict=True) if rows else itertools.repeat((), 0):
        yield f" {_GAP.join(row)}".rstrip()


def padded(cell: str, width: int, is_text: bool, draws: bool = True) -> str:
    """Return a cell in a width, cut if it is wider: a text at the left, a number at the right."""
    if len(cell) <= width and cell.isascii():  # of thousands of cells nearly all
        return cell.ljust(width) if is_text else cell.rjust(width)
    cell = cut_to(cell, width, draws)
    padding = " " * (width - display_width(cell))
    return cell + padding if is_text else padding + cell
