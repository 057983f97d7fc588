"""Trials that have a state, which each iteration changes and which others may be forked from."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from hpsearch.errors import TrainableError
from hpsearch.simulation.simulation import Simulation, Step, to_seconds
from hpsearch.trainable.metrics import to_numbers
from hpsearch.trial import Segment, Trial

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Steps"]


class Steps(Simulation):
    """Base class of such simulations; subclasses define `step`.

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
        """Run one iteration: give (the new state, metrics, seconds on one worker), or None to end the trial before it.

        Args:
            state: State of the previous iteration; None at the beginning.
            params: A copy, nested as the sweep's groups. A fork has its own.
            rng: Seeded from the trial's seed and the iteration's number, so that draws differ between iterations and
                don't depend on segments.
        """

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        """Run iterations, without an end but the trial's own."""
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
