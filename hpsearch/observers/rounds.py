"""What training several trials beside each other takes: a round, in which each of them has an iteration."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rounds"]

_MEMORY = 50.0
"""Rounds after which one counts for a third: those that go on aren't like those that were stopped."""

_VARIES = 0.2
"""Standard deviation of the numbers of trials, as part of their mean, from which on it is known what one more adds."""


@dataclass(slots=True)
class Rounds:
    """The seconds of a worker's rounds by how many trials it trains: `base + each * trials`, by least squares.

    Lanes of one computation share most of the work of a step; what is trained in turns adds up.
    """

    _weight: float = 0.0
    _trials: float = 0.0
    _trials2: float = 0.0
    _seconds: float = 0.0
    _product: float = 0.0

    def add(self, trials: float, seconds: float) -> None:
        """Take a trial's part of a round.

        Args:
            trials: On its worker, from 1.
            seconds: Its part; the round took as many times as long.
        """
        weight, of_round = 1.0 / trials, trials * seconds  # each of its trials tells of the same round
        fade = 1.0 - weight / _MEMORY
        self._weight = self._weight * fade + weight
        self._trials = self._trials * fade + weight * trials
        self._trials2 = self._trials2 * fade + weight * trials**2
        self._seconds = self._seconds * fade + weight * of_round
        self._product = self._product * fade + weight * trials * of_round

    def seconds(self, rounds: float, iterations: float) -> tuple[float, float] | None:
        """Give between what bounds a worker's rounds will take.

        Args:
            rounds: How many.
            iterations: Of all its trials together, `rounds` at least.

        Returns:
            The same twice where the number of trials has varied enough; None where there was no round.
        """
        if not self._weight:
            return None
        mean = self._trials / self._weight
        none_added, all_added = self._seconds / self._weight * rounds, self._seconds / self._trials * iterations
        variance = self._trials2 / self._weight - mean**2
        if variance < (_VARIES * mean) ** 2:
            return min(none_added, all_added), max(none_added, all_added)
        each = (self._product / self._weight - mean * self._seconds / self._weight) / variance
        base = self._seconds / self._weight - each * mean
        if each < 0:
            return none_added, none_added
        fitted = all_added if base < 0 else base * rounds + each * iterations
        return fitted, fitted
