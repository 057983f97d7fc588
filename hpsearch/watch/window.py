"""The part of the table of trials that a terminal shows, as cells of fixed widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpsearch.tables.layout import cut_to, display_width, one_line
from hpsearch.trial import TrialRow
from hpsearch.watch.columns import TrialColumn

__all__ = ["GAP", "ColumnWidths", "Window", "window_of"]

GAP = 3
"""Columns of the terminal between two of the table."""

_LEAST_TEXT = 12
"""Smallest width of a text, in columns of the terminal."""


class ColumnWidths:
    """Widths so far: they grow while scrolling and never shrink, so that the table doesn't move."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, head: str, cells: Sequence[str]) -> int:
        """Return a column's width, with these cells in it."""
        width = max(self._seen.get(head, 0), max(map(display_width, (head, *cells))))
        self._seen[head] = width
        return width


@dataclass(frozen=True, slots=True)
class Window:
    """What is shown."""

    columns: Sequence[TrialColumn]
    starts: Sequence[int]
    """Start of each column, in columns of the terminal."""
    head: Sequence[str]
    cells: Sequence[Sequence[str]]
    """Cells of each row, padded to the column's width."""
    left_out: Sequence[str] = field(default=())
    """Columns that don't fit."""

    def column_at(self, x: int) -> TrialColumn | None:
        """Return the column at a position in the terminal."""
        found = [column for column, start in zip(self.columns, self.starts, strict=True) if start <= x]
        return found[-1] if found else None


def window_of(
    rows: Sequence[TrialRow], columns: Sequence[TrialColumn], widths: ColumnWidths, room: int, skipped: int = 0
) -> Window:
    """Compute the layout of rows.

    Required columns come first, then as many others as fit, with texts cut if necessary.

    Args:
        rows: The visible rows.
        columns: All columns.
        widths: Widths of columns so far.
        room: Width of the terminal.
        skipped: Number of optional columns to skip at the front.
    """
    free = [place for place, column in enumerate(columns) if not column.is_kept]
    wanted = sorted(set(range(len(columns))) - set(free[: min(skipped, max(len(free) - 1, 0))]))
    laid: dict[int, tuple[list[str], int]] = {}
    left = room + GAP
    for place in sorted(wanted, key=lambda place: not columns[place].is_kept):
        column = columns[place]
        cells = [one_line(cell) for cell in column.cells(rows)]
        width = widths.of(column.head, cells)
        least = min(width, max(_LEAST_TEXT, display_width(column.head))) if column.is_text else width
        if not column.is_kept and least + GAP > left:
            break
        laid[place] = cells, least
        left -= least + GAP
    starts, at, texts = [], 0, []
    for place, (cells, width) in sorted(laid.items()):
        column = columns[place]
        more = max(0, min(left, widths.of(column.head, ()) - width))
        left -= more
        texts.append([_padded(cell, width + more, column.is_text) for cell in (column.head, *cells)])
        starts.append(at)
        at += width + more + GAP
    shown = [columns[place] for place in sorted(laid)]
    lines = list(zip(*texts, strict=True)) if texts else [()] * (len(rows) + 1)
    left_out = [column.head for place, column in enumerate(columns) if place not in laid]
    return Window(shown, starts, lines[0], lines[1:], left_out)


def _padded(cell: str, width: int, is_text: bool) -> str:
    cell = cut_to(cell, width)
    padding = " " * (width - display_width(cell))
    return cell + padding if is_text else padding + cell
