from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.errors import BackendError
from hpsearch.events import Ended, Event, Opened
from hpsearch.journal.journal import Journal
from hpsearch.objective import Metric, Objective
from hpsearch.observers.base import Record
from hpsearch.run.simulate import simulate
from hpsearch.schedulers.halving import Hyperband
from hpsearch.simulation.simulation import RecordedFailure, Step
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Limits
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Progress, Result, Task, Workers
from hpsearch.trial import Report, Segment, Trial
from hpsearch.worker.job import Job
from tests.hpsearch.support.functions import Functions, simulated_backend
from tests.hpsearch.support.lives import sweeps
from tests.hpsearch.support.scripted import sweep_of


def backend(workers: int = 2, checkpoints: bool = True, live: bool = False) -> SimulatedBackend:
    made = simulated_backend(
        workers,
        metric=lambda trial, iteration: trial.params["x"] / iteration,
        seconds=lambda trial, segment: trial.params["seconds"] * ((segment.end or 1) - segment.start) / segment.width,
        checkpoints=checkpoints,
        live=live,
    )
    made.open(Job("", "s", "", (), Objective(Metric("loss")), None, 1), lambda message: None)
    return made


def task(
    number: int, seconds: float, start: int = 0, end: int | None = 2, width: int = 1, timeout: float | None = None
) -> Task:
    trial = Trial(number, {"x": 8.0, "seconds": seconds}, 0, "random")
    return Task(trial, Segment(number, start, end, None, 1, width), timeout)


def test_the_clock_jumps_from_end_to_end():
    simulated = backend(3)
    for number, seconds in enumerate((5.0, 1.0, 1.0)):
        simulated.start(task(number, seconds))
    assert simulated.capacity() == 0
    assert (simulated.workers().ready, simulated.workers().busy, simulated.workers().wanted) == (3, 3, 3)
    together = simulated.wait(None)
    assert [message.trial for message in together if isinstance(message, Result)] == [1, 2]
    assert simulated.now() == 2.0
    assert simulated.capacity() == 2
    simulated.start(task(3, 1.0))
    assert [message.trial for message in simulated.wait(None) if isinstance(message, Result)] == [3]
    assert simulated.now() == 4.0
    assert [message.trial for message in simulated.wait(None) if isinstance(message, Result)] == [0]
    assert simulated.now() == 10.0
    assert not simulated.wait(None)


def test_reports_are_of_the_segments_own_iterations():
    simulated = backend()
    simulated.start(task(0, 3.0, start=2, end=4))
    (message,) = simulated.wait(None)
    assert isinstance(message, Result)
    result = message
    assert [(report.iteration, report.metrics, report.seconds) for report in result.reports] == [
        (3, {"loss": 8 / 3}, 3.0),
        (4, {"loss": 2.0}, 3.0),
    ]
    assert (result.iteration, result.seconds, result.cut, result.failure) == (4, 6.0, False, None)
    assert result.checkpoint == "trials/00000/1/hpsearch-checkpoint-4"


def test_a_cut_ends_an_attempt_at_its_next_report():
    simulated = backend(3)
    simulated.start(task(0, 10.0, start=1, end=9))  # until 80
    simulated.start(task(1, 25.0, end=1))
    simulated.start(task(2, 30.0, end=3))
    assert [message.trial for message in simulated.wait(None) if isinstance(message, Result)] == [1]
    simulated.cut(1, 1)  # it has ended
    simulated.cut(0, 2)  # there is no such attempt
    simulated.cut(0, 1)
    simulated.cut(0, 1)
    (message,) = simulated.wait(None)
    assert isinstance(message, Result)
    assert simulated.now() == 30.0  # in its third iteration
    result = message
    assert (result.iteration, result.cut, result.checkpoint) == (4, True, "trials/00000/1/hpsearch-checkpoint-4")
    assert [report.iteration for report in result.reports] == [2, 3, 4]
    assert result.seconds == 30.0
    (message,) = simulated.wait(None)
    assert isinstance(message, Result)
    assert (message.trial, message.cut, simulated.now()) == (2, False, 90.0)
    assert not simulated.wait(None)
    assert simulated.capacity() == 3


def test_a_cut_in_the_last_iteration_changes_nothing():
    simulated = backend()
    simulated.start(task(0, 10.0))
    simulated.start(task(1, 7.5))
    simulated.wait(None)
    simulated.cut(0, 1)
    (message,) = simulated.wait(None)
    assert isinstance(message, Result)
    assert (message.iteration, message.cut, simulated.now()) == (2, False, 20.0)


def test_a_wide_task_takes_as_many_workers():
    simulated = backend(5)
    simulated.start(task(0, 6.0, width=3))
    assert simulated.capacity() == 2
    assert simulated.workers().busy == 3
    with pytest.raises(BackendError, match="trial 1 asks for workers: 3, for which there is no room"):
        simulated.start(task(1, 1.0, width=3))
    assert simulated.capacity() == 2
    (message,) = simulated.wait(None)
    assert isinstance(message, Result)
    assert (simulated.now(), simulated.capacity()) == (4.0, 5)
    assert [report.seconds for report in message.reports] == [2.0, 2.0]


