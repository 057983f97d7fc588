"""What the searcher of a sweep is told and asked, in an order that a resumed sweep can repeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hpsearch.searchers import NotYet, Searcher, Suggestion
from hpsearch.study.build import build_searcher
from hpsearch.sweep.sweep import Sweep

__all__ = ["Suggested", "Suggestions"]

Suggested = tuple[Suggestion | NotYet | None, int | None]
"""An answer, and how much of what happened it had seen; None where the searcher doesn't learn."""


class Suggestions:
    """Asks a sweep's searcher, and passes on what happened.

    A searcher that learns hears of events when it is asked next, and its answer is kept until the trial has started. So
    what it knew when it made a suggestion is told by one number, which the journal keeps.

    Args:
        sweep: What is searched.
        wrap: Gives the searcher that is asked, such as one that works off the loop.
    """

    def __init__(self, sweep: Sweep, wrap: Callable[[Searcher], Searcher] = lambda searcher: searcher) -> None:
        self.learns = sweep.searcher.learns
        """Whether what is suggested depends on what happened."""
        self.working = False
        """Whether the last answer was `NotYet`."""
        self._points = build_searcher(sweep, wrap)
        self._unheard: deque[Callable[[Searcher], None]] = deque()
        self._seen = 0
        self._answers: dict[int, Suggested] = {}

    @property
    def size(self) -> int | None:
        """Number of suggestions that there are; None where it is unbounded."""
        return self._points.size

    def hear(self, call: Callable[[Searcher], None]) -> None:
        """Take what happened, as the call that tells the searcher."""
        if self.learns:
            self._unheard.append(call)

    def suggest(self, number: int) -> Suggested:
        """Give the suggestion for trial `number`; the same again until it has started."""
        if not self.learns:
            return self._points.suggest(number), None
        if number not in self._answers:
            self._tell(len(self._unheard))
            answer = self._points.suggest(number)
            self.working = isinstance(answer, NotYet)
            if self.working:
                return answer, self._seen
            self._answers[number] = answer, self._seen
        return self._answers[number]

    def suggest_again(self, number: int, seen: int | None) -> Suggestion | None:
        """Give what the searcher suggested when it had seen so much; waits for one that takes its time.

        Raises:
            ValueError: It had seen more before, or less has happened.
        """
        happened = self._seen + len(self._unheard)
        if seen is None or not self._seen <= seen <= happened:
            raise ValueError(f"a searcher that learns had seen {seen} events, of {self._seen} to {happened}")
        self._tell(seen - self._seen)
        while isinstance(answer := self._points.suggest(number), NotYet):
            pass
        return answer

    def close(self) -> None:
        """Let go of the searcher."""
        self._points.searcher.close()

    def started(self, number: int) -> None:
        """Forget the answer: the trial is there."""
        self._answers.pop(number, None)

    def _tell(self, count: int) -> None:
        for _ in range(count):
            self._unheard.popleft()(self._points.searcher)
        self._seen += count
