"""A rung that is judged while trials still come to it."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Iterator, Sequence

__all__ = ["RunningRung"]

_Place = tuple[tuple[int, float], int]
"""(`Objective.place` of the value, trial): the less, the better."""


class RunningRung:
    """The trials that have ended in a rung, best first: those that wait, and those whose lot is settled.

    A call searches sorted lists, and looks at those only that may go on.

    Args:
        eta: 1 of `eta` may go on.
    """

    def __init__(self, eta: int) -> None:
        self._eta = eta
        self._waiting: list[_Place] = []
        self._settled: list[_Place] = []
        """Promoted or stopped: they keep their places in the ranking."""

    @property
    def top(self) -> int:
        """How many of those that have ended here are good enough to go on."""
        return (len(self._waiting) + len(self._settled)) // self._eta

    def add(self, place: tuple[int, float], trial: int) -> None:
        """Take a trial that has ended here."""
        insort(self._waiting, (place, trial))

    def promotable(self) -> Iterator[int]:
        """Give the trials that may go on, the best first; promoting one makes no other one less so."""
        top = self.top
        for ahead, place in enumerate(self._waiting):
            if _is_nan(place) or ahead + bisect(self._settled, place) >= top:
                return
            yield place[1]

    def promote(self) -> None:
        """Let the first of `promotable` go on."""
        insort(self._settled, self._waiting.pop(0))

    def stop(self) -> Sequence[tuple[int, int, int, bool]]:
        """Stop all that wait; give (trial, its place from 1, of how many, whether it is NaN), the best first."""
        size = len(self._waiting) + len(self._settled)
        stopped = [
            (place[1], ahead + bisect(self._settled, place) + 1, size, _is_nan(place))
            for ahead, place in enumerate(self._waiting)
        ]
        self._settled = sorted(self._settled + self._waiting)
        self._waiting = []
        return stopped


def _is_nan(place: _Place) -> bool:
    return place[0][0] > 0
