"""Base classes of simulations, which the simulated backend runs in place of a trainable: `Curves` and `Steps`."""

from __future__ import annotations

import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from hpsearch.errors import SweepError, TrainableError
from hpsearch.space import Space
from hpsearch.trainable.metrics import to_numbers
from hpsearch.trial import Segment, Trial

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EFFICIENCY = 0.9
"""Default efficiency of doubling a trial's workers: 0.9 of twice the speed."""


class RecordedFailure(Exception):
    """The recorded failure of a trial. The text is the recorded error message."""


@dataclass(frozen=True, slots=True)
class Step:
    """One simulated iteration."""

    metrics: Mapping[str, float]
    seconds: float
    """Duration on one worker."""
    state: bytes | None = None
    """State for the next iteration; None if the next iteration depends only on params and seed."""


class Simulation(ABC):
    """Simulates the iterations of trials. Equal trials must have equal iterations, in any process."""

    simulated: ClassVar[bool] = True
    """Distinguishes it from trainables."""

    start_seconds: float = 0.0
    """Seconds before the first iteration of each segment: to start a process, load data and read a checkpoint."""
    checkpoint_seconds: float = 0.0
    """Seconds to write the checkpoint at the end of a segment."""
    has_state: ClassVar[bool] = False
    """Whether its steps have states, which are saved in checkpoints."""
    has_checkpoints: bool = True
    """Whether it saves checkpoints. If not, promoted trials restart from zero."""
    efficiency: float = EFFICIENCY
    """Efficiency of doubling a trial's workers, as a fraction of twice the speed."""

    def open(self, space: Space, *metrics: str) -> None:
        """Prepare for the trials of a sweep.

        Args:
            space: The sweep's search space.
            metrics: Metrics that each iteration must report.

        Raises:
            SweepError: The space or the metrics don't match the simulation, or its durations are invalid.
        """
        self.space, self.metrics = space, metrics
        for name in ("start_seconds", "checkpoint_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                problem = f"must be a number, at least 0, got {getattr(self, name)!r}"
                raise SweepError(f"{type(self).__name__}.{name} {problem}")
        if not 0 < self.efficiency <= 1:
            raise SweepError(
                f"{type(self).__name__}.efficiency must be more than 0, at most 1, got {self.efficiency!r}"
            )

    def speed(self, width: int) -> float:
        """Return the speedup of `width` workers over one worker."""
        return 1.0 / relative_time(width, self.efficiency)

    @abstractmethod
    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        """Yield the iterations of a segment, from `segment.start` to its end or beyond.

        Fewer iterations mean that the trial ends. An exception is the trial's failure after the yielded iterations.

        Args:
            trial: The trial.
            segment: The segment; its end may be None.
            state: State after the previous iteration; None at the beginning.
        """


def relative_time(width: int, efficiency: float = EFFICIENCY) -> float:
    """Return the time of an iteration at a width, relative to the time on one worker.

    Args:
        width: Number of workers.
        efficiency: Efficiency of doubling the width, as a fraction of twice the speed.
    """
    return float(1.0 / (width * efficiency ** math.log2(width)))


def to_seconds(value: object) -> float:
    """Return the duration of an iteration as a float, after checking it.

    Raises:
        TrainableError: The duration isn't a number, or is less than 0.
    """
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise TrainableError(f"the seconds of an iteration must be a number, at least 0, got {value!r}")
    return seconds


Floats: TypeAlias = "Sequence[float] | NDArray[np.floating[Any]]"


@dataclass(frozen=True, slots=True)
class Curve:
    """All reports of a trial."""

    metrics: Mapping[str, Floats]
    """Each metric's values by iteration, with equal lengths. The trial ends after the last value."""
    seconds: float | Floats = 1.0
    """Seconds of each iteration on one worker; a number applies to all."""
    failure: str = ""
    """If not empty, the trial fails after the last iteration, with this message."""


class Curves(Simulation):
    """Base class of simulations whose whole curve is a function of params and seed; subclasses define `curve`.

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
            params: A copy of the trial's params, nested like the sweep's groups.
            seed: The trial's seed.
        """

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        """Yield the curve's iterations after the segment's start."""
        curve = self.curve(self.space.nest(trial.params), trial.seed)
        length = _length(curve)
        seconds = curve.seconds
        for index in range(segment.start, length):
            metrics = {name: values[index] for name, values in curve.metrics.items()}
            each = seconds[index] if isinstance(seconds, Sized) else seconds
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
        counts = ", ".join(f"{length} of {name}" for name, length in lengths.items()) or "no metric"
        raise TrainableError(f"a curve must hold as many values of each metric, and seconds, got {counts}")
    return next(iter(lengths.values()))


class Steps(Simulation):
    """Base class of simulations whose trials have a state, from which others may fork; subclasses define `step`.

    ```python
    class Walk(hpsearch.Steps):
        def step(self, state, params, rng):
            place = (state or 0.0) + params["speed"] * rng.normal()
            return place, {"loss": abs(place - 3.0)}, 1.0
    ```

    The state is pickled after each iteration, so that later changes by `step` don't affect checkpoints.
    """

    has_state: ClassVar[bool] = True

    @abstractmethod
    def step(
        self, state: Any, params: dict[str, Any], rng: np.random.Generator
    ) -> tuple[Any, Mapping[str, float], float] | None:
        """Run an iteration; return (new state, metrics, seconds on one worker), or None to end the trial before it.

        Args:
            state: State of the previous iteration; None at the beginning.
            params: A copy of the trial's params, nested like the sweep's groups. A fork has its own params.
            rng: Seeded with the trial's seed and the iteration's number, so that random numbers differ between
                iterations and don't depend on segments.
        """

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        """Run iterations until the trial ends."""
        import numpy as np

        reached = None if state is None else pickle.loads(state)
        for iteration in count(segment.start + 1):
            out = self.step(reached, self.space.nest(trial.params), np.random.default_rng((trial.seed, iteration)))
            if out is None:
                return
            if not isinstance(out, tuple) or len(out) != 3:
                problem = "must give (state, metrics, seconds), or None where the trial ends"
                raise TrainableError(f"step {problem}, got a {type(out).__name__}")
            reached, metrics, seconds = out
            yield Step(to_numbers(metrics, self.metrics), to_seconds(seconds), pickle.dumps(reached))
