"""Learning rate schedules: functions from the number of finished epochs to a factor of the learning rate.

To combine schedules, multiply them: `lambda epoch: cosine(90)(epoch) * warmup(5)(epoch)`. The epoch may be fractional,
so the rate can change in every step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from hpsearch_comm.errors import ConfigurationError

Schedule = Callable[[float], float]


def steps(milestones: Sequence[float], factor: float = 0.1) -> Schedule:
    """Return a schedule that multiplies by `factor` at each milestone: 30, 60 and 80 of 90 epochs in Goyal et al. 2017.

    Raises:
        ConfigurationError: The milestones aren't strictly increasing.
    """
    if any(later <= earlier for earlier, later in itertools.pairwise(milestones)):
        raise ConfigurationError(f"milestones must be epochs that rise, got {list(milestones)}")
    return lambda epoch: math.prod(factor for milestone in milestones if epoch >= milestone)


def cosine(epochs: float, least: float = 0.0) -> Schedule:
    """Return a schedule from 1 to `least` along half a cosine (Loshchilov & Hutter 2017, equation 5), then constant.

    Raises:
        ConfigurationError: `epochs` isn't above 0.
    """
    _check_epochs(epochs)
    return lambda epoch: least + (1 - least) * (1 + math.cos(math.pi * min(epoch / epochs, 1.0))) / 2


def polynomial(epochs: float, power: float = 2.0) -> Schedule:
    """Return a schedule from 1 to 0 as (1 - epoch / epochs)^power (You et al. 2017, with power 2), 0 afterwards.

    Raises:
        ConfigurationError: `epochs` isn't above 0.
    """
    _check_epochs(epochs)
    return lambda epoch: float((1 - min(epoch / epochs, 1.0)) ** power)


def warmup(epochs: float, start: float = 0.0) -> Schedule:
    """Return a schedule that rises linearly from `start` to 1.

    Use it for models that need a warmup, such as transformers. `Scaling` has its own warmup when the number of workers
    grows.

    Raises:
        ConfigurationError: `epochs` isn't above 0.
    """
    _check_epochs(epochs)
    return lambda epoch: start + (1 - start) * min(epoch / epochs, 1.0)


def _check_epochs(epochs: float) -> None:
    if not 0 < epochs < math.inf:
        raise ConfigurationError(f"epochs of a schedule must be a number above 0, got {epochs!r}")
