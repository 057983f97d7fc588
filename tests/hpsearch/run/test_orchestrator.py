from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Followed
from hpsearch.errors import TrainableError
from hpsearch.events import Ended, Event, Failed, Finished, Lost, Opened, Saved, Started
from hpsearch.journal.journal import Journal
from hpsearch.objective import Metric, Objective
from hpsearch.observers.base import Record
from hpsearch.results.study import Study, load
from hpsearch.run.interrupts import Interrupts
from hpsearch.run.orchestrator import Orchestrator
from hpsearch.run.verdicts import MOST_LOSSES
from hpsearch.schedulers.halving import Hyperband
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Checkpoints, Limits
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Notice, Progress, Task, Workers
from hpsearch.trial import Report, TrialState
from hpsearch.worker.job import Job
from tests.hpsearch.support.scripted import (
    ScriptedBackend,
    cut_at_next_report,
    done,
    events_of,
    failed,
    gone,
    of_kind,
    run_scripted,
    saved,
    sweep_of,
    timed_out,
)

FLAT = {"early_terminate": None, "max_iter": 4}


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_a_sweep_runs_to_its_end_and_says_so(tmp_path, workers):
    backend = ScriptedBackend(lambda task: [done(task)], workers)
    study = run_scripted(tmp_path / "s", sweep_of(), backend)
    assert study.state == "finished"
    assert len(study.trials) == 17
    assert len(backend.tasks) == 22
    events = events_of(tmp_path / "s")
    assert isinstance(events[0], Opened)
    assert events[-1] == Ended("finished")
    assert backend.closed == [False]


def test_nothing_starts_before_the_journal_says_so(tmp_path):
    """Read from the file, by a connection of its own, while the backend is told to start."""
    path = tmp_path / "s"

    class Checked(ScriptedBackend):
        def start(self, task: Task) -> None:
            assert task.segment in [event.segment for event in of_kind(path, Started)]
            super().start(task)

    backend = Checked(lambda task: [saved(task, 1), done(task, counted=1)], workers=3)
    run_scripted(path, sweep_of(**FLAT, run_cap=9), backend)
    assert len(backend.tasks) == 9


def test_a_checkpoint_is_discarded_only_after_the_journal_names_its_successor(tmp_path):
    path = tmp_path / "s"
    files: dict[str, Path] = {}

    def answer(task: Task) -> Sequence[Message]:
        for name, checkpoint in files.items():
            named = {event.checkpoint for event in of_kind(path, Saved, Finished)}
            assert name in named or checkpoint.exists()
        result = done(task)
        assert result.checkpoint is not None
        files[result.checkpoint] = path / result.checkpoint
        files[result.checkpoint].mkdir(parents=True)
        (files[result.checkpoint] / "state.pt").touch()
        return [result]

    study = run_scripted(path, sweep_of(), ScriptedBackend(answer, 3))
    left = [checkpoint for checkpoint in files.values() if checkpoint.exists()]
    best = next(row for row in study.trials if row.number == study.best_trial.number)
    assert left == [path / str(best.checkpoint)]


class Batches(Journal):
    """A journal that remembers what was appended together."""

    batches: list[list[Event]]

    def append(
        self, events: Sequence[Event], followed: Sequence[Followed] | None = None, when: float | None = None
    ) -> list[tuple[int, float]]:
        places = super().append(events, followed, when)
        self.batches.append(list(events))
        return places


