"""The peer: two bare Ray actors with two calls in flight each, and nothing around them."""

from __future__ import annotations

import time
from typing import Any

import ray

from hpsearch.trial import Segment, Trial
from tests.benchmarks.sweeps import WORKERS

_IN_FLIGHT = 2
_WARM_UP = 200


class _Echo:
    def run(self, trial: Trial, segment: Segment, packed: bytes | None) -> Segment:
        return segment


def pool_rate(calls: int) -> float:
    """Return the calls per second, with arguments like those of a trial's first segment."""
    actors = [ray.remote(_Echo).options(num_cpus=1).remote() for _ in range(WORKERS)]
    try:
        ray.get([actor.run.remote(*_arguments(0)) for actor in actors])
        _drive(actors, _WARM_UP)
        began = time.perf_counter()
        _drive(actors, calls)
        return calls / (time.perf_counter() - began)
    finally:
        for actor in actors:
            ray.kill(actor, no_restart=True)


def _drive(actors: list[Any], calls: int) -> None:
    sent = 0
    flying: dict[Any, Any] = {}
    for actor in actors * _IN_FLIGHT:
        flying[actor.run.remote(*_arguments(sent))] = actor
        sent += 1
    while flying:
        done, _ = ray.wait(list(flying), num_returns=1)
        for ref in done:
            actor = flying.pop(ref)
            ray.get(ref)
            if sent < calls:
                flying[actor.run.remote(*_arguments(sent))] = actor
                sent += 1


def _arguments(number: int) -> tuple[Trial, Segment, None]:
    return Trial(number, {"x": 0.5}, 1234567890, "random"), Segment(number, 0, 1, None, 1), None
