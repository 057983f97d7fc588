"""Ended trials train on from their last checkpoints."""

from __future__ import annotations

import itertools
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.errors import HpsearchWarning
from hpsearch.events import Asked, Continued, Failed, Pruned, Started, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Request
from hpsearch.objective import Metric
from hpsearch.results.study import Study, load
from hpsearch.run.steering import answer
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.space import Constant, Space, Uniform
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.removal import unneeded
from hpsearch.study.state import SweepState
from hpsearch.study.trial_record import DECIDED
from hpsearch.sweep.parts import Checkpoints, Limits, Search
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trial_page import trial_page
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Result, Task
from hpsearch.trial import Failure, Report
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.killed_simulation import HALVED
from tests.hpsearch.support.lives import OPENED, Life, lives
from tests.hpsearch.support.scripted import ScriptedBackend, done, events_of, of_kind, run_scripted, sweep_of

FLAT = sweep_of(early_terminate=None, max_iter=3, run_cap=4, checkpoints=Checkpoints("all"))


def request(verb: str, details: Mapping[str, Any]) -> Request:
    return Request(time.time(), verb, "ada@there:7", details)


def asked(sweep_state: SweepState, has: Callable[[str], bool] = lambda address: True, **details: Any) -> Steered:
    """Ask that trials train on, and apply what follows; return the answer."""
    steered, *events = answer(request("extend", details), sweep_state, "DIR", has_checkpoint=has)
    for event in (steered, *events):
        sweep_state.apply(event)
    assert isinstance(steered, Steered)
    return steered


def refused(sweep_state: SweepState, has: Callable[[str], bool] = lambda address: True, **details: Any) -> str:
    steered, *_ = answer(request("extend", details), sweep_state, "DIR", has_checkpoint=has)
    assert isinstance(steered, Steered)
    return steered.refused


def lived(sweep: Sweep, workers: int = 1) -> Life:
    return Life(sweep, 0, workers, 0.0).run()


def run(path: Path, sweep: Sweep | None, answer: Callable[[Task], Sequence[Message]] | None = None) -> Study:
    def at_once(task: Task) -> Sequence[Message]:
        result = done(task)
        assert result.checkpoint is not None
        (path / result.checkpoint).mkdir(parents=True)
        return [result]

    return run_scripted(path, sweep, ScriptedBackend(at_once if answer is None else answer))


def test_the_best_trial_trains_on_from_its_last_checkpoint_and_nothing_else_changes(tmp_path):
    study = run(tmp_path / "s", sweep_of())
    best, before = study.best_trial.number, {row.number: row for row in study.trials}
    last = events_of(tmp_path / "s")
    checkpoint = next(event.segment for event in last if isinstance(event, Started) and event.segment.trial == best)
    assert hpsearch.extend(tmp_path / "s", max_iter=20).state == "extended"
    (event,) = of_kind(tmp_path / "s", Continued)
    assert (event.trial, event.until, event.iteration) == (best, 20, 9)
    study = run(tmp_path / "s", None)
    (segment,) = [event.segment for event in events_of(tmp_path / "s")[len(last) :] if isinstance(event, Started)]
    assert (segment.trial, segment.start, segment.end, segment.checkpoint) == (best, 9, 20, event.checkpoint)
    assert segment.attempt > checkpoint.attempt
    assert (tmp_path / "s" / event.checkpoint).is_dir()  # the longer training may be the worse one
    assert study.state == "finished"
    assert study.trials[best].iterations == 20
    assert study.trials[best].value == (best * 7 % 5 + 1) / 20  # what the script gives at iteration 20
    assert study.trials[best].reason == "trained on: ran all 20 iterations"
    assert [row for row in study.trials if row.number != best] == [row for row in before.values() if row.number != best]
    assert study.rungs == load(tmp_path / "s").rungs
    assert all(rung.finished == rung.started for rung in study.rungs)


