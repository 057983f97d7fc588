"""The page of one trial, updated as the trial runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static

from hpsearch.errors import HpsearchError
from hpsearch.results.study import load
from hpsearch.tables import layout
from hpsearch.tables.trial_page import TrialPage, page_lines, trial_page

__all__ = ["TrialScreen"]

_LOG_LINES = 15

_SHARE = 50
"""Reading takes at most this part of the time: of thousands of trials it takes seconds."""


class TrialScreen(Screen[None]):
    """All that is known of a trial, as `hpsearch trial` has it.

    Args:
        directory: The study's.
        pasted: The same, as a shell takes it.
        trial: Its number.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace,left", "app.pop_screen", "back")]

    DEFAULT_CSS = "TrialScreen VerticalScroll { height: 1fr; }"

    class Read(Message):
        """The page was read, or can't be."""

        def __init__(self, page: TrialPage | HpsearchError, seconds: float) -> None:
            super().__init__()
            self.page = page
            self.seconds = seconds

    def __init__(self, directory: Path, pasted: str, trial: int) -> None:
        super().__init__()
        self._directory, self._pasted = directory, pasted
        self.trial = trial
        self.text = f"reading trial {trial} ..."
        """What is shown."""
        self._page: TrialPage | None = None
        self._reading, self._stale, self._rested = False, True, 0.0

    def compose(self) -> ComposeResult:
        """Make what is shown."""
        with VerticalScroll():
            yield Static(Text(self.text))
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(VerticalScroll).focus()
        self.news(changed=True)

    def on_resize(self) -> None:
        """Fit into another terminal."""
        self._draw()

    def news(self, changed: bool) -> None:
        """Update after a poll: the trial may have changed, and its log may have grown."""
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
        self.post_message(self.Read(page, time.monotonic() - began))

    def on_trial_screen_read(self, message: Read) -> None:
        """Show what was read."""
        self._reading, self._rested = False, time.monotonic() + _SHARE * message.seconds
        if isinstance(message.page, HpsearchError):
            self._page = None
            self._show(str(message.page))
        else:
            self._page = message.page
            self._draw()

    def _draw(self) -> None:
        """Show the page, with the end of its log as it is now."""
        if self._page is not None:
            screen = layout.Screen(max(self.size.width - 2, 20))
            self._show("\n".join(page_lines(self._page, self._pasted, _LOG_LINES, screen)))

    def _show(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self.query_one(Static).update(Text(text))
