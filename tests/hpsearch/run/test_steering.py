"""A sweep that is steered while it runs: requests are answered by events, and what comes of them is the journal's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.events import Added, Continued, Ended, Extended, Finished, Pruned, Retried, Started, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.history import seconds_spent
from hpsearch.journal.journal import Journal
from hpsearch.results.study import Study
from hpsearch.schedulers.halving import Hyperband
from hpsearch.sweep.parts import Checkpoints, Limits
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.status import status_text
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Result, Task
from hpsearch.trial import TrialState
from tests.hpsearch.support.scripted import (
    ScriptedBackend,
    cut_at_next_report,
    done,
    events_of,
    failed,
    of_kind,
    run_scripted,
    sweep_of,
)

FLAT = sweep_of(early_terminate=None, max_iter=4, run_cap=6)


class Beside(ScriptedBackend):
    """A backend beside which a user asks for things: `asked` maps how many attempts have ended to what is asked then.

    While nothing runs, which it is told by an empty `wait`, the things of `at_rest` are asked, one at a time.
    """

    def __init__(
        self,
        path: Path,
        asked: Mapping[int, tuple[str, dict[str, Any]]],
        at_rest: Sequence[tuple[str, dict[str, Any]]] = (),
        answer: Callable[[Task], Sequence[Message]] | None = None,
        workers: int = 1,
    ) -> None:
        super().__init__(answer or (lambda task: cut_at_next_report(self, task)), workers)
        self.path = path
        self.asked = dict(asked)
        self.at_rest = list(at_rest)
        self.ended = 0
        self.seen: list[Study] = []

    def ask(self, verb: str, details: Mapping[str, Any]) -> None:
        with Journal.read(StudyDirectory(self.path).journal) as journal:
            journal.request(verb, details, "ada@there:7")

    def wait(self, timeout: float | None) -> Sequence[Message]:
        if not self.running:
            self.seen.append(hpsearch.load(self.path))
            if self.at_rest:
                self.ask(*self.at_rest.pop(0))
            return ()
        if self.ended in self.asked:
            self.ask(*self.asked.pop(self.ended))
            return ()  # the sweep looks before anything ends
        self.ended += 1
        return super().wait(timeout)


def table(study: Study) -> str:
    return rows_to_csv([replace(row, checkpoint=None) for row in study.trials], study.sweep.parameters.names)


def undisturbed(path: Path, sweep: Sweep) -> str:
    return table(run_scripted(path, sweep, ScriptedBackend(lambda task: [done(task)])))


def outcomes(path: Path) -> list[tuple[str, str]]:
    return [(step.verb, step.outcome) for step in hpsearch.load(path).history() if step.verb not in ("run", "end")]


def test_a_paused_sweep_starts_nothing_until_it_is_resumed_and_gives_the_same_table(tmp_path):
    path = tmp_path / "s"
    backend = Beside(path, {2: ("pause", {})}, [("resume", {})], workers=3)
    study = run_scripted(path, FLAT, backend)
    assert table(study) == undisturbed(tmp_path / "calm", FLAT)
    paused = backend.seen[0]
    assert paused.state == "paused"
    assert "since 20" in paused.message
    assert paused.message.endswith(", by ada@there")
    assert not [row for row in paused.trials if row.state is TrialState.RUNNING]
    text = status_text(paused, "ada@here:1")
    assert "paused since" in text
    assert f"continue with: hpsearch resume {path}" in text
    cut = [event for event in of_kind(path, Finished) if event.cut]
    assert len(cut) == 3  # those that ran went on from a checkpoint
    assert outcomes(path) == [("pause", "done"), ("resume", "done")]
    assert study.state == "finished"


@pytest.mark.parametrize(("verb", "state"), [("stop", "stopped"), ("cancel", "cancelled")])
def test_a_paused_sweep_can_be_ended_and_goes_on_like_any(tmp_path, verb, state):
    path = tmp_path / "s"
    assert run_scripted(path, FLAT, Beside(path, {2: ("pause", {})}, [(verb, {})])).state == state
    assert len(of_kind(path, Started)) < 6
    assert table(run_scripted(path, None, ScriptedBackend(lambda task: [done(task)]))) == undisturbed(
        tmp_path / "calm", FLAT
    )


@pytest.mark.parametrize(
    ("verb", "details", "state", "rows"),
    [
        ("extend", {"run_cap": 8}, "finished", 8),
        ("cancel", {}, "cancelled", 6),
        ("stop", {}, "finished", 6),
        ("pause", {}, "finished", 6),
    ],
)
def test_what_is_asked_after_the_last_look_is_answered_before_the_sweep_ends(tmp_path, verb, details, state, rows):
    path = tmp_path / "s"

    class Busy(Beside):
        tick = math.inf

        def wait(self, timeout: float | None) -> Sequence[Message]:
            if self.ended == 5:
                self.ask(verb, details)
            self.ended += 1
            return ScriptedBackend.wait(self, timeout)

    study = run_scripted(path, FLAT, Busy(path, {}))
    assert (study.state, len(study.trials)) == (state, rows)
    assert {row.state for row in study.trials} == {TrialState.COMPLETE}
    ((told, outcome),) = outcomes(path)
    assert told == verb
    assert outcome.startswith("refused: the sweep ends already (finished)") == (verb in ("stop", "pause"))


def test_paused_time_doesnt_count_towards_max_time(tmp_path):
    path = tmp_path / "s"
    sweep = replace(FLAT, limits=Limits(max_time=100.0))

    class Slow(Beside):
        def wait(self, timeout: float | None) -> Sequence[Message]:
            self.clock += 1.0 if self.running else 1000.0
            return super().wait(timeout)

        def wall(self) -> float:
            return 1e9 + self.clock

    assert run_scripted(path, sweep, Slow(path, {1: ("pause", {})}, [("resume", {})])).state == "finished"
    with Journal.read(StudyDirectory(path).journal) as journal:
        assert seconds_spent(list(journal.entries())) < 100.0


def test_cancel_ends_at_once_and_what_ran_runs_again(tmp_path):
    path = tmp_path / "s"
    backend = Beside(path, {3: ("cancel", {})}, workers=2)
    study = run_scripted(path, FLAT, backend)
    assert study.state == "cancelled"
    assert backend.closed == [True]
    assert of_kind(path, Ended) == [Ended("cancelled", "by ada@there")]
    assert table(run_scripted(path, None, ScriptedBackend(lambda task: [done(task)]))) == undisturbed(
        tmp_path / "calm", FLAT
    )


def test_cancel_is_heard_while_the_sweep_waits_for_its_trials_to_end(tmp_path):
    path = tmp_path / "s"
    backend = Beside(path, {1: ("stop", {}), 2: ("cancel", {})}, workers=3)
    run_scripted(path, FLAT, backend)
    assert ("cancel", "done") in outcomes(path)
    assert backend.closed == [True]


def test_trials_are_pruned_while_they_run_and_while_they_wait(tmp_path):
    path = tmp_path / "s"
    sweep = sweep_of(early_terminate=Hyperband(9))
    study = run_scripted(path, sweep, Beside(path, {4: ("prune", {"trials": [0, 5]})}, workers=3))
    rows = study.trials
    assert study.state == "finished"
    assert [rows[trial].state for trial in (0, 5)] == [TrialState.STOPPED] * 2
    assert rows[0].reason == "pruned by ada@there"
    assert rows[5].iterations > 0
    assert {event.trial for event in of_kind(path, Pruned)} == {0, 5}
    again = [event.segment.trial for event in of_kind(path, Started)]
    assert again.count(0) == again.count(5) == 1
    assert {row.state for row in rows} <= {TrialState.STOPPED, TrialState.COMPLETE}


def test_an_extension_is_taken_at_once(tmp_path):
    path = tmp_path / "s"
    study = run_scripted(path, FLAT, Beside(path, {2: ("extend", {"run_cap": 9})}))
    assert len(study.trials) == 9
    assert study.sweep.run_cap == 9
    assert len([event for event in events_of(path) if isinstance(event, Ended)]) == 1
    assert table(study) == undisturbed(tmp_path / "calm", replace(FLAT, run_cap=9))


def test_an_ended_trial_trains_on_beside_the_others(tmp_path):
    path = tmp_path / "s"
    sweep = replace(FLAT, checkpoints=Checkpoints("all"))

    class OnDisk(Beside):
        def wait(self, timeout: float | None) -> Sequence[Message]:
            messages = super().wait(timeout)
            for message in messages:
                if isinstance(message, Result) and message.checkpoint is not None:
                    (path / message.checkpoint).mkdir(parents=True)
            return messages

    ended = ("extend", {"max_iter": 9, "trials": [0]})
    study = run_scripted(path, sweep, OnDisk(path, {1: ended}, workers=1))
    assert [row.iterations for row in study.trials] == [9, *[row.iterations for row in study.trials[1:]]]
    assert outcomes(path) == [("extend", "done")]
    assert [event.until for event in of_kind(path, Continued)] == [9]
    starts = [event.segment.trial for event in of_kind(path, Started)]
    assert starts[:3] == [0, 1, 0]  # its worker was taken
    calm = undisturbed(tmp_path / "calm", sweep).splitlines()
    assert table(study).splitlines()[2:] == calm[2:]


def test_points_are_added_and_failed_trials_retried_by_the_process_that_runs(tmp_path):
    path = tmp_path / "s"
    first: set[int] = set()

    def answer(task: Task) -> Sequence[Message]:
        number = task.trial.number
        if number == 1 and number not in first:
            first.add(number)
            return [failed(task)]
        return [done(task)]

    asked: dict[int, tuple[str, dict[str, Any]]] = {2: ("add", {"points": [{"x": 0.5}]}), 3: ("retry", {"trials": []})}
    study = run_scripted(path, FLAT, Beside(path, asked, answer=answer))
    assert study.trials[3].params == {"x": 0.5}
    assert study.trials[3].origin == "added"
    assert {row.state for row in study.trials} == {TrialState.COMPLETE}
    assert len(of_kind(path, Added)) == len(of_kind(path, Retried)) == 1
    assert outcomes(path) == [("add", "done"), ("retry", "done")]


@pytest.mark.parametrize(
    ("verb", "details", "why"),
    [
        ("prune", {"trials": [0]}, "trial 0 is over already, it is complete"),
        ("extend", {"run_cap": 2}, "run_cap"),
        ("add", {"points": [{"x": 3.0}]}, "params.x"),
        ("retry", {"trials": []}, "there is nothing to retry"),
        ("resume", {}, "the sweep isn't paused"),
        ("explode", {}, "knows no 'explode'"),
    ],
)
def test_what_is_refused_is_answered_with_the_reason_and_changes_nothing(tmp_path, verb, details, why):
    path = tmp_path / "s"
    study = run_scripted(path, FLAT, Beside(path, {2: (verb, details)}))
    ((asked, outcome),) = outcomes(path)
    assert asked == verb
    assert outcome.startswith("refused: ")
    assert why in outcome
    assert table(study) == undisturbed(tmp_path / "calm", FLAT)
    (steered,) = of_kind(path, Steered)
    assert steered.by == "ada@there:7"
    assert not of_kind(path, Pruned, Extended, Added)


def test_a_request_that_nobody_answered_is_shown_as_such_and_changes_nothing(tmp_path):
    path = tmp_path / "s"
    backend = Beside(path, {3: ("cancel", {})})
    run_scripted(path, FLAT, backend)
    backend.ask("prune", {"trials": [0]})  # its process was killed before it looked
    study = run_scripted(path, None, ScriptedBackend(lambda task: [done(task)]))
    assert table(study) == undisturbed(tmp_path / "calm", FLAT)
    assert outcomes(path) == [("cancel", "done"), ("prune", "not answered")]
