"""Elastic sweeps through the orchestrator: wider and narrower segments, and what goes wrong on more workers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.events import Event, Exhausted, Failed, Finished, Lost, Reverted, Started
from hpsearch.results.study import load
from hpsearch.run.simulate import simulate
from hpsearch.run.verdicts import MOST_LOSSES
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.simulation.simulation import relative_time
from hpsearch.space import Space, Uniform
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Limits, Resources, Scaling
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Message, Task
from hpsearch.trial import Segment, Trial, TrialState
from tests.hpsearch.run.test_orchestrator import direct
from tests.hpsearch.support.functions import Functions, simulated_backend
from tests.hpsearch.support.lives import sweeps
from tests.hpsearch.support.scripted import (
    ScriptedBackend,
    cut_at_next_report,
    done,
    events_of,
    failed,
    gone,
    of_kind,
    run_scripted,
    sweep_of,
)

HALVING = SuccessiveHalving(9)


def elastic(most: int, least: int = 1, **changes: object) -> Sweep:
    """Return a sweep whose trials may be widened."""
    resources = Resources(workers_per_trial=least, max_workers_per_trial=most)
    return sweep_of(**({"early_terminate": HALVING} | changes), resources=resources)


def simulated(workers: int, seed: int = 0, checkpoints: bool = True) -> SimulatedBackend:
    """Return a backend on which trials take different times, and wide segments less."""

    def seconds(trial: Trial, segment: Segment) -> float:
        iterations = (segment.end or segment.start + 1) - segment.start
        return iterations * (1 + (trial.seed + seed) % 7) * relative_time(segment.width)

    return simulated_backend(workers, lambda trial, iteration: trial.seed % 1009 / iteration, seconds, checkpoints)


def widths_to(events: Sequence[Event], until: int) -> list[int]:
    """Return the widths of the segments that run to an iteration."""
    return [e.segment.width for e in events if isinstance(e, Started) and e.segment.end == until]


def quarrelsome(harm: Callable[[Task], Sequence[Message] | None], workers: int = 9) -> ScriptedBackend:
    """Return a backend on which some tasks fail; the others end normally, or where they were cut."""
    backend = ScriptedBackend(lambda task: harm(task) or cut_at_next_report(backend, task), workers)
    return backend


def nan_when_wide(task: Task) -> Sequence[Message] | None:
    return [done(task, loss=lambda trial, iteration: math.nan)] if task.segment.width > 1 else None


@settings(deadline=None, max_examples=25)
@given(sweeps(settled=True), st.integers(1, 12), st.integers(2, 12), st.integers(0, 6), st.booleans())
def test_elastic_sweeps_end_with_the_same_table_as_fixed_ones(sweep, workers, most, seed, checkpoints):
    fixed = simulate(sweep, simulated(workers, seed, checkpoints))
    resources = Resources(max_workers_per_trial=most)
    sweep_state = simulate(replace(sweep, resources=resources), simulated(workers, seed, checkpoints))

    def table(sweep_state: SweepState) -> list[object]:
        return [replace(row, width=1, seconds=0.0, checkpoint=None) for row in sweep_state.rows()]

    assert repr(table(sweep_state)) == repr(table(fixed))  # NaN is equal to NaN there
    assert sweep_state.iterations == fixed.iterations


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 2), st.floats(0.1, 0.9))
def test_the_journal_of_an_elastic_sweep_replays_and_goes_on_from_anywhere(
    tmp_path_factory, seed, workers, least, where
):
    """Lost, failed and cut segments among them."""
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("s") / "s"

    def answer(task: Task) -> Sequence[Message]:
        assert task.segment.width <= backend.size
        if chance.random() < 0.1:
            return [gone(task)]
        if chance.random() < 0.1 and task.segment.width > least:
            return [failed(task)]
        return cut_at_next_report(backend, task)

    backend = ScriptedBackend(answer, workers, seed)
    sweep = elastic(workers, least, early_terminate=Hyperband(9), limits=Limits(max_retries=99))
    study = run_scripted(path, sweep, backend)
    assert study.state == "finished"
    events = events_of(path)
    sweep_state = SweepState(sweep)
    assert [event for event, _ in sweep_state.replay(events)] == events
    assert sweep_state.rows() == load(path).trials

    # the same journal, cut off somewhere
    half = path.with_name("half")
    run_scripted(half, sweep, _dying(backend, int(where * len(backend.tasks))))
    backend = ScriptedBackend(answer, workers, seed)
    assert run_scripted(half, None, backend).state == "finished"
    fixed = run_scripted(path.with_name("fixed"), sweep_of(), ScriptedBackend(lambda task: [done(task)]))
    for study in (load(path), load(half)):
        assert [(row.state, row.value, row.reason) for row in study.trials] == [
            (row.state, row.value, row.reason) for row in fixed.trials
        ]


def _dying(like: ScriptedBackend, after: int) -> ScriptedBackend:
    """Return a backend that acts as if Ctrl-C was pressed twice after so many answers."""
    answered = 0

    def answer(task: Task) -> Sequence[Message]:
        nonlocal answered
        answered += 1
        if answered > after:
            raise KeyboardInterrupt
        return cut_at_next_report(backend, task)

    backend = ScriptedBackend(answer, like.size)
    return backend


def test_rungs_that_narrow_keep_the_workers_busy_and_the_reasons_say_why(tmp_path):
    path = tmp_path / "s"
    backend = quarrelsome(lambda task: None)
    study = run_scripted(path, elastic(9), backend)
    events = events_of(path)
    assert widths_to(events, 1) == [1] * 9
    assert widths_to(events, 3) == [3] * 3
    assert widths_to(events, 9) == [9]
    reasons = {event.segment.end: event.reason for event in of_kind(path, Started)}
    assert reasons[1] == "no more are free"
    assert (
        reasons[3] == "nothing else can start; a probe: nothing is measured yet, at best 0.33 of the time on 1 worker"
    )
    assert reasons[9].startswith("nothing else can start; predicted ")
    assert max(study.trials, key=lambda row: row.iterations).width == 9
    # with `elastic: false` the journal is that of a sweep that never heard of it
    fixed = run_scripted(tmp_path / "f", replace(elastic(9), resources=Resources(elastic=False)), backend)
    assert {event.reason for event in of_kind(tmp_path / "f", Started)} == {""}
    assert {row.width for row in fixed.trials} == {1}


def test_a_wide_trial_is_narrowed_when_promoted_ones_wait():
    """All is done but for the last trial, which has three workers of four, when trial 0 lets its rung be decided."""
    backend = Watched()
    sweep_state = simulate(elastic(4, early_terminate=Hyperband(9)), backend)
    assert sweep_state.idle
    widths = [segment.width for _, segment in backend.starts if segment.trial == 16]
    assert widths == [2, 3, 1, 4]
    decided = [time for time, segment in backend.starts if segment.end == 3 and segment.trial < 9]
    assert min(decided) >= 150
    assert max(decided) <= 150 + 20  # the last trial's next report came within twenty seconds


class Watched(SimulatedBackend):
    """Four workers on which trial 0 begins very slowly, and trial 16 is slow."""

    def __init__(self) -> None:
        super().__init__(4, Functions(lambda trial, iteration: trial.number / iteration, self.seconds))
        self.starts: list[tuple[float, Segment]] = []

    @staticmethod
    def seconds(trial: Trial, segment: Segment) -> float:
        assert segment.end is not None
        if trial.number == 0 and segment.end == 1:
            return 150.0
        each = 60.0 if trial.number == 16 else 15.0 if segment.start == 1 else 1.0
        return (segment.end - segment.start) * each / segment.width

    def start(self, task: Task) -> None:
        self.starts.append((self.now(), task.segment))
        super().start(task)


def test_the_least_is_kept_where_it_does_not_divide_the_workers(tmp_path):
    backend = quarrelsome(lambda task: None, workers=5)
    study = run_scripted(tmp_path / "s", elastic(4, least=2), backend)
    assert study.state == "finished"
    widths = {task.segment.width for task in backend.tasks}
    assert min(widths) == 2
    assert max(widths) == 4
    assert widths_to(events_of(tmp_path / "s"), 9)[0] == 4


def test_a_fixed_width_above_one_is_that_of_every_segment(tmp_path):
    backend = quarrelsome(lambda task: None, workers=5)
    run_scripted(tmp_path / "s", elastic(2, least=2), backend)
    assert {task.segment.width for task in backend.tasks} == {2}
    assert {event.reason for event in of_kind(tmp_path / "s", Started)} == {""}


def test_a_grid_that_ends_in_the_middle_of_a_fill_leaves_no_worker_idle(tmp_path):
    """Two trials of seven: the five other workers go to them at once, not after their first cut."""
    space = Space.from_parameters({"x": Uniform(0.0, 1.0, points=2)})
    sweep = elastic(8, method="grid", parameters=space, early_terminate=None, max_iter=4)
    backend = quarrelsome(lambda task: None, workers=7)
    run_scripted(tmp_path / "s", sweep, backend)
    kinds = [type(event) for event in events_of(tmp_path / "s")]
    assert kinds.count(Exhausted) == 1
    assert [task.segment.width for task in backend.tasks[:2]] == [3, 3]


def test_a_wide_trial_that_becomes_nan_goes_back_once_and_is_never_widened_again(tmp_path):
    path = tmp_path / "s"
    backend = quarrelsome(nan_when_wide)
    study = run_scripted(path, elastic(9), backend)
    assert study.state == "finished"
    reverts = of_kind(path, Reverted)
    assert sorted(event.trial for event in reverts) == sorted({event.trial for event in reverts})
    assert len(reverts) == 3
    assert {event.iteration for event in reverts} == {1}
    assert all(event.reason.startswith("width 3: loss NaN after ") for event in reverts)
    marked = [row for row in study.trials if row.reverted]
    assert {row.number for row in marked} == {event.trial for event in reverts}
    for event in reverts:
        widths = [task.segment.width for task in backend.tasks if task.segment.trial == event.trial]
        assert widths[:3] == [1, 3, 1]
        assert set(widths[2:]) == {1}
        again = [task.segment for task in backend.tasks if task.segment.trial == event.trial][2]
        assert (again.start, again.checkpoint) == (1, f"trials/{event.trial:05}/1/hpsearch-checkpoint-1")
    fixed = run_scripted(tmp_path / "f", sweep_of(early_terminate=HALVING), quarrelsome(nan_when_wide))
    assert [(row.state, row.value) for row in study.trials] == [(row.state, row.value) for row in fixed.trials]


@pytest.mark.parametrize(("batch", "reverts"), [("global", 0), ("per_worker", 3)])
def test_a_wide_trial_that_becomes_worse_goes_back_where_its_batch_grew(tmp_path, batch, reverts):
    def worse(task: Task) -> Sequence[Message] | None:
        wide = task.segment.width > 1
        return [done(task, loss=lambda trial, iteration: 100.0 + trial)] if wide else None

    study = run_scripted(tmp_path / "s", elastic(9, scaling=Scaling(batch=batch)), quarrelsome(worse))
    assert study.state == "finished"
    assert len(of_kind(tmp_path / "s", Reverted)) == reverts
    assert study.best_trial.value < 100


@pytest.mark.parametrize("kind", ["raised", "contract"])
def test_a_wide_trial_that_fails_goes_back_and_keeps_its_retries(tmp_path, kind):
    backend = quarrelsome(lambda task: [failed(task, kind, "out of memory")] if task.segment.width > 1 else None)
    study = run_scripted(tmp_path / "s", elastic(9), backend)
    assert {row.state for row in study.trials} <= {TrialState.COMPLETE, TrialState.STOPPED}
    assert [event.reason for event in of_kind(tmp_path / "s", Reverted)] == ["width 3: out of memory"] * 3
    assert not of_kind(tmp_path / "s", Failed)


def test_a_trial_that_also_fails_on_the_least_fails(tmp_path):
    def always(task: Task) -> Sequence[Message] | None:
        return [failed(task)] if task.segment.start >= 1 else None

    study = run_scripted(tmp_path / "s", elastic(9), quarrelsome(always))
    assert len(of_kind(tmp_path / "s", Reverted)) == 3
    assert len(of_kind(tmp_path / "s", Failed)) == 3
    assert sum(row.state is TrialState.FAILED for row in study.trials) == 3


def test_a_lost_gang_is_nobodys_fault(tmp_path):
    def lost_once(task: Task) -> Sequence[Message] | None:
        return [gone(task)] if task.segment.width > 1 and task.segment.attempt == 2 else None

    study = run_scripted(tmp_path / "s", elastic(9), quarrelsome(lost_once))
    assert len(of_kind(tmp_path / "s", Lost)) == 3
    assert not any(row.reverted for row in study.trials)
    assert {row.state for row in study.trials} <= {TrialState.COMPLETE, TrialState.STOPPED}


def test_a_trial_whose_wide_gangs_always_die_goes_back(tmp_path):
    study = run_scripted(
        tmp_path / "s", elastic(9), quarrelsome(lambda task: [gone(task)] if task.segment.width > 1 else None)
    )
    assert {row.state for row in study.trials} <= {TrialState.COMPLETE, TrialState.STOPPED}
    assert len(of_kind(tmp_path / "s", Lost)) == 3 * (MOST_LOSSES - 1)
    assert [event.iteration for event in of_kind(tmp_path / "s", Reverted)] == [1] * 3
    reasons = [row.reverted for row in study.trials if row.reverted]
    assert len(reasons) == 3
    assert all(": its worker died 5 times in a row without progress; the last time: node 7 died" in r for r in reasons)


def test_a_trial_that_is_widened_in_the_middle_goes_back_to_where_it_was_cut(tmp_path):
    path = tmp_path / "s"

    backend = quarrelsome(nan_when_wide, workers=2)
    study = run_scripted(path, elastic(2, early_terminate=None, max_iter=6, run_cap=2), backend)
    (cut,) = [event for event in of_kind(path, Finished) if event.cut]
    (reverted,) = of_kind(path, Reverted)
    assert (reverted.trial, reverted.iteration) == (cut.trial, cut.iteration) == (cut.trial, 1)
    segments = [task.segment for task in backend.tasks if task.segment.trial == cut.trial]
    assert [(segment.start, segment.width) for segment in segments] == [(0, 1), (1, 2), (1, 1)]
    assert [row.state for row in study.trials] == [TrialState.COMPLETE] * 2
    assert [row.iterations for row in study.trials] == [6, 6]
    assert len([row for row in study.trials if row.reverted]) == 1


def test_the_user_hears_of_a_trial_that_goes_back():
    state, onlooker, _ = direct(elastic(9), quarrelsome(nan_when_wide))
    assert state == "finished"
    assert sum("goes back to iteration 1 and to fewer workers: width 3: loss NaN" in s for s in onlooker.said) == 3
