"""What the built-in trainables ask of the trial that they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

__all__ = ["Parametrized", "TrialLike"]


class Parametrized(Protocol):
    """What has parameters."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters by name; one that is missing takes the trainable's default."""


class TrialLike(Parametrized, Protocol):
    """A trial: its parameters, where it starts from, and whom to report to."""

    @property
    def checkpoint(self) -> Any:
        """The state given with an earlier report, to go on from; None to start from zero."""

    def iterations(self) -> Iterator[int]:
        """Give the numbers of the iterations to run."""

    def report(self, metrics: Mapping[str, Any], checkpoint: object = None) -> None:
        """Take the metrics of an iteration, and a function that gives the state there."""