def test_a_stopped_trial_that_trains_on_is_shown_in_its_rung_and_cleaning_up_keeps_what_it_needs(tmp_path):
    path = tmp_path / "s"
    study = run(path, sweep_of(checkpoints=Checkpoints("all")))
    trial = next(row.number for row in study.trials if row.reason.startswith("rung 0: 4th of 9"))
    before = trial_page(study, trial).cut
    hpsearch.extend(path, max_iter=12, trials=[trial])
    after = run(path, None)
    assert after.trials[trial].iterations == 12
    assert trial_page(after, trial).cut == before
    (event,) = of_kind(path, Continued)
    gone = {str(one.relative_to(after.directory)) for one in unneeded(StudyDirectory(path))}
    assert gone
    assert event.checkpoint not in gone


def test_trials_are_named_and_those_without_a_checkpoint_are_told_and_skipped(tmp_path):
    path = tmp_path / "s"
    study = run(path, FLAT)
    gone = study.trials[2].checkpoint
    assert gone is not None
    shutil.rmtree(path / gone)
    with pytest.warns(HpsearchWarning, match="trial 2 doesn't train on: its last checkpoint is gone"):
        hpsearch.extend(path, max_iter=5, trials=[3, 2, 0, 3])
    assert [event.trial for event in of_kind(path, Continued)] == [0, 3]
    (steered,) = of_kind(path, Steered)
    assert steered.details["trials"] == [0, 3]
    assert len(steered.details["notes"]) == 1
    assert [row.iterations for row in run(path, None).trials] == [5, 3, 3, 5]


def test_a_schedule_over_max_iter_is_warned_of():
    constants = {name: Constant(value) for name, value in {"epochs": 3, "width": 3.0, "deep": True}.items()}
    space = Space.from_parameters({"x": Uniform(0.0, 1.0), **constants})
    state = lived(replace(FLAT, parameters=space)).sweep_state
    (note,) = asked(state, max_iter=6, trials=[1]).details["notes"]
    assert note.startswith("trial 1: epochs is 3, as max_iter: if its learning rate falls over so many iterations, the")


def test_what_cant_train_on_is_refused_with_the_reason_and_nothing_follows():
    state = lived(FLAT).sweep_state
    assert refused(state, max_iter=3).endswith("must train on beyond iteration 3, got --max-iter 3")
    assert "got trial 9; there are trials 0, 1, 2, 3" in refused(state, max_iter=5, trials=[9])
    gone = refused(state, lambda address: False, max_iter=5, trials=[0, 1])
    assert "trial 0 doesn't train on" in gone
    assert "trial 1 doesn't train on" in gone
    assert "as much to do already" in refused(state, max_iter=5, run_cap=4)
    assert {row.state for row in state.rows()} == {"complete"}
    assert "no trial has ended with a value" in refused(SweepState(FLAT), max_iter=5)
    kept = lived(replace(FLAT, checkpoints=Checkpoints("best"))).sweep_state
    worst = max(kept.rows(), key=lambda row: (math.isnan(row.value or 0.0), row.value or 0.0)).number
    assert "its last checkpoint is gone" in refused(kept, max_iter=5, trials=[worst])


def test_open_brackets_are_refused_and_named():
    life = Life(sweep_of(), 0, 1, 0.0)
    while not any(row.state in DECIDED for row in life.sweep_state.rows()):
        life.step()
    text = refused(life.sweep_state, max_iter=20)
    assert "trials train on after all brackets have ended; still open: trials" in text
    assert "hpsearch resume DIR, or end them with hpsearch prune DIR" in text
    flat = Life(FLAT, 0, 1, 0.0)
    while not any(row.state in DECIDED for row in flat.sweep_state.rows()):
        flat.step()
    assert not refused(flat.sweep_state, max_iter=20, trials=[0])  # no other trial was judged by its length


