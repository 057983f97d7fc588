"""A question before what can't be taken back."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

__all__ = ["Question"]


class Question(ModalScreen[bool]):
    """Is answered with a key; anything but `y` is no."""

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
        """Return the answer."""
        self.dismiss(answer)
