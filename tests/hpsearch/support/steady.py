"""Lives of a sweep in which what a trial gives follows from the trial alone: not when, nor how often it is lost."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from hpsearch.events import Asked, Event, Failed, Finished, Lost, Opened, Saved
from hpsearch.schedulers.base import Done, Wait
from hpsearch.space import LogIntUniform, Space, Uniform
from hpsearch.study.state import SweepState
from hpsearch.study.suggestions import CallsOf, direct_calls
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Failure, Params, Report, Segment
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.spaces import in_order

OPENED = Opened("inline", 1, "me@here:1", "test")

SPACE = Space.from_parameters({"x": Uniform(0.0, 1.0), "n": LogIntUniform(1, 100), "c": ["a", "b"]})

Table = list[tuple[Any, ...]]


def loss(trial: int, iteration: int, params: Params) -> float:
    noise = random.Random(f"{trial} {iteration}").random()
    return math.nan if noise < 0.05 else abs(params["x"] - 0.3) + 1 / iteration + 0.1 * noise


def table(sweep_state: SweepState) -> Table:
    return [(row.number, dict(row.params), row.origin, repr(row.value), row.state) for row in sweep_state.rows()]


def answered(sweep_state: SweepState) -> object:
    """Return the scheduler's next answer, once its suggestion is ready."""
    while isinstance(answer := sweep_state.next(), Wait) and sweep_state.is_searching:
        pass
    return answer


@dataclass
class SteadyLife:
    """One life, to the end of its sweep.

    Args:
        sweep: Over `SPACE`.
        workers: How many trials are in flight.
        seed: Of the order in which things happen.
        trouble: How likely an attempt is lost, fails and is retried, or saves, before it ends.
        calls_of: Makes the searcher's calls.
    """

    sweep: Sweep
    workers: int
    seed: int
    trouble: float = 0.3
    calls_of: CallsOf = direct_calls
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.state = SweepState(self.sweep, self.calls_of)
        self.at: dict[tuple[int, int], int] = {}
        self.take(OPENED)

    def take(self, event: Event) -> None:
        self.state.apply(event)
        self.events.append(event)

    def run(self) -> SteadyLife:
        while self.step():
            assert len(self.events) < 5000, "the sweep must end"
        return self

    def step(self) -> bool:
        """Take the next event; False at the end."""
        if len(self.state.running()) < self.workers:
            answer = answered(self.state)
            if isinstance(answer, Done):
                return False
            if not isinstance(answer, Wait):
                self.take(answer)  # type: ignore[arg-type]
                return True
            assert self.state.running(), "nothing runs, and nothing may start"
        request = self.state.request() if self.chance.random() < 0.5 else None
        self.take(request or self.happen(self.chance.choice(list(self.state.running()))))
        return True

    def happen(self, segment: Segment) -> Event:
        trial, attempt, end = segment.trial, segment.attempt, segment.end or 3
        at = self.at.get((trial, attempt), segment.start)
        failure = Failure("raised", "ValueError: no", "")
        if self.chance.random() < self.trouble:
            kind = self.chance.choice(["lost", "retry", "saved"])
            if kind == "saved" and at < end - 1:
                to = self.at[trial, attempt] = self.chance.randint(at + 1, end - 1)
                return Saved(trial, attempt, to, f"{trial}-{attempt}-{to}", self.reports(trial, at, to))
            return Lost(trial, attempt, "node 7 died") if kind == "lost" else Failed(trial, attempt, failure, True, ())
        if random.Random(f"{trial} {end}").random() < 0.15:
            return Failed(trial, attempt, failure, False, self.reports(trial, at, end))
        return Finished(trial, attempt, end, f"{trial}-{attempt}-{end}", self.reports(trial, at, end), False, 1.0)

    def reports(self, trial: int, start: int, end: int) -> tuple[Report, ...]:
        params = self.state.record(trial).trial.params
        return tuple(Report(trial, i, {"loss": loss(trial, i, params)}, 0.1) for i in range(start + 1, end + 1))

    @property
    def asked(self) -> list[Asked]:
        return [event for event in self.events if isinstance(event, Asked)]


def sweep_over(method: str, **changes: Any) -> Sweep:
    """A sweep over `SPACE`, or over the parameter x alone."""
    space = in_order(SPACE) if method == "cmaes" else SPACE
    return sweep_of(**{"method": method, "parameters": space, **changes})
