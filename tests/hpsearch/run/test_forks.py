"""Trials that are forked from others: run for real, damaged, killed and resumed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.events import Dropped, Failed, Retried, Started
from hpsearch.journal.journal import Journal
from hpsearch.run.steering import retries
from hpsearch.study.state import SweepState
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import Failure, TrialState
from tests.hpsearch.support.family import Family
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import events_of, of_kind, sweep_of

Seen = list[dict[str, Any]]


def training(seen: Seen, stop: Callable[[RunningTrial], None] = lambda trial: None) -> Callable[[RunningTrial], None]:
    """A trainable whose state is the iterations behind it, of all that it goes back to, and what it drew first."""

    def train(trial: RunningTrial) -> None:
        stop(trial)
        parent = trial.parent_checkpoint
        before = trial.checkpoint or parent
        history = [] if before is None else list(before["history"])
        seen.append(
            {
                "trial": trial.number,
                "parent": trial.parent,
                "inherits": None if parent is None else parent["of"],
                "start": trial.start,
                "goes on": trial.checkpoint is not None,
                "history": list(history),
            }
        )
        for iteration in trial.iterations():
            history.append(iteration)
            state = {"of": trial.number, "history": list(history), "drawn": random.random()}
            trial.report({"loss": trial.params["x"], "drawn": state["drawn"]}, checkpoint=state)

    return train


def search(place: Path, trainable: Any, **changes: Any) -> hpsearch.Study:
    given: dict[str, Any] = {
        "parameters": {"x": hpsearch.Uniform(0.0, 1.0)},
        "metric": "loss",
        "early_terminate": Population(6, members=3, interval=2),
        "run_cap": 6,
        "backend": "inline",
        "observers": [],
        "progress": False,
    }
    if "method" in changes:
        given["search"] = {"ahead": False}
    return hpsearch.search(trainable, directory=place, **merged(given, changes))


def test_training_goes_on_from_the_parents_checkpoint_at_its_iteration(tmp_path):
    seen: Seen = []
    study = search(tmp_path / "study", training(seen))
    forks = [trial for trial in study.trials if trial.parent is not None]
    assert forks
    for fork in forks:
        first = next(each for each in seen if each["trial"] == fork.number)
        (start,) = [
            event for event in of_kind(study.directory, Started) if event.new and event.new.number == fork.number
        ]
        assert first["parent"] == first["inherits"] == fork.parent
        assert first["goes on"]
        assert first["start"] == start.segment.start == start.new.parent.iteration == len(first["history"]) > 0
        later = [each for each in seen if each["trial"] == fork.number][1:]
        assert all(each["parent"] is None and each["inherits"] is None and each["goes on"] for each in later)
        assert fork.iterations > start.segment.start
    assert study.state == "finished"


def test_a_child_that_inherits_weights_starts_at_zero(tmp_path):
    seen: Seen = []
    study = search(tmp_path / "study", training(seen), method=Family.kind, early_terminate=None, max_iter=2)
    children = [trial for trial in study.trials if trial.parent is not None]
    assert len(children) == 3
    for child in children:
        (only,) = [each for each in seen if each["trial"] == child.number]
        assert only["start"] == 0
        assert not only["goes on"]
        assert only["inherits"] == child.parent
        assert len(only["history"]) >= 2
        assert child.iterations == 2


def test_a_forks_random_numbers_are_its_own(tmp_path):
    study = search(tmp_path / "study", training([]))
    drawn = [value for curve in study.curves("drawn").values() for _, value in curve]
    assert len(set(drawn)) == len(drawn)


class Steps:
    """The same as a class."""

    def __init__(self, trial: RunningTrial) -> None:
        self.x, self.done = trial.params["x"], 0

    def step(self) -> dict[str, float]:
        self.done += 1
        return {"loss": self.x, "done": self.done}

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def test_a_class_goes_on_from_its_parents_state_with_parameters_of_its_own(tmp_path):
    study = search(tmp_path / "study", Steps)
    forks = [trial for trial in study.trials if trial.parent is not None]
    assert forks
    for trial in study.trials:
        assert trial.metrics["done"] == trial.iterations
        assert trial.value == trial.params["x"]
    for fork in forks:
        assert fork.parent is not None
        assert fork.params["x"] != study.trials[fork.parent].params["x"]


def test_a_fork_whose_own_checkpoint_is_damaged_goes_back_to_its_parents(tmp_path):
    seen: Seen = []
    harmed: list[int] = []

    def harm(trial: RunningTrial) -> None:
        own = trial._assignment.checkpoint
        if own is not None and trial.parent is None and not harmed and f"trials/{trial.number:05d}/" in own:
            record = [event for event in events_of(tmp_path / "study") if isinstance(event, Started)]
            new = next(event.new for event in record if event.new is not None and event.new.number == trial.number)
            if new.parent is not None:
                harmed.append(trial.number)
                Path(own, "state.pt").unlink()

    study = search(tmp_path / "study", training(seen, harm))
    (number,) = harmed
    assert [event.trial for event in of_kind(study.directory, Dropped)] == [number]
    segments = [each for each in seen if each["trial"] == number]
    assert segments[1]["parent"] == segments[0]["parent"] == study.trials[number].parent
    assert segments[1]["start"] == segments[0]["start"] > 0
    assert segments[1]["history"] == segments[0]["history"]
    assert study.state == "finished"


def test_a_fork_whose_parents_checkpoint_is_damaged_fails_and_the_sweep_goes_on(tmp_path):
    def harm(trial: RunningTrial) -> None:
        source = trial._assignment.parent_checkpoint
        if source is not None:
            Path(source, "state.pt").unlink(missing_ok=True)

    study = search(tmp_path / "study", training([], harm), limits={"max_failures": "none"})
    forks = [trial for trial in study.trials if trial.parent is not None]
    assert forks
    for fork in forks:
        assert fork.state is TrialState.FAILED
        assert fork.failure is not None
        assert fork.failure.kind == "checkpoint"
        assert "state.pt" in fork.failure.message
    assert {event.failure.kind for event in of_kind(study.directory, Failed)} == {"checkpoint"}


def test_a_damaged_checkpoint_that_a_fork_reads_late_fails_it_too(tmp_path):
    """Its own, which it has by then, is as it should be: to drop that one would change nothing, for ever."""

    def train(trial: RunningTrial) -> None:
        source = trial._assignment.parent_checkpoint
        if source is not None:
            Path(source, "state.pt").unlink(missing_ok=True)
        for iteration in trial.iterations():
            trial.report({"loss": trial.params["x"]}, checkpoint={"iteration": iteration})
            assert trial.parent_checkpoint is None

    study = search(tmp_path / "study", train, limits={"max_failures": "none"}, checkpoints={"every": 1})
    forks = [trial for trial in study.trials if trial.parent is not None]
    assert forks
    assert {fork.state for fork in forks} == {TrialState.FAILED}
    assert of_kind(study.directory, Dropped) == []


def test_a_fork_does_what_its_parents_newest_checkpoint_has_not_done(tmp_path):
    done: dict[int, list[int]] = {}

    def train(trial: RunningTrial) -> None:
        history = [] if trial.checkpoint is None else list(trial.checkpoint)
        for iteration in trial.iterations():
            history.append(iteration)
            done[trial.number] = history
            loss = 2.0 if trial.number == 0 and iteration < 4 else float(trial.number)
            trial.report({"loss": loss}, checkpoint=None if iteration == 4 else history)

    early = Population(6, members=2, interval=2)
    study = search(tmp_path / "study", train, early_terminate=early, run_cap=3)
    (fork,) = [event for event in of_kind(study.directory, Started) if event.new and event.new.parent]
    assert fork.new.parent.number == 0
    assert (fork.segment.start, fork.segment.end) == (2, 6)  # of a parent that was judged at 4
    assert all(history == list(range(1, study.trials[number].iterations + 1)) for number, history in done.items())
    assert study.state == "finished"


def test_parents_that_save_nothing_have_forks_that_start_from_zero_and_it_is_said(tmp_path, capsys):
    seen: list[object] = []

    def bare(trial: RunningTrial) -> None:
        seen.append(trial.parent is not None)
        for iteration in trial.iterations():
            trial.report({"loss": trial.params["x"] + 0 * iteration})

    study = search(tmp_path / "study", bare, progress=True)
    forks = [event for event in of_kind(study.directory, Started) if event.new is not None and event.new.parent]
    assert forks
    assert all(event.segment.start == 0 and event.new.parent.checkpoint is None for event in forks)
    assert not any(seen)  # there is nothing to put right
    said = "".join(capsys.readouterr())
    assert f"trial {forks[0].new.number} starts from zero: there is no checkpoint of trial" in " ".join(said.split())


def test_a_scheduler_that_forks_needs_a_searcher_that_explores(tmp_path):
    with pytest.raises(SweepError, match=r"method.*must be a searcher that explores, as early_terminate forks trials"):
        search(tmp_path / "study", Steps, method="grid", parameters={"x": [1.0, 2.0]})


def test_a_retried_trial_is_the_next_new_one_though_that_is_a_fork_and_none_is_promised_where_none_comes():
    early = Population(6, members=3, interval=2)
    life = Life(sweep_of(early_terminate=early, run_cap=9), seed=5, workers=1, trouble=0.0)
    state = life.sweep_state
    while not any(event.segment.trial == 3 for event in life.events if isinstance(event, Started)):
        life.step()
    failed = state.record(3).trial
    assert failed.parent is not None
    life.take(Failed(3, 1, Failure("raised", "ValueError: no", "Traceback"), False, ()))
    life.take(Retried(3))
    life.run()
    again = state.record(4).trial
    assert (again.origin, again.params) == ("retry", failed.params)
    assert again.parent is not None
    assert [row.number for row in state.rows() if row.origin == "retry"] == [4]
    list(SweepState(life.sweep).replay(life.events))

    late = Life(sweep_of(early_terminate=early, run_cap=3), seed=5, workers=1, trouble=0.0)
    while not late.sweep_state.running():
        late.step()
    late.take(Failed(0, 1, Failure("raised", "ValueError: no", "Traceback"), False, ()))
    late.run()
    with pytest.raises(SweepError, match=r"as a new trial, and the sweep creates only 0 more; name other trials"):
        retries(late.sweep_state, ())


class Killed(BaseException):
    """Ends the process's part in the study as a kill would: nothing more is written."""


