"""Workers and drivers die in any order, and whoever goes on has other workers, with other lanes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.events import Finished, Lost
from hpsearch.results.study import Study
from hpsearch.run import verdicts
from hpsearch.sweep.parts import Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Message, Task
from hpsearch.trial import Trial
from tests.hpsearch.support.lives import sweeps
from tests.hpsearch.support.packing import PackingBackend
from tests.hpsearch.support.scripted import of_kind, run_scripted

LIVES = 8
"""Of the driver, at most; the last one sees nothing die."""


class Mortal(PackingBackend):
    """Some workers die now and then, and so does the driver; some trials have no memory beside others."""

    def __init__(self, workers: int, chance: random.Random, mortality: float) -> None:
        super().__init__(workers, metric=metric)
        self.memory = lambda task, beside: task.segment.trial % 5 != 2 or (task.lanes == 1 and not beside)
        self._chance = chance
        self._mortality = mortality

    def wait(self, timeout: float | None) -> Sequence[Message]:
        for worker in range(len(self._free)):
            check([attempt.task for attempt in self._on(worker)])
        if self._chance.random() < self._mortality / 2:
            raise KeyboardInterrupt
        messages = super().wait(timeout)
        if self._chance.random() < self._mortality:
            for worker in self._chance.sample(range(len(self._free)), self._chance.randint(1, len(self._free))):
                self.lose(worker)
        return messages


def metric(trial: Trial, iteration: int) -> float:
    return trial.seed % 1009 / iteration


def check(tasks: Sequence[Task]) -> None:
    """See that those that share a worker may."""
    assert len({task.company for task in tasks}) <= 1
    assert all(task.trial.number in task.company for task in tasks if task.company)
    assert len(tasks) == 1 or all(task.lanes > 1 for task in tasks)


def table(study: Study) -> str:
    rows = [replace(row, width=1, seconds=0.0, checkpoint=None, address=None, lanes=1) for row in study.trials]
    return repr(rows)  # NaN is equal to NaN there


def check_neighbours(events: Sequence[Lost | Finished]) -> None:
    """See that what was lost beside others has no more neighbours than it may have until its segment has ended."""
    most: dict[int, int] = {}
    for event in events:
        if isinstance(event, Finished):
            assert event.lanes <= most.get(event.trial, event.lanes)
            if not event.cut:
                most.pop(event.trial, None)
            continue
        assert (event.trial in event.company) == (event.then == "halved")
        assert not (event.then and event.counts_against_trial)
        if event.then:
            before, most[event.trial] = most.get(event.trial, 1000), len(event.company) or 1
            assert most[event.trial] < before


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=40)
@given(sweeps(settled=True), st.integers(0, 2**32), st.sampled_from([0.1, 0.3]), st.booleans())
def test_whatever_dies_the_table_is_that_of_one_trial_a_worker(
    tmp_path_factory: pytest.TempPathFactory, sweep: Sweep, seed: int, mortality: float, may_widen: bool
) -> None:
    path, chance = tmp_path_factory.mktemp("s"), random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "MOST_LOSSES", 1000)  # nobody kills any worker here
        for life in range(1, LIVES + 1):
            workers, lanes = chance.randint(1, 4), chance.choice([1, 2, 3, 8, 16])
            resources = Resources(trials_per_worker=lanes, max_workers_per_trial=workers if may_widen else 1)
            backend = Mortal(workers, chance, mortality if life < LIVES else 0.0)
            study = run_scripted(path / "mortal", replace(sweep, resources=resources), backend)
            if study.state == "finished":
                break
    fixed = run_scripted(path / "fixed", sweep, PackingBackend(2, metric))
    assert (study.state, table(study)) == (fixed.state, table(fixed))
    check_neighbours(of_kind(path / "mortal", Lost, Finished))
    assert hpsearch.load(path / "mortal").state == "finished"  # as a journal of other lives it replays
