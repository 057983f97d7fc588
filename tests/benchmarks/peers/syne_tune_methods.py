"""Syne Tune's methods over a suite's tables, on a virtual clock; for an environment of its own, never for CI.

    python3.11 -m venv /tmp/syne-tune
    /tmp/syne-tune/bin/pip install "setuptools<80" "syne-tune==0.13" "numpy<2" "pandas<3" pyarrow pyyaml rich psutil
    PYTHONPATH=.:comm /tmp/syne-tune/bin/python -m tests.benchmarks.peers.syne_tune_methods SUITE.yaml OUT.csv \
        --data FOLDER

It drives the schedulers as Syne Tune's tuner does: `on_trial_result` after each epoch, and a paused trial goes on from
its checkpoint. Suggestions cost no time. Version 0.13 is the last one with synchronous Hyperband.
"""

from __future__ import annotations

import datetime
import heapq
import logging
from collections.abc import Callable
from typing import Any

import syne_tune.config_space as cs
from syne_tune.backend.trial_status import Trial as PeerTrial
from syne_tune.optimizer.baselines import ASHA, RandomSearch, SyncHyperband
from syne_tune.optimizer.scheduler import SchedulerDecision

from hpsearch.benchmark.runs import BenchmarkTask, RunCourse, RunKey
from hpsearch.benchmark.suite import Suite
from hpsearch.space import IntUniform, LogIntUniform, LogUniform, Space, Uniform
from hpsearch.trial import Trial
from tests.benchmarks.peers.output import course_of, write_peer

METRIC, EPOCH = "loss", "epoch"


def config_space(space: Space) -> dict[str, Any]:
    """Return the space in Syne Tune's terms."""
    words: dict[type, Callable[..., Any]] = {
        Uniform: cs.uniform,
        LogUniform: cs.loguniform,
        IntUniform: cs.randint,
        LogIntUniform: cs.lograndint,
    }
    return {
        parameter.name: words[type(parameter.distribution)](parameter.distribution.min, parameter.distribution.max)  # type: ignore[attr-defined]
        for parameter in space.parameters
    }


def methods(suite: Suite) -> dict[str, Callable[[int], Any]]:
    """Return functions that make a scheduler from a seed, by name."""
    space, longest = config_space(suite.template.parameters), suite.max_iter
    same = {"metric": METRIC, "mode": "min", "resource_attr": EPOCH, "max_t": longest}

    def asha(first: int) -> Callable[[int], Any]:
        return lambda seed: ASHA(space, **same, grace_period=first, type="promotion", random_seed=seed)

    return {
        "random": lambda seed: RandomSearch(space, metric=METRIC, mode="min", random_seed=seed),
        "hyperband": lambda seed: SyncHyperband(
            {**space, "max_epochs": longest},
            metric=METRIC,
            mode="min",
            resource_attr=EPOCH,
            max_resource_attr="max_epochs",
            random_seed=seed,
        ),
        "asha_from_1": asha(1),
        "asha": asha(-(-longest // 27)),
    }


class Loop:
    """Trials on virtual workers."""

    def __init__(self, task: BenchmarkTask, scheduler: Any, longest: int, workers: int, budget: float) -> None:
        self.task, self.scheduler, self.longest, self.workers = task, scheduler, longest, workers
        self.until = budget * task.mean_seconds / workers
        self.trials: dict[int, tuple[PeerTrial, int]] = {}
        """With the row of the table."""
        self.reached: dict[int, int] = {}
        self.due: list[tuple[float, int, int]] = []
        self.order = 0
        self.free = workers
        self.course: list[tuple[float, float]] = []

    def run(self) -> list[tuple[float, float]]:
        """Return (full-training equivalents, judged value) of each report that is the best so far."""
        clock, best = 0.0, float("inf")
        while True:
            while self.free and self.start(clock):
                self.free -= 1
            if not self.due:
                return self.course
            clock, _, number = heapq.heappop(self.due)
            if clock > self.until:
                return self.course
            self.reached[number] += 1
            trial, row = self.trials[number]
            value = float(self.task.judged[row, self.reached[number] - 1])
            if value < best:
                best = value
                self.course.append((clock * self.workers / self.task.mean_seconds, value))
            self.decide(clock, number, trial, value)

    def start(self, clock: float) -> bool:
        suggestion = self.scheduler.suggest(len(self.trials))
        if suggestion is None:
            return False
        number = suggestion.checkpoint_trial_id
        if suggestion.spawn_new_trial_id:
            number = len(self.trials)
            trial = PeerTrial(number, suggestion.config, datetime.datetime.now())
            params = {name: suggestion.config[name] for name in self.task.table.space.names}
            row, _ = self.task.table.find(Trial(number, params, 0, "peer"))
            self.trials[number], self.reached[number] = (trial, row), 0
            self.scheduler.on_trial_add(trial=trial)
        elif suggestion.config is not None:
            trial, row = self.trials[number]
            self.trials[number] = PeerTrial(number, suggestion.config, trial.creation_time), row
        self.note(clock, number)
        return True

    def note(self, clock: float, number: int) -> None:
        self.order += 1
        seconds = self.task.table.recorded.seconds[self.trials[number][1], 0, self.reached[number]]
        heapq.heappush(self.due, (clock + float(seconds), self.order, number))

    def decide(self, clock: float, number: int, trial: PeerTrial, value: float) -> None:
        result = {METRIC: value, EPOCH: self.reached[number], "elapsed_time": clock}
        decision = self.scheduler.on_trial_result(trial=trial, result=result)
        if decision != SchedulerDecision.CONTINUE:
            self.scheduler.on_trial_remove(trial=trial)
        elif self.reached[number] == self.longest:
            self.scheduler.on_trial_complete(trial, result)
        else:
            self.note(clock, number)
            return
        self.free += 1


def run(suite: Suite, task: BenchmarkTask, key: RunKey) -> RunCourse:
    """Carry out one run."""
    loop = Loop(task, methods(suite)[key.method](key.seed), suite.max_iter, key.workers, suite.budgets[-1])
    best = loop.run()
    return course_of(task, best, len(loop.trials))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    write_peer(__doc__, "syne_tune", "random,hyperband,asha_from_1,asha", 30, run)
