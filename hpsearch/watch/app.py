"""The screens of `hpsearch watch`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Static

from hpsearch.errors import HpsearchError, JournalError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.provenance import process_name
from hpsearch.results.study import load
from hpsearch.tables import layout
from hpsearch.tables.layout import one_line
from hpsearch.tables.trial_columns import Columns
from hpsearch.tables.trial_page import TrialPage, page_lines, trial_page
from hpsearch.tables.wording import amount_of, best_parts, by_state, counted, duration, front_line, params_line
from hpsearch.trial import TrialState
from hpsearch.watch.live_study import DONE, LOOK_SECONDS, LiveStudy, Looked, Looking, Tail
from hpsearch.watch.trial_table import TrialTable


class Question(ModalScreen[bool]):
    """A question that is answered with a key: `y` means yes, any other key no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,enter,q", "answer(False)", "no"),
    ]

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Static { width: 60; max-width: 90%; height: auto; border: round $foreground; padding: 1 2; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(Text.assemble(self.question, "\n\n", ("y", "bold"), " yes   ", ("n", "bold"), " no"))

    def action_answer(self, answer: bool) -> None:
        """Answer the question."""
        self.dismiss(answer)


_LOG_LINES = 15

_SHARE = 50
"""Pause between two reads of a trial, relative to the time of a read, which takes seconds with thousands of trials."""


class TrialScreen(Screen[None]):
    """Shows one trial, with the content of `hpsearch trial`.

    Args:
        directory: The study's directory.
        pasted: The directory, quoted for a shell.
        trial: The trial's number.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace,left", "app.pop_screen", "back")]

    DEFAULT_CSS = "TrialScreen VerticalScroll { height: 1fr; }"

    def __init__(self, directory: Path, pasted: str, trial: int) -> None:
        super().__init__()
        self._directory, self._pasted = directory, pasted
        self.trial = trial
        self.text = f"reading trial {trial} ..."
        """Text on the screen."""
        self._page: TrialPage | None = None
        self._reading, self._stale, self._rested = False, True, 0.0

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with VerticalScroll():
            yield Static(Text(self.text))
        yield Footer()

    def on_mount(self) -> None:
        """Start reading the trial."""
        self.query_one(VerticalScroll).focus()
        self.news(changed=True)

    def on_resize(self) -> None:
        """Adapt to a new terminal size."""
        self._draw()

    def news(self, changed: bool) -> None:
        """Update after a poll. The trial may have changed, and its log may have grown."""
        self._stale |= changed
        if self._stale and not self._reading and time.monotonic() >= self._rested:
            self._reading, self._stale = True, False
            threading.Thread(target=self._read, name="hpsearch-watch-trial", daemon=True).start()
        self._draw()

    def _read(self) -> None:
        began = time.monotonic()
        try:
            page: TrialPage | HpsearchError = trial_page(load(self._directory), self.trial)
        except HpsearchError as error:
            page = error
        self.call_later(self._show_page, page, time.monotonic() - began)

    def _show_page(self, page: TrialPage | HpsearchError, seconds: float) -> None:
        """Show the page that was read, or why it can't be read."""
        self._reading, self._rested = False, time.monotonic() + _SHARE * seconds
        if isinstance(page, HpsearchError):
            self._page = None
            self._show(str(page))
        else:
            self._page = page
            self._draw()

    def _draw(self) -> None:
        """Show the page, with the current end of the trial's log."""
        if self._page is not None:
            screen = layout.Screen(max(self.size.width - 2, 20))
            self._show("\n".join(page_lines(self._page, self._pasted, _LOG_LINES, screen)))

    def _show(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self.query_one(Static).update(Text(text))


class WatchApp(App[None]):
    """An app that shows a study's trials and state. It only writes requests to the process that runs the study.

    Args:
        study_dir: The study's directory.
        pasted: The directory, quoted for a shell.
        tail: Tail of the study's journal, after the first poll.
        study: State of the study at the first poll.
        pause: Seconds between two polls.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "pause"),
        Binding("x", "stop", "stop"),
        Binding("d", "prune", "prune"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]
    CSS = """
    * {
        scrollbar-size-vertical: 1;
        scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default;
    }
    #header { height: auto; max-height: 50%; margin-bottom: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(
        self, study_dir: StudyDirectory, pasted: str, tail: Tail, study: LiveStudy, pause: float = LOOK_SECONDS
    ) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's own colours, dark or light
        self.title = f"hpsearch watch {pasted}"
        self.study = study
        self._study_dir, self._pasted = study_dir, pasted
        self._looking = Looking(tail, lambda found: self.call_later(self._receive, found), pause)
        self._header, self._table = Static(id="header"), TrialTable(Columns(study.sweep), study.rows)
        self._problem = self._described = ""
        self._requests: dict[int, str] = {}

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield self._header
        yield self._table
        yield Footer()

    def on_mount(self) -> None:
        """Start polling the study."""
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):  # so that the terminal is restored
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._table.focus()
        self._table.changed((), self._best())
        self._draw_header()
        self._looking.start()

    def on_unmount(self) -> None:
        """Stop polling."""
        self._looking.end()

    def _receive(self, result: Looked | HpsearchError) -> None:
        """Show the result of a poll, or why the study can't be read."""
        if not self._table.is_attached:
            return  # the app is closing
        if not self.is_headless and not os.isatty(sys.stdin.fileno()):
            self.exit()  # the terminal was closed, and the parent ignores SIGHUP
            return
        if isinstance(result, HpsearchError):
            self._problem = str(result)
        else:
            self._apply_entries(result)
        self._draw_header()
        self._show_answers()

    def _apply_entries(self, looked: Looked) -> None:
        anew = looked.record is not None
        try:
            changed = self.study.take(looked)
        except JournalError as error:
            # The study may have counted as killed while its lock couldn't be read. Everything is read again to correct
            # this.
            self._problem = str(error)
            if not anew:
                self._looking.soon(anew=True)
            return
        self._problem = ""
        self._table.changed(changed, self._best(), Columns(self.study.sweep) if anew else None)
        if isinstance(self.screen, TrialScreen):
            self.screen.news(anew or self.screen.trial in changed)

    def _best(self) -> set[int]:
        return {row.number for row in self.study.journaled.leaders() if row.feasible}

    def _draw_header(self) -> None:
        lines = list(header_lines(self.study, self._pasted, self._problem))
        shown = Text("\n").join(lines)
        if shown.markup != self._described:
            self._described = shown.markup
            self._header.update(shown)

    def on_trial_table_chosen(self, message: TrialTable.Chosen) -> None:
        """Open a trial."""
        self.push_screen(TrialScreen(self._study_dir.path, self._pasted, message.trial))

    def action_pause(self) -> None:
        """Pause or resume the sweep."""
        self._ask("resume" if self.study.ended.state == "paused" else "pause")

    def action_stop(self) -> None:
        """End the sweep, after a confirmation."""
        if self._may("stop"):
            question = f"Stop {self.study.sweep.name}? Its trials end at their next reports; hpsearch resume goes on."
            self.push_screen(Question(question), lambda yes: self._ask("stop") if yes else None)

    def action_prune(self) -> None:
        """End a trial, after a confirmation."""
        trial = self.screen.trial if isinstance(self.screen, TrialScreen) else self._table.cursor
        if trial is not None and self._may("prune"):
            question = f"End trial {trial}, and go on without it?"
            self.push_screen(Question(question), lambda yes: self._ask("prune", {"trials": [trial]}) if yes else None)

    def _may(self, verb: str) -> bool:
        """Return whether a process runs the study; if not, notify the user."""
        if self.study.is_live and not self.study.is_ask_tell:
            return True
        instead = f"to resume it: hpsearch resume {self._pasted}"
        if self.study.is_ask_tell:
            instead = "it is used with ask and tell"
        elif self.study.ended.state == "finished":
            instead = f"it is finished; to extend it: hpsearch extend {self._pasted}"
        self.notify(f"no process runs this study, so there is nothing to {verb}; {instead}", severity="warning")
        return False

    def _ask(self, verb: str, details: Mapping[str, Any] | None = None) -> None:
        """Write a request to the journal in a thread, as it may have to wait for other writers."""
        if not self._may(verb):
            return

        def leave() -> None:
            try:
                with Journal.read(self._study_dir.journal) as journal:
                    number: int | HpsearchError = journal.request(verb, details, process_name())
            except HpsearchError as error:
                number = error
            self.call_later(self._await_answer, verb, number)

        threading.Thread(target=leave, name="hpsearch-watch-ask", daemon=True).start()

    def _await_answer(self, verb: str, number: int | HpsearchError) -> None:
        if isinstance(number, HpsearchError):
            self.notify(f"can't {verb}: {number}", severity="error")
            return
        self._requests[number] = verb
        self.notify(f"asked {self.study.holder} to {verb}")
        self._looking.soon()

    def _show_answers(self) -> None:
        for number, verb in list(self._requests.items()):
            answer = self.study.answers.get(number)
            if answer is not None and answer.refused:
                self.notify(f"{verb} was refused: {answer.refused}", severity="warning")
            elif answer is not None:
                self.notify(DONE[verb])
            elif not self.study.is_live:
                self.notify(f"the process ended before it could {verb}", severity="warning")
            else:
                continue
            del self._requests[number]


