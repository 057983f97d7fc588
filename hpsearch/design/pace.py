"""Divide a design's time among its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from hpsearch.design.designed_network import DesignedNetwork, designed
from hpsearch.design.prepared_rows import PredictionTask
from hpsearch.errors import DesignError
from hpsearch.tables.wording import duration, number
from hpsearch_trainers.measures import latency

_TRIALS = 40
"""Number of full trials that the time should allow; with rungs, these are about a hundred trials."""

ENOUGH_EPOCHS = 27
"""If there is time only for fewer epochs, fewer folds are validated, so that trials are faster."""

_EPOCHS = (9, 81)
"""Minimum and maximum number of epochs; fewer only if there is no time for a single network otherwise."""

SCORING = 6.0
"""Estimated seconds for predict.py to start and to score the test rows, on shared cores."""

STARTING = {"ray": 7.0}
"""Backend to the seconds that it needs to start and to end beyond `limits.max_time`; 0 for other backends."""


class Clock:
    """The remaining part of the requested time, over all runs of the design.

    Args:
        seconds: Total time.
        spent: Seconds of earlier runs.
        began: Start of this run, by `time.time()`.
    """

    def __init__(self, seconds: float, spent: float, began: float | None = None) -> None:
        self._seconds = seconds
        self._spent = spent
        # The monotonic clock has an arbitrary origin, so `time.time()` is used for the seconds before this call.
        before = 0.0 if began is None else max(0.0, time.time() - began)
        self._zero = time.monotonic() - before

    @property
    def spent(self) -> float:
        """Seconds spent, including earlier runs."""
        return self._spent + time.monotonic() - self._zero

    @property
    def remaining(self) -> float:
        """Seconds left; below 0 if more was spent than planned."""
        return self._seconds - self.spent

    def count_at_least(self, spent: float) -> None:
        """Raise the seconds of earlier runs to at least `spent`, because a killed run couldn't record its time."""
        self._spent = max(self._spent, spent)


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings derived from the training speed of a typical network on these rows."""

    epochs: int
    """Number of epochs of a full trial."""
    fit_seconds: float
    """Maximum time of the last fit."""


def pace(params: Mapping[str, Any], clock: Clock, workers: int, starting: float) -> Pace:
    """Return the settings for the remaining time, after training a typical network for one or two epochs.

    Args:
        params: Params of the typical network, without `epochs`.
        clock: The remaining time.
        workers: Number of concurrent trials.
        starting: Seconds that the backend needs to start.

    Raises:
        DesignError: There is no time for any network.
    """
    with one_thread(), seeded(0):
        trial = DesignedNetwork(SimpleNamespace(params={**params, "epochs": 1}, seed=0))
        began = time.monotonic()
        trial.step()
        epoch = time.monotonic() - began
        if epoch < 1:  # the first epoch is slower, because of initializations
            began, fit = time.monotonic(), trial.step()["fit_seconds"]
            epoch = time.monotonic() - began
        else:
            fit = epoch / max(1, int(params["validated"]))
    remaining = clock.remaining - starting - SCORING
    fewest, most = _EPOCHS
    epochs = max(fewest, min(most, int(0.7 * remaining * workers / (_TRIALS * epoch))))
    epochs = min(epochs, int(0.25 * remaining / fit))
    if epochs < 1:
        least = clock.spent + 4 * fit + starting + SCORING
        raise DesignError(
            f"--time must leave time to train a network: an epoch of a usual one takes {duration(fit)} here, and "
            f"{duration(clock.spent)} were spent before; give {duration(least + 1)} at least"
        )
    return Pace(epochs, round(min(0.4 * remaining, max(0.1 * remaining, 4 * fit * epochs)), 1))


def check_latency(params: Mapping[str, Any], task: PredictionTask, limits: Mapping[str, float]) -> None:
    """Check that a network can satisfy the limit on latency.

    Args:
        params: Params of the smallest network.
        task: The task.
        limits: The limits, of which `latency_ms` is checked.

    Raises:
        DesignError: The smallest network exceeds the limit.
    """
    if "latency_ms" not in limits:
        return
    with seeded(0):
        network = designed(params, task).eval()
    measure = latency(torch.zeros(1, *task.inputs))
    least = min(measure(network) for _ in range(3))  # the minimum, since other processes may use the cores
    if least > limits["latency_ms"]:
        raise DesignError(
            f"--limit latency_ms={limits['latency_ms']:g}: must leave a network, but the smallest that is searched "
            f"takes {number(least)} ms for one row here; allow more"
        )


def search_seconds(clock: Clock, fit_seconds: float, starting: float) -> float:
    """Return the seconds of the search that leave time for the last fit and the scoring."""
    return clock.remaining - fit_seconds - starting - SCORING


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, as in trials, so that measurements are comparable."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator in the context, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
