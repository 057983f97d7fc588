"""Displays of a running sweep: a live table in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any, Literal, TextIO
from uuid import uuid4

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpsearch.objective import Objective
from hpsearch.observers.display import (
    LONG_WAIT,
    MOST_FAILURES,
    Display,
    Running,
    SilentDisplay,
    Snapshot,
    WaitReporter,
    line_of,
    trials_of,
    work_of,
    workers_text,
)
from hpsearch.schedulers.base import RungView
from hpsearch.tables.wording import best_parts, counted, duration, front_line, number, params_line, shortened
from hpsearch.trial import TrialState

MOST_RUNG_ROWS = 12
LINE_EVERY = 10.0
"""Seconds of the sweep between two plain lines, if nothing special happens."""

_LEAST_PAUSE = 1.0
"""The same in real seconds, as a simulated sweep may run for days of simulated time in one real second."""


def choose_progress(stream: TextIO | None, quiet: bool = False) -> Display:
    """Return a live table for a terminal or a notebook, plain lines for a file, and a silent display otherwise."""
    if stream is None or quiet:  # Python's streams are None if the descriptor is closed
        return SilentDisplay()
    if (publish := publisher(stream)) is not None:
        return NotebookTable(publish, stream)
    live = stream.isatty() and os.environ.get("TERM") != "dumb"
    stream, owned = _apart(stream)
    return LiveTable(stream, owned) if live else PlainLines(stream, owned)


def _apart(stream: TextIO) -> tuple[TextIO, bool]:
    """Return a separate stream to the same target, as a trial in this process redirects stdout and stderr."""
    try:
        if stream.fileno() not in (1, 2):
            return stream, False
        return os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8", errors="replace"), True
    except (OSError, ValueError):  # a stream in memory has no descriptor
        return stream, False


class LiveTable(Display):
    """A table in the terminal. `show` redraws it in place, in one write and without a thread.

    The table has fewer than 30 lines for any number of brackets. Output of other code scrolls above it.
    """

    def __init__(self, stream: TextIO, owned: bool = False) -> None:
        self._stream = stream
        self._owned = owned
        self._console = Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._table: RenderableType = Text("")

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the table."""
        self.end_wait()
        self._live.start()  # once
        self._table = _picture(snapshot)
        self._live.update(self._table, refresh=True)

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(Text(text))

    def wait(self, reason: str) -> None:
        """Count the seconds below the table."""
        self.end_wait()
        self.waiting = WaitReporter(lambda seconds: self._draw_wait(f"{reason}  {duration(seconds)}"))

    def _draw_wait(self, line: str) -> None:
        self._live.start()
        shown = [self._table] if isinstance(self._table, Group) else []
        self._live.update(Group(*shown, Text(line, "cyan", no_wrap=True)), refresh=True)

    def close(self) -> None:
        """Leave the last table on the screen."""
        self.end_wait()
        self._live.update(self._table)
        self._live.stop()
        if self._owned:
            self._stream.close()