_STYLES = {
    "running": "bold cyan",
    "open": "bold cyan",
    "paused": "bold yellow",
    "killed": "bold red",
    "error": "bold red",
}


def header_lines(study: LiveStudy, pasted: str, problem: str = "") -> Iterator[Text]:
    """Describe a study in lines.

    Args:
        study: The study.
        pasted: Its directory, quoted for a shell.
        problem: Why the study can no longer be read; empty if it can.
    """
    yield Text.assemble((study.sweep.name, "bold"), f"  {study.sweep.objective.aim}  ", (pasted, "dim"))
    yield _state(study, pasted)
    total = study.journaled.total
    of_all = "" if total is None else f"; {total[0]:,} in all"
    yield Text(f"trials      {by_state(study.journaled.counts()) or 'none yet'}{of_all}")
    yield Text(
        f"iterations  {amount_of(study.journaled.iterations, None if total is None else total[1])}{_workers(study)}"
    )
    yield from _best(study)
    if study.failure is not None:
        trial, message = study.failure
        yield Text(f"failed      trial {trial}: {one_line(message)}", "red")
    if problem:
        yield Text(f"no news     {one_line(problem)}", "bold red")


def _state(study: LiveStudy, pasted: str) -> Text:
    state, message = study.ended.state, one_line(study.ended.message)
    see = "" if state == "finished" else f"; see: hpsearch status {pasted}"
    known = {
        "running": f" in {study.holder}",
        "paused": f" {message}, in {study.holder}",
        "cancelled": f" {message}{see}",
        "not begun": f"; begin with: hpsearch resume {pasted}",
        "killed": f": its process died; continue with: hpsearch resume {pasted}",
        "open": ": used with ask and tell",
    }
    rest = known.get(state, (f": {message}" if message else "") + see)
    return Text.assemble("state       ", (state, _STYLES.get(state, "bold")), rest)


