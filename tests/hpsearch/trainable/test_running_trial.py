from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpsearch_comm
from hpsearch.errors import CheckpointError, TrainableError
from hpsearch.objective import Metric, Objective
from hpsearch.trainable import checkpoints, random_state
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.current import current_trial, mark_worker
from hpsearch.trainable.failures import failure_of
from hpsearch.trainable.running_trial import RunningTrial, SegmentEnd
from tests.comm.thread_ranks import run_ranks


class Listening:
    """Takes down what a trial tells."""

    def __init__(self, cut_at: int | None = None) -> None:
        self.cut_at = cut_at
        self.iterations: list[int] = []
        self.metrics: list[Mapping[str, float]] = []
        self.seconds: list[float] = []
        self.saves: list[tuple[int, str]] = []
        self.cuts: list[int] = []
        self.notes: list[Mapping[str, str]] = []

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        self.iterations.append(iteration)
        self.metrics.append(metrics)
        self.seconds.append(seconds)

    def noted(self, notes: Mapping[str, str]) -> None:
        self.notes.append(notes)

    def cut_requested(self) -> bool:
        return self.iterations[-1] == self.cut_at

    def was_cut(self) -> None:
        self.cuts.append(self.iterations[-1])

    def saved(self, iteration: int, name: str) -> None:
        self.saves.append((iteration, name))


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    return Assignment(
        number=4,
        params={"lr": 0.1},
        seed=9,
        directory=str(tmp_path),
        start=0,
        end=4,
        checkpoint=None,
        objective=Objective(Metric("loss")),
        save_every=None,
    )


def test_iterations_run_from_the_one_after_the_start_to_the_end(assignment: Assignment) -> None:
    listening = Listening()
    trial = RunningTrial(replace(assignment, start=2, end=5), listening)
    for iteration in trial.iterations():
        trial.report({"loss": iteration})
    assert listening.iterations == [3, 4, 5]
    assert trial.iteration == 5


def test_a_trial_shows_what_it_is(assignment: Assignment, tmp_path: Path) -> None:
    trial = RunningTrial(assignment, Listening())
    assert (trial.number, trial.seed, trial.params, trial.directory) == (4, 9, {"lr": 0.1}, tmp_path)
    assert (trial.start, trial.end, trial.checkpoint) == (0, 4, None)


def test_a_state_is_asked_for_only_where_a_checkpoint_is_needed(assignment: Assignment) -> None:
    listening = Listening()
    trial = RunningTrial(replace(assignment, start=1, end=7, save_every=3), listening)
    asked = []

    def state() -> dict[str, int]:
        asked.append(trial.iteration)
        return {"done": trial.iteration}

    for _ in trial.iterations():
        trial.report({"loss": 0}, checkpoint=state)
    assert asked == [3, 6, 7]
    assert listening.saves == [(3, "hpsearch-checkpoint-3"), (6, "hpsearch-checkpoint-6"), (7, "hpsearch-checkpoint-7")]


def test_notes_are_texts_by_name_and_those_of_rank_0(assignment: Assignment) -> None:
    listening = Listening()
    RunningTrial(assignment, listening).note(commit="4f1c", self="text")
    RunningTrial(replace(assignment, rank=1, world_size=2), listening).note(commit="other")
    assert listening.notes == [{"commit": "4f1c", "self": "text"}]


@pytest.mark.parametrize(
    ("notes", "problem"),
    [
        ({"rate": 0.1}, r"the note 'rate' must be a text, but is a float, 0.1: write str\(...\), or report"),
        ({"log": "x" * 4001}, "the note 'log' must have at most 4,000 characters, but has 4,001: write it to a file"),
        ({"": "x"}, "the name of a note must be a text of 1 to 100 characters, got a str, ''"),
    ],
)
def test_what_is_no_note_is_refused(assignment: Assignment, notes: dict[str, Any], problem: str) -> None:
    listening = Listening()
    with pytest.raises(TrainableError, match=problem):
        RunningTrial(assignment, listening).note(**notes)
    assert listening.notes == []


@pytest.mark.parametrize("step", [1, 0.5, True, np.int64(3)])
def test_a_step_is_no_checkpoint(assignment: Assignment, step: Any) -> None:
    """Else a trial that saves nothing would seem to go on where it begins anew."""
    listening = Listening()
    trial = RunningTrial(replace(assignment, end=1), listening)
    next(trial.iterations())
    with pytest.raises(TrainableError, match=r"is a number, .*: report\(\) takes no step"):
        trial.report({"loss": 0}, step)
    assert (trial.iteration, listening.saves) == (0, [])