@dataclass(frozen=True)
class Longer(SuccessiveHalving):
    """It offers to raise `max_iter`, and refuses when it comes to that."""

    raisable: ClassVar[tuple[str, ...]] = ("max_iter",)

    def raised(self, stored: Longer, run_cap: int | None) -> Mapping[str, Any]:
        return {"max_iter": self.max_iter}


def test_a_scheduler_that_raises_its_own_max_iter_is_asked_unless_trials_are_named():
    state = lived(sweep_of(early_terminate=Longer(9))).sweep_state
    assert "only `run_cap` and `brackets` can be raised, got max_iter" in refused(state, max_iter=18)
    assert not refused(state, max_iter=18, trials=[state.leaders()[0].number])


def failing(task: Task) -> Sequence[Message]:
    """It reports better values than ever, and fails."""
    reports = tuple(Report(task.trial.number, at, {"loss": -1.0}, 1.0) for at in range(task.segment.start + 1, 8))
    failure = Failure("timeout", "too slow", "")
    return [Result(*task.key, 7, None, reports, False, 1.0, failure)]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_trial_that_fails_while_it_trains_on_keeps_what_it_had_and_may_try_again(tmp_path, stopped):
    sweep = sweep_of(checkpoints=Checkpoints("all"), limits=Limits(max_failures=1)) if stopped else FLAT
    path = tmp_path / "s"
    study = run(path, sweep)
    trial = next(row.number for row in study.trials if row.state == ("stopped" if stopped else "complete"))
    hpsearch.extend(path, max_iter=10, trials=[trial])
    after = run(path, None, failing)
    assert after.state == "finished"
    (event,) = of_kind(path, Failed)
    assert not event.retry
    row, former = after.trials[trial], study.trials[trial]
    assert row.reason == f"trained on to iteration {former.iterations}, then failed: too slow"
    assert (row.state, row.value, row.iterations, row.failure) == (former.state, former.value, former.iterations, None)
    assert row.checkpoint == former.checkpoint
    hpsearch.extend(path, max_iter=10, trials=[trial])
    assert run(path, None).trials[trial].iterations == 10


def test_a_checkpoint_that_is_damaged_fails_and_is_never_replaced_by_a_start_from_zero(tmp_path):
    path = tmp_path / "s"
    run(path, FLAT)
    hpsearch.extend(path, max_iter=5, trials=[1])

    def damaged(task: Task) -> Sequence[Message]:
        return [Result(*task.key, 3, None, (), False, 1.0, Failure("checkpoint", "no such file", ""))]

    row = run(path, None, damaged).trials[1]
    assert (row.state, row.iterations) == ("complete", 3)
    assert row.reason == "trained on to iteration 3, then failed: no such file"


def test_a_pruned_trial_that_trains_on_ends_and_its_scheduler_hears_nothing():
    life = lived(sweep_of(checkpoints=Checkpoints("all")))
    state = life.sweep_state
    asked(state, max_iter=20, trials=[0])
    _, event = answer(request("prune", {"trials": [0]}), state, "DIR")
    assert isinstance(event, Pruned)
    state.apply(event)
    assert (state.rows()[0].state, state.rows()[0].reason) == ("stopped", "pruned by ada@there")
    assert type(state.next()).__name__ == "Done"


def test_a_method_that_learns_and_more_trials_give_what_they_would_have_given(tmp_path):
    """It learns nothing from what trains on, so that suggestions are those of a sweep in which nothing did."""
    sweep = sweep_of(method="tpe", early_terminate=None, max_iter=2, run_cap=14, search=Search(startup=3, lag=1))
    for name in ("plain", "longer"):
        run(tmp_path / name, sweep)
    hpsearch.extend(tmp_path / "longer", max_iter=9)
    more = replace(sweep, run_cap=18)
    plain, longer = (run(tmp_path / name, more) for name in ("plain", "longer"))
    assert [row.params for row in plain.trials] == [row.params for row in longer.trials]
    assert of_kind(tmp_path / "longer", Asked) == of_kind(tmp_path / "plain", Asked)
    assert sum(row.iterations == 9 for row in longer.trials) == 1


