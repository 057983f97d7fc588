"""Run a sweep on the benchmark's Ray, and read from its journal how long it took."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ray

import hpsearch
from hpsearch.backends.ray.local_ray import NICENESS
from hpsearch.backends.ray.session import connect, shut_down
from hpsearch.events import Event, Finished, Started
from hpsearch.journal.journal import Journal
from hpsearch.sweep.parts import Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Params

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """How a sweep went."""

    first_start: float
    """Wall time, like the others."""
    ends: tuple[float, ...]
    """Of each segment, in order."""
    trials: tuple[tuple[Params, int], ...]
    """(params, iterations) of each."""
    wall: float
    """Seconds from the call of `search` to its return: directory, journal, observers and all."""

    @property
    def iterations(self) -> int:
        """All that were run, when promotions resume."""
        return sum(iterations for _, iterations in self.trials)

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return self.ends[-1] - self.first_start

    def rate(self, since: int = 0) -> float:
        """Segments per second, from the end of segment `since` to the last end."""
        return (len(self.ends) - since - 1) / (self.ends[-1] - self.ends[since])


@contextmanager
def local_ray() -> Iterator[None]:
    """Start a Ray of two CPUs for ours and the peers alike, and end it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of a default that will change
    ray.init(
        address="local",
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        namespace="hpsearch",
        _system_config={"worker_niceness": NICENESS},
    )
    try:
        yield
    finally:
        shut_down()


def free_workers() -> None:
    """End the warm workers, so that the peer's turn finds both CPUs free."""
    connect(None, WORKERS).empty()


@cache
def _studies() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted when the process ends: a large deletion would disturb the next turn."""
    return tempfile.TemporaryDirectory(prefix="hpsearch-bench-")


def run_sweep(sweep: Sweep) -> Timing:
    """Run a sweep with all defaults on, in a new directory."""
    directory = Path(tempfile.mkdtemp(dir=_studies().name)) / "study"
    began = time.perf_counter()
    hpsearch.search(sweep, directory=directory, progress=False)
    wall = time.perf_counter() - began
    with Journal.read(directory / "study.db") as journal:
        events = [(entry.time, entry.event) for entry in journal.entries()]
    return _timing(events, wall)


def run_noop(trials: int) -> Timing:
    """Run trials that do nothing but report once."""
    return run_sweep(
        Sweep(
            name="noop",
            trainable="hpsearch_trainers.noop:train",
            metric=hpsearch.Metric("value", "minimize"),
            method="random",
            parameters=hpsearch.Space.from_parameters({"x": hpsearch.Uniform(0.0, 1.0)}),
            run_cap=trials,
            max_iter=1,
            resources=Resources(workers=WORKERS),
        )
    )


def _timing(events: Sequence[tuple[float, Event]], wall: float) -> Timing:
    starts: list[float] = []
    ends: list[float] = []
    params: list[Params] = []
    iterations: Counter[int] = Counter()
    for when, event in events:
        if isinstance(event, Started):
            starts.append(when)
            params += [] if event.new is None else [event.new.params]
        elif isinstance(event, Finished):
            ends.append(when)
            iterations[event.trial] = event.iteration
    trials = tuple((each, iterations[number]) for number, each in enumerate(params))
    return Timing(starts[0], tuple(ends), trials, wall)