LEARNING = {"method": Family.kind, "early_terminate": None, "max_iter": 3}
"""Each run of it starts a process for the searcher."""
POPULATION = {"method": "pbt", "early_terminate": hpsearch.PBT(4, population=3, interval=1), "search": None}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("changes", "step"),
    [({}, 3), (POPULATION, 3), *(pytest.param(LEARNING, every, marks=pytest.mark.exhaustive) for every in (3, 15))],
)
def test_killed_after_any_event_and_resumed_the_table_is_the_same(tmp_path, monkeypatch, changes, step):
    def table(study: hpsearch.Study) -> object:
        return [(row.params, row.parent, row.value, row.metrics, row.iterations, row.state) for row in study.trials]

    whole = search(tmp_path / "whole", training([]), **changes)
    assert any(row.parent is not None for row in whole.trials)
    append = Journal.append
    for last in range(2, len(events_of(whole.directory)), step):
        written = 0

        def append_and_die(*args: Any, last: int = last) -> list[tuple[int, float]]:
            nonlocal written
            places = append(*args)
            written += len(places)
            if written >= last:
                raise Killed
            return places

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", append_and_die)
            with pytest.raises(Killed):
                search(tmp_path / f"killed-{last}", training([]), **changes)
        study = search(tmp_path / f"killed-{last}", training([]), **changes)
        assert study.state == "finished"
        assert table(study) == table(whole)


def test_what_a_fork_needs_is_kept_and_nothing_else_at_the_end(tmp_path):
    study = search(tmp_path / "study", training([]))
    assert list(study.directory.rglob("state.pt")) == [study.best_trial.checkpoint]