def test_a_target_that_a_trial_reached_stays_reached_though_it_fails_later():
    sweep = replace(FLAT, metric=Metric("loss", target=1.0))
    state = lived(sweep).sweep_state
    assert state.stopping.met == "target"
    (note,) = asked(state, max_iter=9).details["notes"]
    assert note.endswith("by metric.target, and would end by it again: hpsearch resume DIR --set metric.target=null")
    start = state.next()
    assert isinstance(start, Started)
    state.apply(start)
    state.apply(Failed(start.segment.trial, start.segment.attempt, Failure("died", "gone", ""), False, ()))
    assert state.stopping.met == "target"


@settings(deadline=None, max_examples=60)
@given(lives(keep="all"), st.data())
def test_any_life_trains_on_and_replays(life, data):
    life.run()
    state = life.sweep_state
    able = [row.number for row in state.rows() if row.state in DECIDED and state.record(row.number).checkpoint]
    trained = data.draw(st.lists(st.sampled_from(able), unique=True, max_size=3)) if able else []
    untouched = {row.number: row for row in state.rows() if row.number not in trained}
    until = {}
    for trial in trained:
        record = state.record(trial)
        until[trial] = record.result.iterations + data.draw(st.integers(1, 3))
        assert record.checkpoint is not None
        life.take(Continued(trial, until[trial], record.checkpoint_iteration, record.checkpoint))
    life.finished = False
    life.trouble = min(life.trouble, 0.3)
    while life.step():
        pass
    rows = life.sweep_state.rows()
    assert all(rows[trial].state in DECIDED for trial in trained)
    assert all(rows[trial].iterations <= until[trial] for trial in trained)
    if OPENED not in life.events[1:] and not any(row.failure for row in untouched.values()):
        assert {row.number: row for row in rows if row.number in untouched} == untouched
    assert repr(list(SweepState(life.sweep).resume(life.entries))) == repr(life.entries)
    read = JournaledState(life.sweep)
    list(read.read(life.entries))
    assert repr(read.rows()) == repr(rows)
    assert tuple(read.rungs()) == tuple(life.sweep_state.rungs())
    assert read.total == life.sweep_state.total()


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.killed_simulation") as server:
        yield server


def table_of(study: Path) -> str:
    loaded = load(study)
    assert loaded.state == "finished"
    return rows_to_csv(loaded.trials, loaded.sweep.parameters.names)


@pytest.mark.exhaustive
def test_killed_before_and_after_it_is_journaled_it_trains_on_with_the_same_table_on_any_workers(server, tmp_path):
    first, whole = (tmp_path / name / "study" for name in ("first", "whole"))
    assert server.call("begin", str(first), 1, HALVED) == 0
    best = load(first).best_trial.number
    shutil.copytree(first.parent, whole.parent)
    assert server.call("train_on", str(whole), 15, []) == 0
    assert server.call("begin", str(whole), 1, HALVED) == 0
    assert load(whole).trials[best].iterations == 15
    finished = len(events_of(first))
    assert [type(event) for event in events_of(whole)[finished : finished + 2]] == [Steered, Continued]
    for more, workers in itertools.product(range(5), (1, 2, 5)):
        study = tmp_path / f"{more}-{workers}" / "study"
        shutil.copytree(first.parent, study.parent)
        if more in (0, 2):  # before and after the answer and its event, which are one transaction
            assert server.call("train_on", str(study), 15, [], finished + more) == -signal.SIGKILL
            assert len(events_of(study)) == finished + more
        if more != 2:
            assert server.call("train_on", str(study), 15, []) == 0
        if more > 2:
            assert server.call("begin", str(study), workers, HALVED, finished + more) == -signal.SIGKILL
        assert server.call("begin", str(study), workers, HALVED) == 0
        assert table_of(study) == table_of(whole), (more, workers)
