"""The searcher's seam: what to try next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hpsearch.trial import Params, Report

__all__ = ["Searcher", "Suggestion"]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A point of the space to try."""

    params: Params
    origin: str
    """`"random"`, `"grid"` or `"points_to_try"`."""


class Searcher(ABC):
    """Says what to try. Pure: no clock, no I/O, its own seed."""

    @abstractmethod
    def suggest(self, number: int) -> Suggestion | None:
        """Give the params of trial `number`, or None when the space is exhausted.

        Called for 0, 1, 2, ...; on resume, from the first number that the journal doesn't hold.
        """

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of suggestions that there are; None where it is unbounded."""

    def observe(self, report: Report) -> None:
        """Learn from a report that counts. Searchers that don't learn leave this as it is."""
