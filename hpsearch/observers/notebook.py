"""A running sweep in a notebook: one table that changes in place.

IPython is no dependency: it exists in its kernel, and isn't imported elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, TextIO
from uuid import uuid4

from hpsearch.objective import Objective
from hpsearch.observers.display import (
    LONG_WAIT,
    MOST_FAILURES,
    Display,
    Running,
    Snapshot,
    WaitReporter,
    line_of,
    trials_of,
    work_of,
)
from hpsearch.tables.wording import counted, duration, front_line, number, params_line, shortened

__all__ = ["NotebookTable", "Publish", "publisher", "snapshot_html"]

Publish = Callable[[dict[str, str], bool], object]
"""Shows data by MIME type, the first time; then (True) in place of the earlier ones."""

_PAUSE = 0.5
"""Seconds between two updates at least."""

_MOST_LETTERS = 160
"""Most letters of a running trial's parameters."""


def publisher(stream: TextIO) -> Publish | None:
    """Return what shows data in the cell of a notebook that runs; None where this is none.

    Args:
        stream: Where the sweep is to be shown: somebody may have turned the standard one elsewhere.
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
    """The sweep's state and its running trials, in one output of the cell.

    Args:
        publish: Shows it; raises OSError if nothing can be shown any more.
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
        """Show it, unless something was shown a moment ago."""
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
        snapshot: The state; None: it hasn't begun.
        waits: What blocks it, and since when.
        ended: Whether it has ended.
    """
    lines = [] if snapshot is None else list(_lines(snapshot, ended))
    if waits:
        lines.append(_line(f"<i>{escape(waits)}</i>"))
    return f'<div style="line-height:1.5;white-space:pre-wrap;font-variant-numeric:tabular-nums">{"".join(lines)}</div>'


def _lines(snapshot: Snapshot, ended: bool) -> Iterator[str]:
    remaining = "" if ended or snapshot.remaining is None else f", ~{duration(snapshot.remaining)} left"
    head = f"<b>{escape(snapshot.name)}</b>  {escape(snapshot.objective.aim)}"
    yield _line(f"{head}  {escape(duration(snapshot.elapsed) + remaining)}")
    if not ended:
        yield _bar(snapshot)
    yield _line(escape(trials_of(snapshot)))
    if not ended:
        yield _line(escape(work_of(snapshot)))
    if not ended and snapshot.waiting is not None and snapshot.waiting[1] >= LONG_WAIT:
        yield _line(f"<i>{escape(snapshot.waiting[0])}  {escape(duration(snapshot.waiting[1]))}</i>")
    yield from _best(snapshot)
    for trial, message in list(snapshot.failures)[-MOST_FAILURES:]:
        yield _line(f"trial {trial} failed: {escape(shortened(message, 200))}", "color:#cf222e")
    if not ended and snapshot.running:
        yield _table(snapshot.running, snapshot.objective)


def _bar(snapshot: Snapshot) -> str:
    """Draw how much of the whole is done, where that is known."""
    if snapshot.total is None or not snapshot.total[1]:
        return ""
    done, total = min(snapshot.iterations, snapshot.total[1]), snapshot.total[1]
    return f'<progress value="{done}" max="{total}" style="width:24em" aria-label="iterations"></progress>'


def _best(snapshot: Snapshot) -> Iterator[str]:
    objective, leaders = snapshot.objective, snapshot.leaders
    if not objective.goals:
        return
    if not leaders or objective.several:
        yield _line(f"{'front ' if objective.several else ''}{escape(front_line(leaders, objective))}")
        return
    best = leaders[0]
    text = f"best {escape(objective.title)} <b>{best.values[0]:.6g}</b>, trial {best.number} after "
    text += counted(best.iterations, "iteration")
    if not best.feasible:
        text += f", which breaks {escape(' and '.join(objective.broken(best.score)))}"
    yield _line(text)
    yield _line(escape(shortened(params_line(best.params), 400)), "opacity:0.75")


def _table(running: Sequence[Running], objective: Objective) -> str:
    names = objective.names or tuple(dict.fromkeys(name for trial in running for name in trial.metrics))
    wide = any(trial.width > 1 for trial in running)
    heads = ["trial", "iteration", *names, *(["workers"] if wide else []), "parameters"]
    rows = []
    for trial in running:
        at = str(trial.iteration) if trial.until is None else f"{trial.iteration} of {trial.until}"
        values = [number(trial.metrics[name]) if name in trial.metrics else "" for name in names]
        params = shortened(params_line(trial.params), _MOST_LETTERS)
        rows.append([str(trial.trial), at, *values, *([str(trial.width)] if wide else []), params])
    lines = "".join(_row("td", cells) for cells in rows)
    caption = '<caption style="text-align:left">running</caption>'
    return f'<table style="margin:0.4em 0">{caption}{_row("th", heads)}{lines}</table>'


def _row(kind: str, cells: Sequence[str]) -> str:
    styles = ["text-align:right"] * (len(cells) - 1) + ["text-align:left"]
    html = (f'<{kind} style="{style}">{escape(cell)}</{kind}>' for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(html)}</tr>"


def _line(html: str, style: str = "") -> str:
    return f'<div style="{style}">{html}</div>' if style else f"<div>{html}</div>"
