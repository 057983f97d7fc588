"""Simulations whose whole curve is a function of params and seed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hpsearch.errors import TrainableError
from hpsearch.simulation.simulation import RecordedFailure, Simulation, Step, to_seconds
from hpsearch.trainable.metrics import to_numbers
from hpsearch.trial import Segment, Trial

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Curve", "Curves"]

Floats: TypeAlias = "Sequence[float] | NDArray[np.floating[Any]]"


@dataclass(frozen=True, slots=True)
class Curve:
    """All that a trial reports."""

    metrics: Mapping[str, Floats]
    """Each metric's values by iteration, of equal length. At their end the trial ends."""
    seconds: float | Floats = 1.0
    """Seconds of each iteration on one worker; a number applies to all."""
    failure: str = ""
    """If not empty, the trial fails after the last iteration, with this message."""


class Curves(Simulation):
    """Base of such simulations; `curve` is what to write.

    ```python
    class Bowl(hpsearch.Curves):
        def curve(self, params, seed):
            losses = [params["x"] ** 2 + 1.0 / i for i in range(1, 28)]
            return hpsearch.Curve({"loss": losses}, seconds=2.0)
    ```
    """

    @abstractmethod
    def curve(self, params: dict[str, Any], seed: int) -> Curve:
        """Return a trial's curve.

        Args:
            params: Nested as the sweep's groups are; a copy.
            seed: The trial's.
        """

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        """Yield the curve's iterations after the segment's start."""
        curve = self.curve(self.space.nest(trial.params), trial.seed)
        length = _length(curve)
        seconds = curve.seconds
        for place in range(segment.start, length):
            metrics = {name: values[place] for name, values in curve.metrics.items()}
            each = seconds[place] if isinstance(seconds, Sized) else seconds
            yield Step(to_numbers(metrics, self.metrics), to_seconds(each))
        if curve.failure:
            raise RecordedFailure(curve.failure)


def _length(curve: object) -> int:
    if not isinstance(curve, Curve):
        raise TrainableError(f"curve must give an hpsearch.Curve, got a {type(curve).__name__}")
    lengths = {name: len(values) for name, values in curve.metrics.items()}
    if isinstance(curve.seconds, Sized):
        lengths["seconds"] = len(curve.seconds)
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{length} of {name}" for name, length in lengths.items()) or "no metric"
        raise TrainableError(f"a curve must hold as many values of each metric, and seconds, got {told}")
    return next(iter(lengths.values()))
