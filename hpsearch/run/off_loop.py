"""A searcher that takes its time, on a thread of its own, so that the sweep goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from hpsearch.searchers import NotYet, Observation, Searcher, Suggestion
from hpsearch.space import Space
from hpsearch.trial import StateAt, Trial

__all__ = ["OffLoop"]

_Answer = TypeVar("_Answer")

_PATIENCE_SECONDS = 0.002
"""What `suggest` waits at most: a quick searcher answers at once, and a slow one doesn't hold the loop up."""


class OffLoop(Searcher):
    """Makes another searcher's calls in their order on one thread, and answers `NotYet` while it works."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._thread = ThreadPoolExecutor(1, "hpsearch-searcher")
        self._asked: Future[Any] | None = None
        self._failed: BaseException | None = None

    @classmethod
    def build(cls, space: Space, seed: int) -> Searcher:
        """It is made from another searcher.

        Raises:
            TypeError: Always.
        """
        raise TypeError("OffLoop is made from another searcher")

    def suggest(self, number: int) -> Suggestion | NotYet | None:
        """Give the suggestion where it is there."""
        return self._answer(lambda: self._searcher.suggest(number))

    def explore(self, number: int, parent: Trial) -> Suggestion | NotYet:
        """Give the params of a forked trial where they are there."""
        return self._answer(lambda: self._searcher.explore(number, parent))

    @property
    def size(self) -> int | None:
        """That of the searcher."""
        return self._searcher.size

    def needs(self) -> Collection[StateAt]:
        """Ask the searcher, which works on nothing just after an answer."""
        return self._searcher.needs()

    def started(self, trial: Trial) -> None:
        """Pass it on."""
        self._tell(lambda: self._searcher.started(trial))

    def observe(self, observation: Observation) -> None:
        """Pass it on."""
        self._tell(lambda: self._searcher.observe(observation))

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Pass it on."""
        self._tell(lambda: self._searcher.reverted(trial, iteration))

    def dropped(self, trial: Trial) -> None:
        """Pass it on."""
        self._tell(lambda: self._searcher.dropped(trial))

    def close(self) -> None:
        """End the thread, once what it works on is done."""
        self._thread.shutdown(cancel_futures=True)
        self._searcher.close()

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer | NotYet:
        """Give the answer where it is there; until then, who asks again asks the same."""
        if self._asked is None:
            self._asked = self._thread.submit(ask)
        future: Future[_Answer] = self._asked
        wait([future], _PATIENCE_SECONDS)
        if not future.done():
            return NotYet()
        self._asked = None
        if self._failed is not None:
            raise self._failed
        return future.result()

    def _tell(self, call: Callable[[], None]) -> None:
        self._thread.submit(call).add_done_callback(self._note_failure)

    def _note_failure(self, future: Future[None]) -> None:
        if not future.cancelled() and self._failed is None:
            self._failed = future.exception()
