"""Ordered calls of a searcher, which runs in this process or in another."""

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


@dataclass(frozen=True, slots=True)
class SearcherAnswer:
    """A searcher's answer to `suggest` or `explore`."""

    suggestion: Suggestion | None
    needs: frozenset[StateAt]
    """The states that later suggestions may name as parents."""


class Calls(ABC):
    """Makes the calls of one searcher."""

    @abstractmethod
    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method that returns nothing."""

    @abstractmethod
    def ask(self, method: str, *arguments: Any) -> None:
        """Call `suggest` or `explore`; answers are returned in the order of the calls."""

    @abstractmethod
    def ready(self) -> bool:
        """Return whether the next answer is available.

        Raises:
            SearcherError: The searcher has failed.
        """

    @abstractmethod
    def answer(self) -> SearcherAnswer:
        """Wait for the next answer and return it.

        Raises:
            SearcherError: The searcher has failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the searcher; nothing is called afterwards."""


class DirectCalls(Calls):
    """Makes each call immediately, in this process."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._answers: list[SearcherAnswer] = []

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method that returns nothing."""
        with self._failing(method):
            getattr(self._searcher, method)(*arguments)

    def ask(self, method: str, *arguments: Any) -> None:
        """Call `suggest` or `explore`, and keep the answer."""
        with self._failing(method):
            suggestion = getattr(self._searcher, method)(*arguments)
            needs = frozenset(self._searcher.needs()) if self._searcher.capabilities.forks else frozenset()
        self._answers.append(SearcherAnswer(suggestion, needs))

    def ready(self) -> bool:
        """Return True: answers are available immediately."""
        return True

    def answer(self) -> SearcherAnswer:
        """Return the oldest answer."""
        return self._answers.pop(0)

    def close(self) -> None:
        """Close the searcher."""
        self._searcher.close()

    @contextmanager
    def _failing(self, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            name = f"{type(self._searcher).__name__}.{method}"
            raise SearcherError(
                f"a searcher must not fail, but {name} raised {exception_line(error)}. Mend it and resume the study, "
                f"or take another method in a new one.\n{traceback.format_exc()}"
            ) from error