@pytest.mark.parametrize(
    ("args", "keywords", "problem"),
    [
        (
            [],
            {"loss": 0.3},
            r'one mapping, and a checkpoint, but got loss by keyword: write trial.report\({"loss": 0.9}\)',
        ),
        ([], {"loss": 0.3, "step": 3}, "got loss, step by keyword"),
        ([{"loss": 0.3}], {"step": 3}, "got step by keyword: .*; it takes no step, as each call is the end"),
        ([0.3], {"step": 3}, "got step by keyword"),
        ([0.3, 3], {}, 'a report must be a mapping of names to numbers, but is .*0.3: write {"loss": 0.9}'),
        ([0.3], {}, "a report must be a mapping of names to numbers"),
        (["loss", 0.3], {}, "a report must be a mapping of names to numbers"),
        ([], {}, "every report must have the sweep's metric 'loss', but this one has nothing"),
    ],
)
def test_a_report_as_other_libraries_take_it_is_told_how_it_is_written_here(
    assignment: Assignment, args: list[Any], keywords: dict[str, Any], problem: str
) -> None:
    listening = Listening()
    trial = RunningTrial(replace(assignment, end=1), listening)
    next(trial.iterations())
    with pytest.raises(TrainableError, match=problem):
        trial.report(*args, **keywords)
    assert (trial.iteration, listening.saves) == (0, [])