def test_each_iteration_is_told_of_at_its_own_time_and_the_last_one_by_the_result():
    simulated = backend(2, live=True)
    simulated.start(task(0, 10.0, start=1, end=4))
    simulated.start(task(1, 15.0, end=2))
    told = []
    while messages := simulated.wait(None):
        for message in messages:
            assert isinstance(message, Progress | Result)
            reports = message.reports
            told.append((simulated.now(), message.trial, [report.iteration for report in reports]))
    assert told == [
        (10.0, 0, [2]),
        (15.0, 1, [1]),
        (20.0, 0, [3]),
        (30.0, 0, [2, 3, 4]),
        (30.0, 1, [1, 2]),
    ]


@pytest.mark.parametrize("live", [False, True])
def test_an_attempt_that_runs_over_its_timeout_is_killed_at_that_very_moment(live):
    simulated = backend(3, live=live)
    simulated.start(task(0, 10.0, end=3, timeout=25.0))
    simulated.start(task(1, 10.0, end=3, timeout=30.0))  # to the end, and not over it
    simulated.start(task(2, 10.0, end=3, timeout=25.0))
    simulated.cut(2, 1)
    ends = []
    while messages := simulated.wait(None):
        ends += [(simulated.now(), message) for message in messages if not isinstance(message, Progress)]
    (first, cut), (second, killed), (third, done) = ends
    assert (first, second, third) == (10.0, 25.0, 30.0)
    assert isinstance(killed, Result)
    assert killed.failure is not None
    assert killed.failure.kind == "timeout"
    assert isinstance(cut, Result)
    assert isinstance(done, Result)
    assert (cut.cut, killed.trial, killed.seconds, done.cut) == (True, 0, 25.0, False)
    assert "25 s of it were left" in killed.failure.message
    assert simulated.capacity() == 3


@settings(deadline=None, max_examples=30)
@given(sweep=sweeps(), seed=st.integers(0, 10**6), workers=st.integers(1, 12))
def test_a_run_to_whose_reports_nobody_listens_is_the_same(sweep, seed, workers):
    def run(live: bool) -> tuple[object, float]:
        chance = random.Random(seed)
        simulated = simulated_backend(
            workers,
            metric=lambda trial, iteration: (trial.seed % 5) / iteration,
            seconds=lambda trial, segment: chance.choice([0.0, 1.0, 1.0 + chance.random()]),
            live=live,
        )
        return simulate(sweep, simulated).rows(), simulated.now()

    assert repr(run(live=True)) == repr(run(live=False))


@settings(deadline=None, max_examples=30)
@given(sweep=sweeps(settled=True), seed=st.integers(0, 10**6), workers=st.integers(2, 12), checkpoints=st.booleans())
def test_one_worker_and_many_give_the_same_table_however_long_segments_take(sweep, seed, workers, checkpoints):
    """Grid and random under every scheduler; durations are random, and so is the order of the ends."""
    chance = random.Random(seed)

    def table(workers: int) -> tuple[str, list[str]]:
        simulated = simulated_backend(
            workers,
            metric=lambda trial, iteration: (trial.seed % 5) / iteration,
            seconds=lambda trial, segment: chance.choice([0.0, 1.0, chance.random()]),
            checkpoints=checkpoints,
        )
        sweep_state = simulate(sweep, simulated)
        rows = sweep_state.rows()
        return rows_to_csv(rows, sweep.parameters.names), [row.reason for row in rows]

    assert table(1) == table(workers) == table(1000)


def journaled(path: Path, sweep: Sweep, workers: int, live: bool = True) -> list[tuple[float, Event]]:
    """Run a sweep whose iterations take ten virtual seconds; return what its journal says."""
    Journal.create(path, {"sweep": sweep.to_json()})
    simulated = simulated_backend(
        workers,
        metric=lambda trial, iteration: trial.seed % 5 / iteration,
        seconds=lambda trial, segment: 10.0 * ((segment.end or 1) - segment.start),
        live=live,
    )
    simulate(sweep, simulated, journal=Journal.open(path))
    with Journal.read(path) as journal:
        return [(entry.time, entry.event) for entry in journal.entries()]


def test_a_simulated_runs_journal_is_the_same_to_the_byte_and_bears_virtual_times(tmp_path):
    sweep = sweep_of(limits=Limits(max_time=1e6))
    history = journaled(tmp_path / "one", sweep, 2)
    assert history == journaled(tmp_path / "other", sweep, 2)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert history[0] == (0.0, Opened("simulated", None, "", ""))  # no process, as it would be another each time
    times = [when for when, _ in history]
    assert times == sorted(times)
    assert {when % 10.0 for when in times} == {0.0}
    assert history[-1] == (times[-1], Ended("finished"))


def test_max_time_counts_the_virtual_time_of_a_simulated_run(tmp_path):
    sweep = sweep_of(early_terminate=None, max_iter=1, run_cap=1000, limits=Limits(max_time=105.0))
    when, ended = journaled(tmp_path / "journal", sweep, 1)[-1]
    assert (when, ended) == (110.0, Ended("max_time"))


