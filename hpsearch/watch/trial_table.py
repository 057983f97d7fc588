"""The table of trials. Only the visible rows are formatted, as there may be many thousands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hpsearch.tables.layout import display_width, one_line, padded
from hpsearch.tables.trial_columns import Columns, TrialColumn, in_order
from hpsearch.trial import TrialRow, TrialState

GAP = 3
"""Space between two columns of the table, in terminal columns."""

_LEAST_TEXT = 12
"""Smallest width of a text, in terminal columns."""


@dataclass(frozen=True, slots=True)
class Window:
    """The visible part of the table."""

    columns: Sequence[TrialColumn]
    starts: Sequence[int]
    """Start of each column, in terminal columns."""
    head: Sequence[str]
    cells: Sequence[Sequence[str]]
    """Cells of each row, padded to the columns' widths."""
    left_out: Sequence[str] = field(default=())
    """Columns that don't fit."""

    def column_at(self, x: int) -> TrialColumn | None:
        """Return the column at a position in the terminal."""
        before = [column for column, start in zip(self.columns, self.starts, strict=True) if start <= x]
        return before[-1] if before else None


def window_of(
    rows: Sequence[TrialRow], columns: Sequence[TrialColumn], widths: dict[str, int], room: int, skipped: int = 0
) -> Window:
    """Compute the layout of rows.

    Required columns come first, then as many others as fit, with texts cut if necessary.

    Args:
        rows: The visible rows.
        columns: All columns.
        widths: Widths of columns so far, by head. They only grow, so that the table doesn't move while scrolling.
        room: Width of the terminal.
        skipped: Number of optional columns to skip at the front.
    """
    free = [index for index, column in enumerate(columns) if not column.is_kept]
    candidates = sorted(set(range(len(columns))) - set(free[: min(skipped, max(len(free) - 1, 0))]))
    laid: dict[int, tuple[list[str], int]] = {}
    remaining = room + GAP
    for index in sorted(candidates, key=lambda index: not columns[index].is_kept):
        column = columns[index]
        cells = [one_line(cell) for cell in column.cells(rows)]
        width = max(widths.get(column.head, 0), *map(display_width, (column.head, *cells)))
        widths[column.head] = width
        least = min(width, max(_LEAST_TEXT, display_width(column.head))) if column.is_text else width
        if not column.is_kept and least + GAP > remaining:
            break
        laid[index] = cells, least
        remaining -= least + GAP
    starts, at, texts = [], 0, []
    for index, (cells, width) in sorted(laid.items()):
        column = columns[index]
        more = max(0, min(remaining, widths[column.head] - width))
        remaining -= more
        texts.append([padded(cell, width + more, column.is_text) for cell in (column.head, *cells)])
        starts.append(at)
        at += width + more + GAP
    shown = [columns[index] for index in sorted(laid)]
    lines = list(zip(*texts, strict=True)) if texts else [()] * (len(rows) + 1)
    left_out = [column.head for index, column in enumerate(columns) if index not in laid]
    return Window(shown, starts, lines[0], lines[1:], left_out)


_STYLES = {
    TrialState.RUNNING: Style(color="cyan"),
    TrialState.FAILED: Style(color="red"),
    TrialState.STOPPED: Style(dim=True),
    TrialState.WAITING: Style(),
    TrialState.COMPLETE: Style(),
}
_BEST = Style(color="green", bold=True)
_HEAD = Style(bold=True, underline=True)
_SORTED = Style(bold=True, underline=True, reverse=True)
_CURSOR = Style(reverse=True)