class PlainLines(Display):
    """Plain lines: at the start, at the end, every ten seconds, and if the best value improves or a trial fails."""

    def __init__(self, stream: TextIO, owned: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._owned = owned
        self._clock = clock
        self._last: Snapshot | None = None
        self._next_line = self._rested = 0.0
        self._failed = 0
        self._printed = ""
        self._waited: set[str] = set()

    def show(self, snapshot: Snapshot) -> None:
        """Print a line if it is time for one."""
        self.end_wait()
        if self._last is None:
            self._start(snapshot)
        if snapshot.waiting is not None and snapshot.waiting[1] >= LONG_WAIT:
            self._print_wait(snapshot.waiting[0])
        self._print_failures(snapshot)
        former = [row.score for row in self._last.leaders] if self._last else []
        improved = any(row.score not in former for row in snapshot.leaders)
        if improved or (snapshot.elapsed >= self._next_line and self._clock() >= self._rested):
            self._print_line(snapshot)
            self._next_line = snapshot.elapsed + LINE_EVERY
            self._rested = self._clock() + _LEAST_PAUSE
        self._last = snapshot

    def note(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    def wait(self, reason: str) -> None:
        """Print a line, if the wait takes longer than a second."""
        self.end_wait()
        self.waiting = WaitReporter(lambda _: self._print_wait(reason))

    def _print_wait(self, reason: str) -> Literal[False]:
        """Print a reason to wait, once."""
        if reason not in self._waited:
            self._waited.add(reason)
            self._print(f"{reason} ...")
        return False

    def close(self) -> None:
        """Print a last line, and the best params."""
        self.end_wait()
        if self._last is not None:
            self._print_line(self._last)
            if self._last.leaders and not self._last.objective.several:
                self._print(f"best params: {params_line(self._last.leaders[0].params)}")
        if self._owned:
            self._stream.close()

    def _start(self, snapshot: Snapshot) -> None:
        size = [f"{snapshot.name}: {snapshot.objective.aim}"]
        if snapshot.total is not None:
            trials, iterations = snapshot.total
            size += [counted(trials, "trial"), counted(iterations, "iteration")]
        self._print(", ".join([*size, workers_text(snapshot.workers)]))
        self._failed = snapshot.counts.get(TrialState.FAILED, 0)
        self._next_line = snapshot.elapsed + LINE_EVERY

    def _print_failures(self, snapshot: Snapshot) -> None:
        failed = snapshot.counts.get(TrialState.FAILED, 0)
        new, self._failed = failed - self._failed, failed
        if new <= 0:
            return
        shown = list(snapshot.failures)[-min(new, MOST_FAILURES) :]
        for trial, message in shown:
            self._print(f"trial {trial} failed: {shortened(message, 200)}")
        if new > len(shown):
            hidden = new - len(shown)
            self._print(f"{counted(hidden, 'more trial')} failed")

    def _print_line(self, snapshot: Snapshot) -> None:
        if (line := line_of(snapshot)) != self._printed:
            self._print(line)
            self._printed = line

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _picture(snapshot: Snapshot) -> RenderableType:
    """Draw a snapshot for a terminal."""
    head, *lines = _lines(snapshot)
    if not snapshot.rungs:
        return Group(head, *lines)
    table = _rung_table(rung_rows(snapshot.rungs, MOST_RUNG_ROWS), snapshot.resource or "iterations")
    return Group(head, table, *lines)


def _lines(snapshot: Snapshot, ended: bool = False) -> Iterator[Text]:
    """Return a snapshot as lines, for terminals and notebooks. A sweep that has ended neither works nor waits."""
    head = Text.assemble((snapshot.name, "bold"), f"  {snapshot.objective.aim}", no_wrap=True)
    head.append(f"  {duration(snapshot.elapsed)}", "cyan")
    if snapshot.remaining is not None and not ended:
        head.append(f", ~{duration(snapshot.remaining)} left")
    yield head
    yield Text(trials_of(snapshot), no_wrap=True, overflow="ellipsis")
    if not ended:
        yield Text(work_of(snapshot), no_wrap=True, overflow="ellipsis")
        if snapshot.waiting is not None and snapshot.waiting[1] >= LONG_WAIT:
            reason, seconds = snapshot.waiting
            yield Text(f"{reason}  {duration(seconds)}", "cyan", no_wrap=True)
    yield from _best(snapshot)
    for trial, message in list(snapshot.failures)[-MOST_FAILURES:]:
        yield Text(f"trial {trial} failed: {shortened(message, 200)}", "red", no_wrap=True)


def _rung_table(rows: Sequence[RungRow], unit: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("bracket", "rung", unit, "trials", "running"):
        table.add_column(column, justify="left" if column == "bracket" else "right", no_wrap=True)
    table.add_column("")
    for row in rows:
        finished = f"{row.finished:,}" if row.size is None else f"{row.finished:,}/{row.size:,}"
        bar = ProgressBar(row.size or 1, row.finished, width=20) if row.size else ""
        running = str(row.started - row.finished or "")
        table.add_row(row.bracket, row.rung, row.until, finished, running, bar)
    return table


def _best(snapshot: Snapshot) -> Iterator[Text]:
    objective, leaders = snapshot.objective, snapshot.leaders
    if not objective.goals:
        return
    if not leaders or objective.several:
        front = f"{'front ' if objective.several else ''}{front_line(leaders, objective)}"
        yield Text(front, "" if leaders else "dim", no_wrap=True, overflow="ellipsis")
        return
    best = leaders[0]
    title, value, trial = best_parts(best, objective)
    yield Text.assemble(f"best {title} ", (value, "bold green" if best.feasible else "yellow"), trial)
    yield Text(shortened(f"  {params_line(best.params)}", 400))
    # With `metric.scope: best` the value may be from an earlier iteration, whose other metrics aren't known here.
    metrics = best.metrics if best.value_iteration in (0, best.iterations) else {}
    if further := {name: value for name, value in metrics.items() if name != objective.title}:
        yield Text(shortened(f"  reports {params_line(further)}", 400), "dim")


@dataclass(frozen=True, slots=True)
class RungRow:
    """One line of the table: a rung, or several rungs summed up."""

    bracket: str
    rung: str
    until: str
    started: int
    finished: int
    size: int | None
    """Number of trials that will run in the rung; None if there is no known bound."""


def rung_rows(rungs: Sequence[RungView], most: int) -> list[RungRow]:
    """Return at most `most` lines for all rungs.

    Finished brackets become one line. If there are still too many lines, rungs with the same last iteration are summed
    up, and then the last ones are summed up in one line.
    """
    if len(rungs) <= most:
        return [_row([rung]) for rung in rungs]
    brackets = _grouped(rungs, lambda rung: rung.bracket)
    finished = [rung for bracket in brackets if _is_done(bracket) for rung in bracket]
    open_ = [rung for bracket in brackets if not _is_done(bracket) for rung in bracket]
    room = most - (1 if finished else 0)
    groups = [[rung] for rung in open_]
    if len(groups) > room:
        groups = _grouped(open_, lambda rung: math.inf if rung.until is None else rung.until)
    if len(groups) > room:
        groups = [*groups[: room - 1], [rung for group in groups[room - 1 :] for rung in group]]
    return [_row(group) for group in ([finished, *groups] if finished else groups)]


def _grouped(rungs: Iterable[RungView], key: Callable[[RungView], float]) -> list[list[RungView]]:
    """Group the rungs by key, in the order of the keys."""
    return [list(group) for _, group in groupby(sorted(rungs, key=key), key)]


def _is_done(bracket: Iterable[RungView]) -> bool:
    return all(rung.size is not None and rung.finished >= rung.size for rung in bracket)


def _row(rungs: Sequence[RungView]) -> RungRow:
    sizes = [rung.size for rung in rungs]
    return RungRow(
        bracket=_span([rung.bracket for rung in rungs]),
        rung=_span([rung.rung for rung in rungs]),
        until=_span([rung.until for rung in rungs]),
        started=sum(rung.started for rung in rungs),
        finished=sum(rung.finished for rung in rungs),
        size=None if None in sizes else sum(size for size in sizes if size is not None),
    )


def _span(numbers: Iterable[int | None]) -> str:
    """Format numbers: `3`, or `0 to 7`, or `end` for None."""
    finite = [number for number in numbers if number is not None]
    if not finite:
        return "end"
    low, high = min(finite), max(finite)
    return str(low) if low == high else f"{low} to {high}"


Publish = Callable[[dict[str, str], bool], object]
"""Function that shows data by MIME type. If its second argument is True, the data replaces what it showed before."""

_PAUSE = 0.5
"""Minimum seconds between two updates."""

_MOST_LETTERS = 160
"""Maximum number of characters of a running trial's parameters."""


def publisher(stream: TextIO) -> Publish | None:
    """Return a function that shows data in the running notebook cell; None outside of a notebook.

    Args:
        stream: Stream for the sweep's output. The user may have redirected stdout.
    """
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel") or type(stream).__module__.partition(".")[0] != "ipykernel":
        return None
    from IPython.display import display

    name = f"hpsearch-{uuid4()}"

    def publish(shown: dict[str, str], again: bool) -> None:
        try:
            display(shown, raw=True, display_id=name, update=again)  # type: ignore[no-untyped-call]
        except Exception as error:  # any exception of a kernel, a front end or a hook
            raise OSError(f"the notebook shows nothing more: {error}") from error

    return publish


class NotebookTable(Display):
    """The sweep's state and its running trials, in one output of a notebook cell.

    Args:
        publish: Shows the table. Raises OSError if the notebook can't show anything any more.
        stream: Stream for permanent lines.
        clock: Returns seconds.
    """

    most_running = 12

    def __init__(self, publish: Publish, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._publish = publish
        self._stream = stream
        self._clock = clock
        self._rested = 0.0
        self._shown: dict[str, str] = {}
        self._last: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Update the output, unless the last update was a moment ago."""
        self.end_wait()
        self._last = snapshot
        if self._clock() >= self._rested:
            self._put(snapshot)

    def note(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)

    def wait(self, reason: str) -> None:
        """Count the seconds below the table."""
        self.end_wait()
        self.waiting = WaitReporter(lambda seconds: self._put(self._last, f"{reason}  {duration(seconds)}"))

    def close(self) -> None:
        """Show the final result."""
        self.end_wait()
        if self._last is not None:
            self._put(self._last, ended=True)

    def _put(self, snapshot: Snapshot | None, waits: str = "", ended: bool = False) -> None:
        line = "" if snapshot is None else line_of(snapshot).strip()
        shown = {"text/html": snapshot_html(snapshot, waits, ended), "text/plain": waits or line}
        if shown != self._shown:
            again, self._shown = bool(self._shown), shown
            self._publish(shown, again)
        self._rested = self._clock() + _PAUSE


def snapshot_html(snapshot: Snapshot | None, waits: str = "", ended: bool = False) -> str:
    """Return a sweep's state as HTML, in colours for light and dark pages.

    Args:
        snapshot: State of the sweep; None if it hasn't begun.
        waits: What the sweep waits for, and for how long; empty if nothing blocks it.
        ended: Whether the sweep has ended.
    """
    lines = []
    if snapshot is not None:
        lines = list(map(_line_html, _lines(snapshot, ended)))
        if not ended:
            lines.insert(1, _bar(snapshot))
            lines += [_table_html(snapshot.running, snapshot.objective)] if snapshot.running else []
    if waits:
        lines.append(_line_html(Text(waits, "cyan")))
    return f'<div style="line-height:1.5;white-space:pre-wrap;font-variant-numeric:tabular-nums">{"".join(lines)}</div>'


_CSS = {"cyan": "font-style:italic", "dim": "opacity:0.75", "red": "color:#cf222e"}
"""The styles of lines, for light and dark pages."""


def _line_html(line: Text) -> str:
    html = ""
    for part in line.divide(sorted({at for span in line.spans for at in (span.start, span.end)})):
        is_bold = any("bold" in str(span.style) for span in part.spans)
        html += f"<b>{escape(part.plain)}</b>" if is_bold else escape(part.plain)
    style = _CSS.get(str(line.style), "")
    return f'<div style="{style}">{html}</div>'


def _bar(snapshot: Snapshot) -> str:
    """Draw a progress bar of iterations; empty if their total is unknown."""
    if snapshot.total is None or not snapshot.total[1]:
        return ""
    done, total = min(snapshot.iterations, snapshot.total[1]), snapshot.total[1]
    return f'<progress value="{done}" max="{total}" style="width:24em" aria-label="iterations"></progress>'


def _table_html(running: Sequence[Running], objective: Objective) -> str:
    names = objective.names or tuple(dict.fromkeys(name for trial in running for name in trial.metrics))
    wide = any(trial.width > 1 for trial in running)
    heads = ["trial", "iteration", *names, *(["workers"] if wide else []), "parameters"]
    rows = []
    for trial in running:
        at = str(trial.iteration) if trial.until is None else f"{trial.iteration} of {trial.until}"
        values = [number(trial.metrics[name]) if name in trial.metrics else "" for name in names]
        params = shortened(params_line(trial.params), _MOST_LETTERS)
        rows.append([str(trial.trial), at, *values, *([str(trial.width)] if wide else []), params])
    lines = "".join(_row_html("td", cells) for cells in rows)
    caption = '<caption style="text-align:left">running</caption>'
    return f'<table style="margin:0.4em 0">{caption}{_row_html("th", heads)}{lines}</table>'


def _row_html(kind: str, cells: Sequence[str]) -> str:
    styles = ["text-align:right"] * (len(cells) - 1) + ["text-align:left"]
    html = (f'<{kind} style="{style}">{escape(cell)}</{kind}>' for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(html)}</tr>"
