"""Protocols of the trial that the built-in trainables need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Parametrized(Protocol):
    """An object with parameters."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters by name; the trainable has defaults for missing ones."""


class TrialLike(Parametrized, Protocol):
    """A trial with parameters, a checkpoint to start from, and a method to report metrics."""

    @property
    def checkpoint(self) -> Any:
        """The state of an earlier report to resume from; None to start from scratch."""

    def iterations(self) -> Iterator[int]:
        """Return the numbers of the iterations to run."""

    def report(self, metrics: Mapping[str, Any], checkpoint: object = None) -> None:
        """Report the metrics of an iteration, and a function that returns the state after it."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The settings of a trial that a `Trainer` needs to be built again from scratch on one worker."""

    params: Mapping[str, Any]
    seed: int
    parallel: Mapping[str, Any]
    scaling: Mapping[str, Any]

    @classmethod
    def of(cls, trial: Parametrized) -> Beginning:
        """Return the settings of a trial. The parameters are copied, because `build` may change them."""
        parallel, scaling = (getattr(trial, name, None) or {} for name in ("parallel", "scaling"))
        return cls(dict(trial.params), int(getattr(trial, "seed", 0)), parallel, scaling)