@pytest.mark.parametrize(("limit", "end"), [(45.0, 50.0), (40.0, 50.0), (95.0, 100.0)])
@pytest.mark.parametrize("live", [True, False])
def test_a_trial_ends_at_its_first_report_after_max_time(tmp_path, live, limit, end):
    sweep = sweep_of(early_terminate=None, max_iter=10, run_cap=2, limits=Limits(max_time=limit))
    when, ended = journaled(tmp_path / "journal", sweep, 1, live)[-1]
    assert (when, ended) == (end, Ended("max_time"))


class Onlooker:
    """Counts how often it is shown where the sweep stands."""

    looks = 0

    def observe(self, record: Record) -> None: ...

    def report(self, reports: Sequence[Report]) -> None: ...

    def say(self, text: str) -> None: ...

    def look(self, sweep_state: SweepState, workers: Workers, elapsed: float, last: bool) -> None:
        self.looks += 1


def test_looks_follow_the_virtual_time_and_not_the_events():
    onlooker = Onlooker()
    simulated = simulated_backend(1, metric=lambda trial, iteration: 0.0, seconds=lambda trial, segment: 1.0)
    simulate(sweep_of(early_terminate=None, max_iter=1, run_cap=600), simulated, onlooker)
    assert onlooker.looks == 600 / simulated.tick + 2  # also at the start, and when all is done


def big_sweep(trials: int) -> Sweep:
    return sweep_of(early_terminate=Hyperband(27), run_cap=trials)


def run_big(trials: int, workers: int) -> tuple[SweepState, SimulatedBackend]:
    simulated = simulated_backend(
        workers,
        metric=lambda trial, iteration: trial.seed % 100_003 / iteration,
        seconds=lambda trial, segment: (
            (segment.end or 1) - segment.start + trial.seed * (segment.start + 7) % 1000 / 1e3
        ),
        live=False,
    )
    return simulate(big_sweep(trials), simulated), simulated


@pytest.mark.exhaustive
def test_the_drivers_memory_per_trial_is_small():
    """The journal in memory counts here, which a real run keeps on the disk."""

    def held(trials: int) -> int:
        tracemalloc.start()
        sweep_state, _ = run_big(trials, 200)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(sweep_state.rows()) == trials
        return size

    assert (held(900) - held(300)) / 600 < 4096


@pytest.mark.exhaustive
def test_the_cost_per_trial_doesnt_grow_with_the_trials_or_the_workers():
    def seconds_per_trial(trials: int, workers: int) -> float:
        began = time.process_time()
        run_big(trials, workers)
        return (time.process_time() - began) / trials

    small = min(seconds_per_trial(250, 10) for _ in range(3))
    for workers in (10, 2000):
        assert any(seconds_per_trial(2000, workers) < 2 * small for _ in range(3))


@pytest.mark.exhaustive
def test_ten_thousand_workers_run_twenty_thousand_trials():
    """At which rate is the benchmark's to say; that the cost per trial doesn't grow is the test above."""
    sweep_state, simulated = run_big(20_000, 10_000)
    assert len(sweep_state.rows()) == 20_000
    assert simulated.now() > 0


class Costly(Functions):
    """Its checkpoints take a second, and it fails at its tenth iteration."""

    checkpoint_seconds = 1.0

    def __init__(self, fails: bool) -> None:
        super().__init__(lambda trial, iteration: float(iteration), lambda trial, segment: 20.0)
        self.fails = fails

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        yield from islice(super().steps(trial, segment, state), 10)
        if self.fails:
            raise RecordedFailure("out of memory")


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_cut_attempt_takes_the_time_of_its_checkpoint(live, fails):
    simulated = SimulatedBackend(2, Costly(fails), live)
    simulated.open(Job("", "s", "", (), Objective(Metric("loss")), None, 1), lambda message: None)
    simulated.start(task(0, 1.0, end=10 if not fails else 11))
    simulated.start(task(1, 1.0, end=10))
    simulated.cut(0, 1)
    results = []
    while messages := simulated.wait(None):
        results += [(simulated.now(), message) for message in messages if isinstance(message, Result)]
    when, cut = results[0]
    assert (cut.trial, cut.cut, cut.iteration) == (0, True, 1)
    assert cut.checkpoint is not None
    assert when == cut.seconds == cut.reports[0].seconds + 1.0


@settings(deadline=None, max_examples=30)
@given(times=st.lists(st.integers(1, 6), min_size=2, max_size=8), lengths=st.lists(st.integers(1, 5), min_size=8))
def test_who_listens_changes_no_order(times, lengths):
    """Many end together: those that were started first come first, whether their iterations were told of or not."""
    heard = []
    for live in (False, True):
        simulated = backend(len(times), live=live)
        for number, (seconds, end) in enumerate(zip(times, lengths, strict=False)):
            simulated.start(task(number, float(seconds), end=end))
        ends = []
        while messages := simulated.wait(None):
            ends += [(simulated.now(), message.trial) for message in messages if isinstance(message, Result)]
        heard.append(ends)
    assert heard[0] == heard[1]