class TrialTable(ScrollView, can_focus=True):
    """A table of trials, sorted by a column. The cursor stays on its trial when the trial moves.

    Args:
        columns: The columns.
        rows: All trials, by number. The owner changes this list and calls `changed`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open"),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort by the one before", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "first", "first", show=False),
        Binding("end", "last", "last", show=False),
        Binding("left", "skip(-1)", "columns before", show=False),
        Binding("right", "skip(1)", "columns behind", show=False),
    ]

    DEFAULT_CSS = "TrialTable { overflow-x: hidden; overflow-y: auto; height: 1fr; }"

    class Chosen(Message):
        """The user opens a trial."""

        def __init__(self, trial: int) -> None:
            super().__init__()
            self.trial = trial

    def __init__(self, columns: Columns, rows: Sequence[TrialRow]) -> None:
        super().__init__()
        self._columns, self._rows = columns, rows
        self._best: Collection[int] = ()
        self._widths: dict[str, int] = {}
        self._skipped = 0
        self._window: tuple[object, Window] | None = None
        self._version = 0
        self._columns.see(rows)
        self.numbers: list[int] = []
        """All trials, in the order of the lines."""
        self._sort(columns.first)
        self.cursor = self.numbers[0] if self.numbers else None
        """Number of the trial that the cursor is on; None if there are no trials."""

    @property
    def sorted_by(self) -> str:
        """The head of the column that the trials are sorted by."""
        return self._sorted.head

    def changed(self, trials: Collection[int], best: Collection[int], columns: Columns | None = None) -> None:
        """Update new or changed rows, and the best trials. With other columns all rows are new."""
        if not trials and columns is None and best == self._best:
            return
        self._columns = columns or self._columns
        if self._columns.see(self._rows if columns else [self._rows[trial] for trial in trials]) or columns:
            same = (column for column in self._columns.all if column.head == self._sorted.head)
            self._sort(next(same, self._columns.all[0]), self._descending)
        else:
            self._keys.update((trial, self._sorted.sorts_by(self._rows[trial])) for trial in trials)
            self.numbers = in_order(self._keys, self._descending)
        self._best = best
        if self.cursor is None or self.cursor >= len(self._rows):
            self.cursor = self.numbers[0] if self.numbers else None
        self._redraw()

    def on_mount(self) -> None:
        """Draw the table."""
        self._redraw()

    def on_resize(self) -> None:
        """Adapt to a new terminal size."""
        self._redraw()

    def render_line(self, y: int) -> Strip:
        """Return a line of the table: first the heads, then the trials."""
        window, width = self._visible_window(), self._width
        if y == 0:
            styles = [_SORTED if column is self._sorted else _HEAD for column in window.columns]
            return _strip(window.head, styles, width)
        index = self.scroll_offset.y + y - 1
        if y - 1 >= len(window.cells) or index >= len(self.numbers):
            return Strip.blank(width, Style.null())
        row = self._rows[self.numbers[index]]
        row_style = _CURSOR if row.number == self.cursor else _STYLES[row.state]
        best = row_style
        if row.number in self._best:
            best = _BEST if row_style is not _CURSOR else _CURSOR + Style(bold=True)
        return _strip(window.cells[y - 1], [best if column.is_kept else row_style for column in window.columns], width)

    def action_open(self) -> None:
        """Open the trial that the cursor is on."""
        if self.cursor is not None:
            self.post_message(self.Chosen(self.cursor))

    def action_sort(self, step: int) -> None:
        """Sort by the next or the previous visible column."""
        columns = self._visible_window().columns
        index = columns.index(self._sorted) + step if self._sorted in columns else 0
        self._sort(columns[index % len(columns)])
        self._redraw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._sort(self._sorted, not self._descending)
        self._redraw()

    def action_move(self, step: int) -> None:
        """Move the cursor."""
        if self.cursor is None:
            return
        index = min(max(self.numbers.index(self.cursor) + step, 0), len(self.numbers) - 1)
        self.cursor = self.numbers[index]
        first, height = self.scroll_offset.y, self._height
        if not first <= index < first + height:
            self.scroll_to(y=index if index < first else index - height + 1, animate=False)
        self._redraw()

    def action_page(self, step: int) -> None:
        """Move the cursor by a page."""
        self.action_move(step * self._height)

    def action_first(self) -> None:
        """Move the cursor to the first trial."""
        self.action_move(-len(self.numbers))

    def action_last(self) -> None:
        """Move the cursor to the last trial."""
        self.action_move(len(self.numbers))

    def action_skip(self, step: int) -> None:
        """Scroll horizontally by columns."""
        if step < 0 or self._visible_window().left_out[self._skipped :]:
            self._skipped = max(0, self._skipped + step)
            self._redraw()

    def on_click(self, event: events.Click) -> None:
        """Sort by a clicked heading, move the cursor to a clicked trial, or open the trial."""
        y = event.y
        if y == 0:
            if (column := self._visible_window().column_at(event.x)) is not None:
                self._sort(column, column is self._sorted and not self._descending)
                self._redraw()
            return
        index = self.scroll_offset.y + y - 1
        if index >= len(self.numbers):
            return
        if self.numbers[index] == self.cursor:
            self.action_open()
        else:
            self.cursor = self.numbers[index]
            self._redraw()

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _height(self) -> int:
        return max(self.size.height - 1, 1)

    def _sort(self, column: TrialColumn, descending: bool = False) -> None:
        self._sorted, self._descending = column, descending
        self._keys = {row.number: column.sorts_by(row) for row in self._rows}
        self.numbers = in_order(self._keys, descending)

    def _visible_window(self) -> Window:
        """Return the visible part of the table. It is computed once for all lines."""
        first = self.scroll_offset.y
        state = self._version, first, self._width, self._height
        if self._window is None or self._window[0] != state:
            indices = range(first, min(first + self._height, len(self.numbers)))
            rows = [self._rows[self.numbers[index]] for index in indices]
            window = window_of(rows, self._columns.all, self._widths, self._width, self._skipped)
            self._window = state, window
        return self._window[1]

    def _redraw(self) -> None:
        self._version += 1
        self.virtual_size = Size(self._width, len(self.numbers) + 1)
        self.refresh()


def _strip(cells: Sequence[str], styles: Sequence[Style], width: int) -> Strip:
    parts = []
    for cell, style in zip(cells, styles, strict=True):
        parts += [Segment(cell, style), Segment(" " * GAP, style if style.reverse and not style.underline else None)]
    last_style = parts[-1].style if parts else None
    return Strip(parts).adjust_cell_length(width, last_style)
