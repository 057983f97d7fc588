"""One sweep from many lanes on a worker to many workers for a trial."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.events import Event, Failed, Finished, Lost, Reverted, Started
from hpsearch.results.study import Study
from hpsearch.run import verdicts
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.sweep.parts import Limits, Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Message, Task
from tests.hpsearch.support.lives import sweeps
from tests.hpsearch.support.packing import PackingBackend
from tests.hpsearch.support.scripted import events_of, of_kind, run_scripted, sweep_of

HALVING = SuccessiveHalving(27)


def run(path: Path, sweep: Sweep, workers: int, **resources: Any) -> Study:
    backend = PackingBackend(workers, metric=lambda trial, iteration: trial.seed % 1009 / iteration)
    return run_scripted(path, replace(sweep, resources=Resources(**resources)), backend)


def table(study: Study, without: Collection[int] = ()) -> str:
    rows = [replace(row, width=1, seconds=0.0, checkpoint=None, lanes=1) for row in study.trials]
    return repr([row for row in rows if row.number not in without])  # NaN is equal to NaN there


def running(events: list[Event]) -> Iterator[tuple[Event, dict[int, int]]]:
    """Yield each event with the widths of what runs then, by trial."""
    widths: dict[int, int] = {}
    for event in events:
        match event:
            case Started(segment=segment):
                widths[segment.trial] = segment.width
            case Finished(trial=trial) | Failed(trial=trial) | Lost(trial=trial) | Reverted(trial=trial):
                widths.pop(trial, None)
        yield event, widths


def check(study: Study, workers: int) -> None:
    """See that gangs form only of workers that no lane needs, and that nothing is trained with one."""
    gangs: set[tuple[int, int]] = set()
    for event, widths in running(events_of(study.directory)):
        if isinstance(event, Started) and event.segment.width > 1:
            assert sum(widths.values()) <= workers
            gangs.add((event.segment.trial, event.segment.attempt))
        if isinstance(event, Finished) and (event.trial, event.attempt) in gangs:
            assert event.lanes == 1


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=25)
@given(sweeps(settled=True), st.integers(1, 6), st.integers(2, 6), st.integers(2, 5))
def test_any_lanes_and_widths_end_with_the_table_of_one_trial_a_worker(
    tmp_path_factory: pytest.TempPathFactory, sweep: Sweep, workers: int, most: int, lanes: int
) -> None:
    path = tmp_path_factory.mktemp("s")
    study = run(path / "both", sweep, workers, max_workers_per_trial=most, trials_per_worker=lanes)
    fixed = run(path / "fixed", sweep, workers)
    assert (study.state, table(study)) == (fixed.state, table(fixed))
    check(study, workers)


def test_a_sweep_goes_from_lanes_to_all_workers_for_one_trial(tmp_path):
    """What lanes take together says nothing of what one takes: the last trial runs alone first, and is then widened."""
    study = run(tmp_path / "s", sweep_of(early_terminate=HALVING), 3, max_workers_per_trial=3, trials_per_worker=9)
    check(study, 3)
    most: dict[int, int] = {}
    for event in of_kind(study.directory, Finished):
        most[event.iteration] = max(most.get(event.iteration, 1), event.lanes)
    assert most == {1: 9, 3: 9, 9: 3, 11: 1, 27: 1}
    *_, narrow, wide = of_kind(study.directory, Started)
    assert (narrow.segment.start, narrow.segment.width) == (9, 1)
    assert narrow.reason == "what an iteration takes alone isn't known yet"
    assert (wide.segment.start, wide.segment.width) == (11, 3)
    assert wide.reason.startswith("nothing else can start; a probe")


def starts_of(study: Study, trial: int) -> list[int]:
    return [one.segment.width for one in of_kind(study.directory, Started) if one.segment.trial == trial]


@pytest.mark.parametrize("needs", [1, 2, 4])
def test_a_trial_that_takes_much_memory_ends_with_the_workers_that_it_needs_and_no_neighbour_changes(tmp_path, needs):
    """Trial 2 has none beside others, nor on fewer workers than it needs."""
    resources = Resources(max_workers_per_trial=4, trials_per_worker=3)
    sweep = sweep_of(early_terminate=SuccessiveHalving(9), resources=resources)

    def memory(task: Task, beside: int) -> bool:
        alone = task.lanes == 1 and beside == 0
        return task.segment.trial != 2 or (alone and task.segment.width >= needs)

    backend = PackingBackend(4, metric=lambda trial, iteration: trial.seed % 1009 / iteration)
    backend.memory = memory
    study = run_scripted(tmp_path / "s", sweep, backend)
    assert table(study) == table(run(tmp_path / "plain", sweep, 4))
    widths = [1, 1, 2, 4][: {1: 2, 2: 3, 4: 4}[needs]]
    assert starts_of(study, 2)[: len(widths)] == widths
    assert all(width >= needs for width in starts_of(study, 2)[len(widths) :] if needs > 1)
    assert study.trials[2].failure is None


def test_a_trial_for_which_no_memory_is_enough_fails_with_what_it_had(tmp_path):
    resources = Resources(max_workers_per_trial=4, trials_per_worker=3)
    sweep = sweep_of(early_terminate=SuccessiveHalving(9), resources=resources, limits=Limits(max_retries=0))
    backend = PackingBackend(4, metric=lambda trial, iteration: 1.0 / iteration)
    backend.memory = lambda task, beside: task.segment.trial != 2
    study = run_scripted(tmp_path / "s", sweep, backend)
    failure = study.trials[2].failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("memory", "no room; it had 4 workers")
    assert starts_of(study, 2) == [1, 1, 2, 4]
    assert [row.number for row in study.trials if row.failure is not None] == [2]


def test_who_is_to_run_alone_is_known_to_the_next_driver(tmp_path):
    """The driver dies between the loss of a worker and the end of the segments that are to run alone."""
    sweep = sweep_of(early_terminate=None, max_iter=4, run_cap=3, resources=Resources(trials_per_worker=3))

    class Dying(PackingBackend):
        def start(self, task: Task) -> None:
            if task.segment.attempt == 2:
                raise KeyboardInterrupt
            super().start(task)
            if task.segment.trial == 2:
                self.lose(0)

    run_scripted(tmp_path / "s", sweep, Dying(1, metric=lambda trial, iteration: 1.0 / iteration))
    lost = {event.trial: (event.then, event.company) for event in of_kind(tmp_path / "s", Lost)}
    assert lost == {0: ("halved", (0, 1)), 1: ("halved", (0, 1)), 2: ("alone", ())}
    second = PackingBackend(1, metric=lambda trial, iteration: 1.0 / iteration)
    study = run_scripted(tmp_path / "s", None, second)
    assert study.state == "finished"
    assert {event.trial: event.lanes for event in of_kind(study.directory, Finished)} == {0: 2, 1: 2, 2: 1}


class Deadly(PackingBackend):
    """Some trials kill their worker before they have run an iteration."""

    def __init__(self, workers: int, killers: Collection[int]) -> None:
        super().__init__(workers, metric=lambda trial, iteration: trial.seed % 1009 / iteration)
        self._killers = killers
        self.beside: list[tuple[int, ...]] = []
        """What each worker ran that died."""

    def wait(self, timeout: float | None) -> Sequence[Message]:
        for worker in range(len(self._free)):
            lanes = [attempt.task.segment.trial for attempt in self._on(worker)]
            if any(trial in self._killers for trial in lanes):
                self.beside.append(tuple(sorted(lanes)))
                self.lose(worker)
        return super().wait(timeout)


def test_who_kills_a_worker_is_found_by_halves(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "MOST_LOSSES", 2)
    options: dict[str, Any] = {"early_terminate": None, "max_iter": 3, "run_cap": 16}
    backend = Deadly(1, [5])
    study = run_scripted(tmp_path / "s", sweep_of(**options, resources=Resources(trials_per_worker=16)), backend)
    assert backend.beside == [tuple(range(16)), tuple(range(8)), (4, 5, 6, 7), (4, 5), (5,), (5,)]
    assert [row.failure and row.failure.kind for row in study.trials] == [None] * 5 + ["died"] + [None] * 10
    assert {event.trial for event in of_kind(study.directory, Lost) if event.counts_against_trial} == {5}
    lanes = {event.trial: event.lanes for event in of_kind(study.directory, Finished)}
    assert lanes == {**dict.fromkeys(range(4), 4), 4: 1, **dict.fromkeys((6, 7), 2), **dict.fromkeys(range(8, 16), 8)}


def test_those_that_were_halved_run_beside_whoever_again_once_their_segments_have_ended(tmp_path):
    class Mortal(PackingBackend):
        def start(self, task: Task) -> None:
            super().start(task)
            if task.segment.trial == 8 and task.segment.attempt == 1:
                self.lose(0)

    sweep = sweep_of(early_terminate=SuccessiveHalving(9), resources=Resources(trials_per_worker=9))
    study = run_scripted(tmp_path / "s", sweep, Mortal(1, metric=lambda trial, iteration: trial.number % 3))
    most: dict[int, int] = {}
    for event in of_kind(study.directory, Finished):
        most[event.iteration] = max(most.get(event.iteration, 1), event.lanes)
    assert most == {1: 5, 3: 3, 9: 1}


def test_companies_and_others_are_packed_also_where_a_study_goes_on_with_fewer_workers(tmp_path):
    """The trials of two workers alternate; one of these dies, and then the driver."""

    class Spread(PackingBackend):
        def _chosen(self, task: Task) -> Sequence[int]:
            return sorted(super()._chosen(task) and self._open_to(()), key=lambda worker: -self._free[worker])[:1]

        def wait(self, timeout: float | None) -> Sequence[Message]:
            self.lose(0)
            deaths, self._messages = self._messages, []
            self.start = _interrupted  # type: ignore[method-assign]
            return deaths

    sweep = sweep_of(early_terminate=None, max_iter=5, run_cap=16, resources=Resources(trials_per_worker=8))
    run_scripted(tmp_path / "s", sweep, Spread(2, metric=lambda trial, iteration: 1.0 / iteration))
    assert {event.company for event in of_kind(tmp_path / "s", Lost)} == {(0, 2, 4, 6), (8, 10, 12, 14)}
    second = PackingBackend(1, metric=lambda trial, iteration: 1.0 / iteration)
    study = run_scripted(tmp_path / "s", None, second)
    assert second.now() == 3 * 5.0
    lanes = {event.trial: event.lanes for event in of_kind(study.directory, Finished)}
    assert lanes == {trial: 8 if trial % 2 else 4 for trial in range(16)}


def _interrupted(task: Task) -> None:
    raise KeyboardInterrupt


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=50)
@given(st.sets(st.integers(0, 30), max_size=4), st.integers(1, 4), st.integers(2, 9), st.booleans())
def test_who_kills_workers_costs_no_neighbour_anything(
    tmp_path_factory: pytest.TempPathFactory, killers: set[int], workers: int, lanes: int, may_widen: bool
) -> None:
    path, sweep = tmp_path_factory.mktemp("s"), sweep_of(early_terminate=HALVING)
    one, many = Deadly(workers, killers), Deadly(workers, killers)
    resources = Resources(trials_per_worker=lanes, max_workers_per_trial=workers if may_widen else 1)
    fixed = run_scripted(path / "fixed", sweep, one)
    study = run_scripted(path / "lanes", replace(sweep, resources=resources), many)
    kinds = [[row.failure and row.failure.kind for row in of.trials] for of in (study, fixed)]
    assert (study.state, kinds[0], table(study, without=killers)) == (fixed.state, kinds[1], table(fixed, killers))
    assert {event.trial for event in of_kind(study.directory, Lost) if event.counts_against_trial} <= killers
    check(study, workers)
