"""The digits' perceptron, for a search that is held in its midst until it has been seen there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hpsearch_trainers.digits import MLP
from tests.hpsearch.support.backend_trainables import stay_while_held

HOLD = "HPSEARCH_TEST_HOLD"
"""Names the file in the environment that holds the search as long as it is there."""

TRAINABLE = "tests.held_digits:Held"

_LAST = 47
"""The first trial of the last two of a Hyperband of 27 iterations: more than half is done when both are held."""

_EPOCHS = 9
"""So many they report before."""


class Held(MLP):
    """Stays in the midst of the last two trials; otherwise it is what is searched over."""

    def __init__(self, trial: Any) -> None:
        super().__init__(trial)
        self._trial = trial

    def step(self) -> dict[str, float]:
        """Train for an epoch, once nothing holds it any more."""
        if self._trial.number >= _LAST and self.epoch >= _EPOCHS:
            stay_while_held(Path(os.environ[HOLD]))
        return super().step()
