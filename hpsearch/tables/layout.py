"""Tables as text. They fit into the terminal's width, and are complete if the output isn't a terminal."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from rich.cells import cell_len, chop_cells

_GAP = "   "
_LEAST_TEXT = 24
"""Smallest width of a text column, if other columns need space."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The terminal or file that a table is printed to."""

    width: int | None = None
    """Width of the terminal in columns; None for a pipe or a file, where nothing is cut."""
    draws: bool = True
    """Whether the encoding has line and block characters. If not, ASCII is used."""


WHOLE = Screen()
"""A pipe or a file."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    head: str
    cells: Sequence[str]
    """Cells, one for each row."""
    is_text: bool = False
    """Whether the cells are text, which is left-aligned and may be cut, unlike numbers."""
    is_kept: bool = False
    """Whether the column is shown in a terminal of any width."""
    is_constant: bool = False
    """Whether the column can't vary. If all rows are equal, the value is printed below the table."""


def screen_of(stream: TextIO | None) -> Screen:
    """Return the width and the characters that a stream supports."""
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

    A constant column with equal cells is printed once below the table. If the terminal is too narrow, texts are cut
    first. Then columns are left out, from the right, and their names are printed below the table.

    Args:
        columns: The columns, with the same number of cells.
        screen: The terminal or file for the output.
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
    """Return a text's width in terminal columns: two for a Chinese character, none for a combining accent."""
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
    """Return the columns that fit, each with its width, and the names of the columns that don't."""
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
    """Pad a cell to a width, or cut it: texts are left-aligned, numbers right-aligned."""
    if len(cell) <= width and cell.isascii():  # fast path for nearly all of thousands of cells
        return cell.ljust(width) if is_text else cell.rjust(width)
    cell = cut_to(cell, width, draws)
    padding = " " * (width - display_width(cell))
    return cell + padding if is_text else padding + cell