@pytest.mark.parametrize("kind", ["state", "function", "path", "function of a path"])
def test_a_checkpoint_comes_back_however_it_was_given(assignment: Assignment, tmp_path: Path, kind: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    offered: dict[str, Any] = {
        "state": {"a": 1},
        "function": lambda: {"a": 1},
        "path": str(tmp_path / "model"),
        "function of a path": lambda: tmp_path / "model",
    }
    trial = RunningTrial(replace(assignment, end=1), Listening())
    for _ in trial.iterations():
        trial.report({"loss": 0}, checkpoint=offered[kind])
    after = replace(assignment, start=1, end=2, checkpoint=str(tmp_path / "hpsearch-checkpoint-1"))
    loaded = RunningTrial(after, Listening()).checkpoint
    if "path" in kind:
        assert (loaded / "weights").read_text() == "w"
    else:
        assert loaded == {"a": 1}


def test_a_checkpoint_is_read_once_in_a_segment(assignment: Assignment, tmp_path: Path) -> None:
    name = checkpoints.write(tmp_path, 1, {"x": [1]}, random_state.capture())
    trial = RunningTrial(replace(assignment, start=1, checkpoint=str(tmp_path / name)), Listening())
    first = trial.checkpoint
    shutil.rmtree(tmp_path / name)
    looks = []
    for _ in trial.iterations():
        looks.append(trial.checkpoint)
        trial.report({"loss": 0})
    assert first == {"x": [1]}
    assert all(look is first for look in looks)


def test_a_function_may_give_no_state(assignment: Assignment) -> None:
    listening = Listening()
    trial = RunningTrial(assignment, listening)
    for _ in trial.iterations():
        trial.report({"loss": 0}, checkpoint=lambda: None)
    assert listening.saves == []


def test_a_module_as_checkpoint_is_refused_with_what_to_write(assignment: Assignment) -> None:
    import torch

    trial = RunningTrial(replace(assignment, end=1), Listening())
    steps = trial.iterations()
    next(steps)
    with pytest.raises(CheckpointError, match=r"checkpoint=model\.state_dict"):
        trial.report({"loss": 0}, checkpoint=torch.nn.Linear(1, 1))


def test_a_cut_ends_the_iterations_with_a_checkpoint(assignment: Assignment) -> None:
    listening = Listening(cut_at=2)
    trial = RunningTrial(assignment, listening)
    for _ in trial.iterations():
        trial.report({"loss": 0}, checkpoint={"a": 1})
    assert listening.iterations == [1, 2]
    assert listening.saves == [(2, "hpsearch-checkpoint-2")]


@pytest.mark.parametrize(
    ("goal", "target", "ended_at"), [("minimize", 0.5, 2), ("maximize", 1.0, 1), ("minimize", 0, 9)]
)
@pytest.mark.parametrize("own_loop", [False, True])
def test_a_segment_ends_at_the_report_that_reaches_the_target_with_a_checkpoint(
    assignment: Assignment, goal: Any, target: float, ended_at: int, own_loop: bool
) -> None:
    listening = Listening()
    trial = RunningTrial(
        replace(assignment, end=9, objective=Objective(Metric("loss", goal, target=target))), listening
    )
    with contextlib.suppress(SegmentEnd):
        for iteration in range(1, 10) if own_loop else trial.iterations():
            trial.report({"loss": 1.0 / iteration}, checkpoint={"at": iteration})
    assert listening.iterations[-1] == ended_at
    assert listening.cuts == ([] if ended_at == 9 else [ended_at])
    assert listening.saves == [(ended_at, f"hpsearch-checkpoint-{ended_at}")]


@pytest.mark.parametrize(("end", "cut_at"), [(2, None), (9, 2), (None, 2)])
def test_a_loop_of_its_own_ends_from_within_the_report(
    assignment: Assignment, end: int | None, cut_at: int | None
) -> None:
    listening = Listening(cut_at)
    trial = RunningTrial(replace(assignment, end=end), listening)
    trial.report({"loss": 0}, checkpoint={"a": 1})
    for _ in range(2):  # one that swallows the end meets it again
        with pytest.raises(SegmentEnd):
            trial.report({"loss": 0}, checkpoint={"a": 1})
    assert listening.iterations == [1, 2]
    assert listening.saves == [(2, "hpsearch-checkpoint-2")]


def test_without_max_iter_iterations_names_the_key(assignment: Assignment) -> None:
    trial = RunningTrial(replace(assignment, end=None), Listening())
    with pytest.raises(TrainableError, match=r"has no `max_iter`: .* `early_terminate` .* top level"):
        next(trial.iterations())


def test_a_step_without_a_report_is_refused(assignment: Assignment) -> None:
    steps = RunningTrial(assignment, Listening()).iterations()
    next(steps)
    with pytest.raises(TrainableError, match="iteration 1 didn't"):
        next(steps)


def test_two_reports_in_a_step_are_refused(assignment: Assignment) -> None:
    trial = RunningTrial(assignment, Listening())
    next(steps := trial.iterations())
    trial.report({"loss": 0})
    with pytest.raises(TrainableError, match="iteration 1 did twice"):
        trial.report({"loss": 0})
    assert next(steps) == 2


def test_a_report_after_the_last_iteration_is_refused(assignment: Assignment) -> None:
    trial = RunningTrial(assignment, Listening())
    for _ in trial.iterations():
        trial.report({"loss": 0})
    with pytest.raises(TrainableError, match="ended with iteration 4"):
        trial.report({"loss": 0})


def test_after_a_break_the_trial_goes_on_where_it_was(assignment: Assignment) -> None:
    listening = Listening()
    trial = RunningTrial(assignment, listening)
    for iteration in trial.iterations():
        if iteration == 2:
            break
        trial.report({"loss": 0})
    trial.report({"loss": 0})
    for _ in trial.iterations():
        trial.report({"loss": 0})
    assert listening.iterations == [1, 2, 3, 4]


def test_a_report_without_the_metric_counts_for_nothing(assignment: Assignment) -> None:
    listening = Listening()
    trial = RunningTrial(assignment, listening)
    with pytest.raises(TrainableError, match="metric 'loss'"):
        trial.report({"los": 1.0})
    assert listening.iterations == []
    assert trial.iteration == 0


def test_the_seconds_of_an_iteration_are_the_trainables_alone(assignment: Assignment) -> None:
    listening = Listening()
    trial = RunningTrial(replace(assignment, end=2, save_every=1), listening)

    def slow_state() -> dict[str, float]:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.05:
            pass
        return {}

    for _ in trial.iterations():
        trial.report({"loss": 0}, checkpoint=slow_state)
    assert all(0 <= seconds < 0.05 for seconds in listening.seconds)


def test_saving_changes_nothing_that_comes_after_it(assignment: Assignment, tmp_path: Path) -> None:
    import torch

    def draws(save_every: int | None, directory: Path) -> list[float]:
        directory.mkdir()
        trial = RunningTrial(replace(assignment, save_every=save_every, directory=str(directory)), Listening())
        random_state.seed_all(trial.seed)
        drawn = []
        for _ in trial.iterations():
            drawn.append(float(torch.rand(())))
            trial.report({"loss": 0}, checkpoint=lambda: {"noise": torch.rand(3)})
        return drawn

    assert draws(1, tmp_path / "often") == draws(None, tmp_path / "once")


def test_the_random_state_is_restored_before_the_first_step_and_only_there(
    assignment: Assignment, tmp_path: Path
) -> None:
    import torch

    random_state.seed_all(1)
    checkpoints.write(tmp_path, 2, {}, random_state.capture())
    expected = [float(torch.rand(())) for _ in range(2)]
    trial = RunningTrial(replace(assignment, start=2, checkpoint=str(tmp_path / "hpsearch-checkpoint-2")), Listening())
    steps = trial.iterations()
    torch.rand(5)  # building the model
    drawn = []
    for _ in steps:
        drawn.append(float(torch.rand(())))
        trial.report({"loss": 0})
    assert drawn == expected


def test_the_state_of_a_checkpoint_that_an_object_took_over_is_let_go_of(
    assignment: Assignment, tmp_path: Path
) -> None:
    checkpoints.write(tmp_path, 1, {"a": 1}, random_state.capture())
    trial = RunningTrial(replace(assignment, start=1, checkpoint=str(tmp_path / "hpsearch-checkpoint-1")), Listening())
    before = trial.checkpoint
    assert trial.checkpoint is before
    trial.drop_state()
    assert trial.checkpoint == before
    assert trial.checkpoint is not before


def test_between_the_trials_of_a_worker_there_is_no_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPSEARCH_TRIAL", raising=False)
    mark_worker()
    with pytest.raises(TrainableError, match="hpsearch run"):
        current_trial()


# The group of a segment.


def test_the_group_of_one_worker_is_made_when_it_is_asked_for(assignment: Assignment) -> None:
    trial = RunningTrial(assignment, Listening())
    assert (trial.rank, trial.world_size, trial.scaling) == (0, 1, {})
    trial.leave_group()
    group = trial.group
    assert (group.rank, group.size, trial.group is group) == (0, 1, True)
    trial.leave_group()
    assert group.closed


@pytest.mark.parametrize(("cut_at", "target", "ended_at"), [(2, None, 2), (None, 2.0, 2), (None, None, 4)])
def test_all_ranks_end_where_rank_0_does(
    assignment: Assignment, cut_at: int | None, target: float | None, ended_at: int
) -> None:
    assignment = replace(assignment, objective=Objective(Metric("loss", "maximize", target=target)))

    def work(group: hpsearch_comm.Group) -> tuple[Listening, list[str]]:
        listening = Listening(cut_at if group.rank == 0 else 1)
        trial = RunningTrial(replace(assignment, rank=group.rank, world_size=2), listening, lambda: group)
        asked: list[str] = []
        for iteration in trial.iterations():
            metrics = {"loss": iteration} if group.rank == 0 else {"loss": "none of the others' counts"}
            trial.report(metrics, checkpoint=lambda: asked.append("asked"))
        assert trial.iteration == ended_at
        return listening, asked

    (first, asked_first), (second, asked_second) = run_ranks(2, work)
    assert first.iterations == second.iterations == list(range(1, ended_at + 1))
    assert first.cuts == second.cuts == ([] if ended_at == 4 else [2])
    assert (asked_first, asked_second) == (["asked"], [])


def test_a_wide_report_that_breaks_the_contract_is_told_on_rank_0(assignment: Assignment) -> None:
    def work(group: hpsearch_comm.Group) -> str:
        trial = RunningTrial(replace(assignment, rank=group.rank, world_size=2), Listening(), lambda: group)
        try:
            trial.report({})
        except (TrainableError, hpsearch_comm.PeerLost) as error:
            trial.leave_group(error)
            return failure_of(error).kind
        return "none"

    assert run_ranks(2, work) == ["contract", "peer"]


# How its workers train it.


def test_it_says_how_it_is_parallel(assignment: Assignment) -> None:
    assert RunningTrial(assignment, Listening()).parallel == {}
    told = {"strategy": "pipeline", "micro_batches": 4}
    trial = RunningTrial(replace(assignment, parallel=told), Listening())
    trial.parallel["micro_batches"] = 5
    assert trial.parallel == told


@pytest.mark.parametrize("looks", [True, False])
def test_a_strategy_that_nobody_looked_at_is_no_trials_strategy(assignment: Assignment, looks: bool) -> None:
    told = replace(assignment, parallel={"strategy": "pipeline"})
    listening = Listening()
    trial = RunningTrial(told, listening)
    if looks:
        assert trial.parallel
        trial.report({"loss": 1.0})
        trial.assign(replace(told, start=1), listening, None)  # it is known from here on
        trial.report({"loss": 1.0})
        assert listening.iterations == [1, 2]
        return
    for _ in range(2):
        with pytest.raises(
            TrainableError, match=r"^the sweep has parallel\.strategy pipeline, but the train"
        ) as caught:
            trial.report({"loss": 1.0})
    assert failure_of(caught.value).kind == "contract"
    assert listening.iterations == []


def test_allreduce_is_what_a_loop_of_ones_own_does_anyway(assignment: Assignment) -> None:
    listening = Listening()
    RunningTrial(replace(assignment, parallel={"strategy": "allreduce"}), listening).report({"loss": 1.0})
    assert listening.iterations == [1]


def test_an_assignment_of_a_strategy_travels_to_scripts(assignment: Assignment) -> None:
    told = replace(assignment, parallel={"strategy": "pipeline", "micro_batches": 4})
    assert Assignment.from_json(json.loads(json.dumps(told.to_json()))).parallel == told.parallel