def _workers(study: LiveStudy) -> str:
    if study.is_ask_tell or study.ended.state not in ("running", "paused"):
        return ""
    remaining = study.remaining()
    return _busy(study) if remaining is None else f"{_busy(study)}, ~{duration(remaining)} left"


def _busy(study: LiveStudy) -> str:
    workers, is_known = study.workers, study.workers_are_known
    if study.sweep.resources.lanes > 1:  # the journal doesn't record which worker has a trial
        running = counted(study.journaled.counts().get(TrialState.RUNNING, 0), "trial")
        return f", {running} on {counted(workers.ready, 'worker')}" if is_known else f", {running} at once"
    if is_known:
        return f", {workers.busy:,} of {workers.ready:,} workers busy"
    return f", {counted(workers.busy, 'worker')} busy"


def _best(study: LiveStudy) -> Iterator[Text]:
    objective, leaders = study.sweep.objective, study.journaled.leaders()
    if not objective.goals:
        return
    if not leaders or objective.several:
        yield Text(f"{'front' if objective.several else 'best':<12}{front_line(leaders, objective)}")
        return
    best = leaders[0]
    title, value, trial = best_parts(best, objective)
    yield Text.assemble("best        ", (f"{title} {value}", "bold green" if best.feasible else "yellow"), trial)
    yield Text(f"            {one_line(params_line(study.sweep.parameters.nest(best.params)))}")