class Onlooker:
    """Checks that it hears of what is in the journal, in its order."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.heard: list[Event] = []
        self.reports: list[Report] = []
        self.said: list[str] = []
        self.last: list[bool] = []

    def observe(self, record: Record) -> None:
        self.heard.append(record.event)
        entry = list(self.journal.entries())[record.seq - 1]
        assert (record.time, record.event) == (entry.time, entry.event)

    def report(self, reports: Sequence[Report]) -> None:
        self.reports += reports

    def say(self, text: str) -> None:
        self.said.append(text)

    def look(self, sweep_state: SweepState, workers: Workers, elapsed: float, last: bool) -> None:
        self.last.append(last)


def direct(sweep: Sweep, backend: ScriptedBackend, spent: float = 0.0) -> tuple[str, Onlooker, list]:
    """Run the orchestrator alone; return how it ended, who watched, and what was appended together."""
    made = Journal.in_memory({"sweep": sweep.to_json()})
    journal = Batches(made._connection, None)
    journal.batches = []
    sweep_state = SweepState(sweep)
    opened = Opened("scripted", 1, "me@here:1", "test")
    journal.append([opened])
    sweep_state.apply(opened)
    onlooker = Onlooker(journal)
    with journal:
        orchestrator = Orchestrator(sweep_state, journal, backend, onlooker, Interrupts(), spent)
        state = orchestrator.run(Job("", "s", "", (), Objective(Metric("loss")), None, 1))
        assert [entry.event for entry in journal.entries()][1:] == onlooker.heard
    return state, onlooker, journal.batches


def test_each_round_is_one_transaction_and_the_audience_hears_the_journal(tmp_path):
    """What came in, and what is started for it, stand together."""

    class All(ScriptedBackend):
        rounds = 0

        def wait(self, timeout: float | None) -> Sequence[Message]:
            self.rounds += 1
            running, self.running = self.running, []
            return [message for task in running for message in self.answer(task)]

    backend = All(lambda task: [saved(task, 1), done(task, counted=1)], workers=4)
    state, onlooker, batches = direct(sweep_of(**FLAT, run_cap=12), backend)
    assert state == "finished"
    assert len(batches) == 1 + 1 + backend.rounds + 1  # opened; the first starts; each round; ended
    kinds = [type(event).__name__ for event in batches[2]]
    assert kinds == ["Saved", "Finished"] * 4 + ["Started"] * 4
    assert onlooker.last[-1] is True
    assert not any(onlooker.last[:-1])


def test_provisional_reports_and_notices_reach_the_audience_and_not_the_journal():
    report = Report(0, 1, {"loss": 3.0}, 0.1)

    def answer(task: Task) -> Sequence[Message]:
        return [Notice("waits for ada's workers"), Progress(0, 1, (report,)), done(task)]

    state, onlooker, batches = direct(sweep_of(**FLAT, run_cap=1), ScriptedBackend(answer))
    assert state == "finished"
    assert (onlooker.reports, onlooker.said) == ([report], ["waits for ada's workers"])
    assert [type(event).__name__ for batch in batches for event in batch] == ["Opened", "Started", "Finished", "Ended"]


def test_what_trials_change_of_their_process_is_said_once_for_each_setting():
    changes = [("the umask",), ("the umask", "the locale"), ("the locale",)]

    def answer(task: Task) -> Sequence[Message]:
        result = done(task)
        stuck = ("the locale (gone)",) if task.segment.trial == 2 else ()
        changed = changes[task.segment.trial]
        return [replace(result, changed=changed, stuck=stuck)]

    _, onlooker, _ = direct(sweep_of(**FLAT, run_cap=3), ScriptedBackend(answer))
    assert [said.partition(";")[0] for said in onlooker.said] == [
        "trial 0 changed its whole process: the umask",
        "trial 1 changed its whole process: the locale",
        "trial 2 changed what couldn't be put back: the locale (gone)",
    ]


@pytest.mark.parametrize("stay", ["they stay", ""])
def test_what_a_trial_changes_in_its_modules_is_said_once_unless_nothing_follows(monkeypatch, stay):
    changes = [("mods.lr",), ("mods.lr", "mods.seen"), ()]

    def answer(task: Task) -> Sequence[Message]:
        result = done(task)
        return [replace(result, module_changes=changes[task.segment.trial])]

    monkeypatch.setattr(ScriptedBackend, "module_changes_stay", stay)
    _, onlooker, _ = direct(sweep_of(**FLAT, run_cap=3), ScriptedBackend(answer))
    first, second = "mods.lr changed while trial 0 ran: they stay", "mods.seen changed while trial 1 ran: they stay"
    assert onlooker.said == ([first, second] if stay else [])


def test_a_checkpoint_that_is_never_looked_at_is_told_once():
    def answer(task: Task) -> Sequence[Message]:
        result = done(task)
        return [replace(result, ignored_checkpoint=task.segment.trial > 0)]

    _, onlooker, _ = direct(sweep_of(**FLAT, run_cap=3), ScriptedBackend(answer))
    (said,) = onlooker.said
    assert said.startswith(
        "trial 1 went on from a checkpoint without a look at trial.checkpoint: if it trained from zero"
    )


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_trial_that_raises_is_tried_again_up_to_max_retries(tmp_path, retries):
    path = tmp_path / "s"
    backend = ScriptedBackend(lambda task: [failed(task) if task.segment.trial == 1 else done(task)])
    study = run_scripted(path, sweep_of(**FLAT, run_cap=3, limits=Limits(max_retries=retries)), backend)
    assert [row.state for row in study.trials] == [TrialState.COMPLETE, TrialState.FAILED, TrialState.COMPLETE]
    assert [task.segment.attempt for task in backend.tasks if task.segment.trial == 1] == [*range(1, retries + 2)]
    assert [event.retry for event in of_kind(path, Failed)] == [True] * retries + [False]
    failure = study.trials[1].failure
    assert failure is not None
    assert (failure.kind, failure.message, failure.traceback) == ("raised", "ValueError: no", "Traceback")


def test_a_retry_goes_on_from_the_newest_checkpoint(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        if task.segment.attempt == 1:
            return [saved(task, 1), saved(task, 3, since=1), failed(task)]
        return [done(task)]

    backend = ScriptedBackend(answer)
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=1, limits=Limits(max_retries=1)), backend)
    assert [(task.segment.start, task.segment.checkpoint) for task in backend.tasks] == [
        (0, None),
        (3, "trials/00000/1/hpsearch-checkpoint-3"),
    ]
    assert study.iterations == 4
    assert [i for i, _ in study.curves()[0]] == [1, 2, 3, 4]


def test_lost_attempts_dont_count_as_retries(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        return [gone(task)] if task.segment.attempt < MOST_LOSSES else [done(task)]

    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=3), ScriptedBackend(answer, 2))
    assert [row.state for row in study.trials] == [TrialState.COMPLETE] * 3
    assert len(of_kind(tmp_path / "s", Lost)) == 3 * (MOST_LOSSES - 1)


def test_a_trial_whose_workers_always_die_fails_and_the_others_go_on(tmp_path):
    backend = ScriptedBackend(lambda task: [gone(task) if task.segment.trial == 1 else done(task)])
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=3, limits=Limits(max_retries=9)), backend)
    assert [row.state for row in study.trials] == [TrialState.COMPLETE, TrialState.FAILED, TrialState.COMPLETE]
    assert [task.segment.trial for task in backend.tasks].count(1) == MOST_LOSSES
    failure = study.trials[1].failure
    assert failure is not None
    assert failure.kind == "died"
    assert "node 7 died" in failure.message


def test_a_trial_that_loses_its_worker_again_and_again_but_saves_in_between_is_not_to_blame(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        start = task.segment.start
        return [done(task)] if start == 8 else [saved(task, start + 1), gone(task)]

    study = run_scripted(tmp_path / "s", sweep_of(early_terminate=None, max_iter=9, run_cap=1), ScriptedBackend(answer))
    assert [row.state for row in study.trials] == [TrialState.COMPLETE]
    assert len(of_kind(tmp_path / "s", Lost)) == 8


def test_a_timeout_fails_the_trial_at_once_whatever_max_retries(tmp_path):
    backend = ScriptedBackend(lambda task: [timed_out(task) if task.segment.trial == 0 else done(task)])
    limits = Limits(trial_timeout=100.0, max_retries=9)
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=2, limits=limits), backend)
    assert [row.state for row in study.trials] == [TrialState.FAILED, TrialState.COMPLETE]
    assert [task.timeout for task in backend.tasks] == [100.0, 100.0]
    failure = study.trials[0].failure
    assert failure is not None
    assert failure.kind == "timeout"


def test_what_a_trial_has_run_already_is_taken_off_its_timeout(tmp_path):
    backend = ScriptedBackend(lambda task: [done(task)])  # each segment says that it took a second
    run_scripted(tmp_path / "s", sweep_of(limits=Limits(trial_timeout=1.5)), backend)
    left = {task.segment.start: task.timeout for task in backend.tasks if task.segment.trial < 9}
    assert left[0] == 1.5
    assert left[1] == 0.5
    assert left[3] is not None
    assert 0 < left[3] < 0.1  # over it, but never nothing: the backend kills it in its own way


def test_the_first_segments_that_break_the_contract_end_the_sweep_with_the_mistake(tmp_path):
    message = "the report lacks 'loss'; it holds 'los'"
    backend = ScriptedBackend(lambda task: [failed(task, "contract", message)], workers=3)
    with pytest.raises(TrainableError, match=message):
        run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=9), backend)
    assert len(backend.tasks) == 3
    assert len(backend.cuts) > 0
    assert backend.closed == [False]
    study = load(tmp_path / "s")
    assert study.state == "error"
    assert [row.state for row in study.trials] == [TrialState.WAITING] * 3
    # mended, it goes on where it stood, and nobody failed
    study = run_scripted(tmp_path / "s", None, ScriptedBackend(lambda task: [done(task)], 2))
    assert study.state == "finished"
    assert {row.state for row in study.trials} == {TrialState.COMPLETE}


def test_later_a_broken_contract_fails_its_trial_alone(tmp_path):
    backend = ScriptedBackend(
        lambda task: [
            failed(task, "contract", "the checkpoint holds a lambda") if task.trial.number == 1 else done(task)
        ]
    )
    limits = Limits(max_retries=5)
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=3, limits=limits), backend)
    assert [row.state for row in study.trials] == [TrialState.COMPLETE, TrialState.FAILED, TrialState.COMPLETE]
    assert len(backend.tasks) == 3


def test_a_failed_trials_reports_count_unless_it_is_tried_again(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        message = failed(task)
        return [replace(message, reports=done(task).reports[:2], iteration=2)]

    study = run_scripted(
        tmp_path / "s", sweep_of(**FLAT, run_cap=1, limits=Limits(max_retries=2)), ScriptedBackend(answer)
    )
    (row,) = study.trials
    assert (row.state, row.iterations, row.value) == (TrialState.FAILED, 2, None)
    assert study.iterations == 2


def test_what_former_runs_took_counts_towards_max_time():
    backend = ScriptedBackend(lambda task: cut_at_next_report(backend, task))
    sweep = sweep_of(**FLAT, run_cap=5, limits=Limits(max_time=20.0))
    assert direct(sweep, backend, spent=19.0)[0] == "finished"
    backend = ScriptedBackend(lambda task: cut_at_next_report(backend, task))
    assert direct(sweep, backend, spent=20.0)[0] == "max_time"
    assert len(backend.tasks) <= 1


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    workers=st.integers(1, 6),
    trouble=st.sampled_from([0.0, 0.3]),
    keep=st.sampled_from(["best", "all"]),
    early=st.sampled_from([None, Hyperband(9)]),
)
def test_losses_retries_and_saves_change_nothing_in_the_table(tmp_path_factory, seed, workers, trouble, keep, early):
    """As long as a trial comes through in the end, its way there leaves no trace in what is compared."""
    chance = random.Random(seed)

    def answer(task: Task) -> Sequence[Message]:
        if chance.random() < trouble and task.segment.attempt < 4:
            end = task.segment.end or 1
            at = chance.randint(task.segment.start, end - 1)
            before: list[Message] = [saved(task, at)] if at > task.segment.start else []
            return [*before, gone(task) if chance.random() < 0.5 else failed(task)]
        return [done(task)]

    path = tmp_path_factory.mktemp("s") / "s"
    sweep = sweep_of(
        early_terminate=early,
        max_iter=None if early else 4,
        run_cap=10,
        limits=Limits(max_retries=20),
        checkpoints=Checkpoints(keep),
    )
    study = run_scripted(path, sweep, ScriptedBackend(answer, workers, seed))
    calm = run_scripted(path.with_name("calm"), sweep, ScriptedBackend(lambda task: [done(task)]))
    assert table(study) == table(calm)


def table(study: Study) -> str:
    return rows_to_csv(study.trials, study.sweep.parameters.names)
