"""A searcher's calls, made in their order: here, or in a process of its own."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hpsearch.errors import SearcherError, exception_line
from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.trial import StateAt

__all__ = ["Answer", "Calls", "DirectCalls"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a searcher gave when it was asked."""

    suggestion: Suggestion | None
    needs: frozenset[StateAt]
    """What it may name as parents from then on."""


class Calls(ABC):
    """Makes the calls of one searcher."""

    @abstractmethod
    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method that gives nothing."""

    @abstractmethod
    def ask(self, method: str, *arguments: Any) -> None:
        """Call `suggest` or `explore`, whose answers come in the order of these calls."""

    @abstractmethod
    def ready(self) -> bool:
        """Say whether the next answer is there.

        Raises:
            SearcherError: The searcher has failed.
        """

    @abstractmethod
    def answer(self) -> Answer:
        """Take the next answer; waits for it.

        Raises:
            SearcherError: The searcher has failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the searcher; nothing is called any more."""


class DirectCalls(Calls):
    """Makes each call at once."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._answers: list[Answer] = []

    def tell(self, method: str, *arguments: Any) -> None:
        """Call it."""
        with self._failing(method):
            getattr(self._searcher, method)(*arguments)

    def ask(self, method: str, *arguments: Any) -> None:
        """Call it, and keep the answer."""
        with self._failing(method):
            suggestion = getattr(self._searcher, method)(*arguments)
            needs = frozenset(self._searcher.needs()) if self._searcher.capabilities.forks else frozenset()
        self._answers.append(Answer(suggestion, needs))

    def ready(self) -> bool:
        """It always is."""
        return True

    def answer(self) -> Answer:
        """Take the oldest answer."""
        return self._answers.pop(0)

    def close(self) -> None:
        """Close the searcher."""
        self._searcher.close()

    @contextmanager
    def _failing(self, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            place = f"{type(self._searcher).__name__}.{method}"
            raise SearcherError(
                f"a searcher must not fail, but {place} raised {exception_line(error)}. Mend it and resume the study, "
                f"or take another method in a new one.\n{traceback.format_exc()}"
            ) from error
