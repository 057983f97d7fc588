"""What the built-in trainables ask of the trial that they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


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
        """Return the numbers of the iterations to run."""

    def report(self, metrics: Mapping[str, Any], checkpoint: object = None) -> None:
        """Take the metrics of an iteration, and a function that gives the state there."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A trial at its beginning, on one worker: what a `Trainer` can be built of once more."""

    params: Mapping[str, Any]
    seed: int
    parallel: Mapping[str, Any]
    scaling: Mapping[str, Any]

    @classmethod
    def of(cls, trial: Parametrized) -> Beginning:
        """Return that of a trial, with a copy of its parameters, as a `build` may change them."""
        parallel, scaling = (getattr(trial, name, None) or {} for name in ("parallel", "scaling"))
        return cls(dict(trial.params), int(getattr(trial, "seed", 0)), parallel, scaling)
