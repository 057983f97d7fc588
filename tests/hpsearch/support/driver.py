"""Drives a backend by hand, as the orchestrator does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpsearch.backends.base import Backend
from hpsearch.events import Lost
from hpsearch.journal.directory import StudyDirectory
from hpsearch.objective import Metric, Objective
from hpsearch.task import Company, Message, Progress, Result, Task
from hpsearch.trial import Report, Segment, Trial
from hpsearch.worker.job import Job
from tests.hpsearch.support.conditions import living_below

ROOT = Path(__file__).parents[3]

_driven: list[Backend] = []


@contextmanager
def closed_in_the_end() -> Iterator[None]:
    """Close all that drivers have opened meanwhile: a test that failed would keep its workers from all that follow."""
    known = len(_driven)
    try:
        yield
    finally:
        for backend in _driven[known:]:
            backend.close(kill=True)
        del _driven[known:]


def _ray() -> str:
    """Say what the tests' Ray holds."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "no Ray"
    free = {kind: count for kind, count in ray.available_resources().items() if kind in ("CPU", "GPU")}
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return f"free {free}, actors {names}, workers {[child.name() for child in living_below(os.getpid(), 'ray::')]}"


def is_timeout(outcome: Message) -> bool:
    """Whether an attempt ended because it exceeded its timeout."""
    return isinstance(outcome, Result) and outcome.failure is not None and outcome.failure.kind == "timeout"


class Driver:
    """A backend, a study's directory for it, and what was heard."""

    def __init__(
        self,
        backend: Backend,
        study: Path,
        trainable: str,
        widest: int = 1,
        save_every: int | None = None,
        lanes: int = 1,
        metric: str = "value",
    ) -> None:
        self.backend = backend
        self.messages: list[Any] = []
        StudyDirectory(study).create({"sweep": {}}, None)
        job = Job(
            study=str(study),
            name=study.name,
            trainable=trainable if ":" in trainable else f"tests.hpsearch.support.backend_trainables:{trainable}",
            search_path=(str(ROOT),),
            objective=Objective(Metric(metric)),
            save_every=save_every,
            threads=1,
            widest=widest,
            lanes=lanes,
            mkl_cbwr=os.environ["MKL_CBWR"],  # as of studies, whose workers may be those of this one
        )
        _driven.append(backend)
        backend.open(job, self.messages.append)

    def wait_for(self, met: Callable[[], Any]) -> None:
        """Wait until a condition is met; the test's own time limit bounds it, and tells what was there by then."""
        try:
            while not met():
                self.messages += self.backend.wait(0.1)
        except pytest.fail.Exception as error:
            told = [type(message).__name__ for message in self.messages[-5:]]
            raise AssertionError(f"{error}: {self.backend.workers()}, heard {told}, {_ray()}") from error

    def start(
        self,
        number: int,
        params: dict[str, Any],
        end: int = 1,
        width: int = 1,
        timeout: float | None = None,
        after: Result | None = None,
        lanes: int = 1,
        company: Company = (),
        attempt: int = 1,
        at_once: bool = False,
    ) -> None:
        """Start a trial's first attempt, or the one that goes on after a result, when there is room, or at once."""
        self.wait_for(lambda: at_once or self.backend.capacity(lanes) >= width)
        trial = Trial(number, params, seed=number, origin="random")
        segment = Segment(number, 0, end, None, attempt, width)
        if after is not None:
            segment = Segment(number, after.iteration, end, after.checkpoint, after.attempt + 1, width)
        self.backend.start(Task(trial, segment, timeout, lanes, company))

    def results(self) -> list[int]:
        return [message.trial for message in self.messages if isinstance(message, Result)]

    def outcome(self, number: int, attempt: int = 1) -> Any:
        """Wait for what becomes of an attempt."""

        def outcomes() -> list[Message]:
            kinds = (Result, Lost)
            return [m for m in self.messages if isinstance(m, kinds) and (m.trial, m.attempt) == (number, attempt)]

        self.wait_for(outcomes)
        (outcome,) = outcomes()
        return outcome

    def metrics(self, number: int) -> dict[str, float]:
        """Wait for a live report of a trial, and return the metrics of the last one."""
        self.wait_for(lambda: self.reports(number))
        return dict(self.reports(number)[-1].metrics)

    def reports(self, number: int) -> list[Report]:
        """Return the live reports of a trial that have arrived so far."""
        told = [m for m in self.messages if isinstance(m, Progress) and m.trial == number]
        return [report for message in told for report in message.reports]
