from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.errors import HpsearchError, JournalError
from hpsearch.events import Ended, Exhausted, Finished, Retried, Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.results.study import Study, load
from hpsearch.run.study_run import create_study
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.space import Space, Uniform
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Metric
from hpsearch.tables.status import status_text
from hpsearch.task import Message, Task
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import Failure, TrialState
from tests.hpsearch.support.scripted import ScriptedBackend, done, events_of, failed, run_scripted, saved, sweep_of
from tests.hpsearch.support.wide_study import BUSY, CAPPED, HARM, WIDENED, write_wide_study

FLAT = {"early_terminate": None, "max_iter": 3}


def finished(path: Path, **changes) -> Study:
    return run_scripted(path, sweep_of(**changes), ScriptedBackend(lambda task: [done(task)]))


def test_a_study_that_never_ran_is_not_begun_and_has_no_best(tmp_path):
    create_study(sweep_of(), tmp_path / "s")
    study = load(tmp_path / "s")
    assert (study.state, study.trials, study.rungs, study.iterations, study.curves()) == ("not begun", [], [], 0, {})
    assert study.total is None
    with pytest.raises(HpsearchError, match=r"no trial has a value of 'loss' yet \(0 failed\)"):
        _ = study.best_trial
    assert "no trials" in repr(study)
    assert study.trials_dataframe().empty


def test_what_a_finished_study_holds(tmp_path):
    study = finished(tmp_path / "s")
    assert study.state == "finished"
    assert study.directory == tmp_path / "s"
    assert study.total == (17, study.iterations) == (17, 69)
    assert study.best_value == min(row.value for row in study.trials if row.value is not None)
    assert study.best_params == study.best_trial.params
    assert study.best_trial.checkpoint is None  # the scripted backend writes no files
    assert [rung.size for rung in study.rungs] == [9, 3, 1, 5, 1, 3]
    assert repr(study).startswith(f"<Study s in {tmp_path / 's'}: finished; ")
    assert study.provenance["command"]
    frame = study.trials_dataframe()
    assert list(frame.columns) == ["trial", "state", "iterations", "value", "params.x", "width"]
    assert len(frame) == 17
    assert "seconds" in study.trials_dataframe(times=True).columns


def test_best_trial_has_nested_params_and_the_path_that_the_user_reads(tmp_path):
    def train(trial: RunningTrial) -> None:
        for iteration in trial.iterations():
            trial.report({"score": trial.params["model"]["x"] * iteration}, checkpoint={"it": iteration})

    study = hpsearch.search(
        train,
        parameters={"model": {"x": Uniform(0.0, 1.0)}, "kind": "mlp"},
        metric={"name": "score", "goal": "maximize"},
        max_iter=2,
        run_cap=4,
        directory=tmp_path / "s",
        backend="inline",
        observers=[],
        progress=False,
    )
    best = study.best_trial
    assert best.params == {"model": {"x": best.value / 2}, "kind": "mlp"}
    assert best.checkpoint is not None
    import torch

    assert torch.load(best.checkpoint, weights_only=True) == {"it": 2}
    assert [path for path in study.directory.rglob("state.pt")] == [best.checkpoint]
    assert hpsearch.load(tmp_path / "s").best_trial == best


@pytest.mark.parametrize(("every", "checkpoint"), [(1, {"it": 2}), (None, None)])
def test_with_scope_best_the_best_trial_has_its_best_value_and_the_checkpoint_of_it_or_none(
    tmp_path, every, checkpoint
):
    def train(trial: RunningTrial) -> None:
        for iteration in trial.iterations():
            score = -abs(iteration - 2) - trial.params["x"]
            trial.report({"score": score, "mark": 10 * iteration}, checkpoint={"it": iteration})

    study = hpsearch.search(
        train,
        parameters={"x": [0, 1]},
        metric={"name": "score", "goal": "maximize", "scope": "best"},
        max_iter=4,
        run_cap=2,
        method="grid",
        directory=tmp_path / "s",
        backend="inline",
        checkpoints={"every": every},
        observers=[],
        progress=False,
    )
    best = study.best_trial
    assert (best.number, best.value) == (0, 0.0)
    import torch

    assert (best.checkpoint and torch.load(best.checkpoint, weights_only=True)) == checkpoint
    assert [(row.iterations, row.value, row.value_iteration) for row in study.trials] == [(4, 0.0, 2), (4, -1.0, 2)]
    told = status_text(study, None)
    assert "best        trial 0: score 0.0 at 2\n" in told
    assert "reports mark=20\n" in told  # with that value, not in the end
    assert hpsearch.load(tmp_path / "s").best_trial == best


@pytest.mark.parametrize(("scope", "promoted"), [("last", 1), ("best", 0)])
def test_a_rung_is_judged_by_the_values_that_the_scope_gives(tmp_path, scope, promoted):
    losses = {0: (0.1, 9.0, 9.0, 9.0), 1: (0.5, 0.5, 0.5, 0.5)}
    study = run_scripted(
        tmp_path / "s",
        sweep_of(metric=Metric("loss", "minimize", scope), early_terminate=SuccessiveHalving(4, 2, 2)),
        ScriptedBackend(lambda task: [done(task, loss=lambda trial, iteration: losses[trial][iteration - 1])]),
    )
    assert [row.iterations for row in study.trials] == [4 if trial == promoted else 2 for trial in (0, 1)]
    assert study.best_trial.number == promoted


def test_failures_and_nan_are_no_best(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        if task.trial.number == 0:
            return [failed(task)]
        return [done(task, loss=lambda trial, iteration: math.nan)]

    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=2), ScriptedBackend(answer))
    with pytest.raises(HpsearchError, match=r"no trial has a value of 'loss' yet \(1 failed\)"):
        _ = study.best_value
    assert [row.value for row in study.trials] == [None, None]
    assert [row.state for row in study.trials] == [TrialState.FAILED, TrialState.COMPLETE]
    (curve,) = study.curves().values()
    assert [i for i, value in curve if math.isnan(value)] == [1, 2, 3]  # NaN was reported, and is told
    assert math.isnan(study.trials[1].metrics["loss"])


def test_curves_are_of_the_reports_that_count(tmp_path):
    """What a lost attempt reported is replaced by what its successor reports; a restart from zero replaces, too."""

    def answer(task: Task) -> Sequence[Message]:
        if task.segment.attempt == 1:
            return [saved(task, 1), failed(task)]
        return [done(task, loss=lambda trial, iteration: float(iteration))]

    sweep = sweep_of(early_terminate=None, max_iter=3, run_cap=1, limits=hpsearch.Limits(max_retries=1))
    study = run_scripted(tmp_path / "s", sweep, ScriptedBackend(answer))
    assert study.curves() == {0: [(1, 9.0), (2, 2.0), (3, 3.0)]}

    backend = ScriptedBackend(lambda task: [done(task, checkpoints=False)])
    study = run_scripted(tmp_path / "zero", sweep_of(), backend)
    assert study.curves()[0][-1][0] == max(row.iterations for row in study.trials if row.number == 0)
    assert all([i for i, _ in curve] == list(range(1, len(curve) + 1)) for curve in study.curves().values())


def test_the_curve_of_a_trial_that_ran_again_holds_nothing_of_its_failed_attempt(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        if task.segment.attempt > 1:
            return [failed(task)]
        reported = done(task, at=3, counted=1)
        harm = Failure("raised", "ValueError: no", "")
        return [saved(task, 1), replace(reported, checkpoint=None, failure=harm)]

    sweep = sweep_of(early_terminate=None, max_iter=4, run_cap=1)
    study = run_scripted(tmp_path / "s", sweep, ScriptedBackend(answer))
    assert [iteration for iteration, _ in study.curves()[0]] == [1, 2, 3]
    with Journal.open(tmp_path / "s" / "study.db") as journal:
        sweep_state = SweepState(sweep)
        list(sweep_state.resume(journal.entries()))
        journal.append([Retried(0)], [sweep_state.apply(Retried(0))])  # and the process dies before it starts again
    study = load(tmp_path / "s")
    assert study.trials[0].iterations == 1
    assert study.curves() == {0: [(1, 9.0)]}
    study = run_scripted(tmp_path / "s", sweep, ScriptedBackend(answer))
    assert study.trials[0].iterations == 1
    assert study.curves() == {0: [(1, 9.0)]}


def test_any_metric_that_was_reported_has_a_curve_and_the_last_report_is_in_the_row(tmp_path):
    def train(trial: RunningTrial) -> None:
        for iteration in trial.iterations():
            extra = {"accuracy": iteration / 4} if iteration != 2 else {}
            trial.report({"loss": 1.0 / iteration, **extra, **({"end": 1.0} if iteration == 3 else {})})

    parameters = {"x": Uniform(0.0, 1.0)}
    options: dict[str, Any] = {
        "max_iter": 3,
        "run_cap": 1,
        "backend": "inline",
        "observers": [],
        "progress": False,
    }
    study = hpsearch.search(train, parameters=parameters, metric="loss", directory=tmp_path / "s", **options)
    assert study.curves("accuracy") == {0: [(1, 0.25), (3, 0.75)]}
    assert study.curves("loss") == study.curves() == {0: [(1, 1.0), (2, 0.5), (3, 1 / 3)]}
    assert study.curves("end") == {0: [(3, 1.0)]}
    assert study.trials[0].metrics == {"loss": 1 / 3, "accuracy": 0.75, "end": 1.0}
    assert study.trials_dataframe(metrics=True)["metrics.accuracy"].tolist() == [0.75]
    with pytest.raises(HpsearchError, match=r"no report holds a metric 'acuracy'; did you mean accuracy\?"):
        study.curves("acuracy")


def test_a_trials_time_goes_from_its_first_segments_start_to_its_last_ones_end(tmp_path):
    study = finished(tmp_path / "s")
    with Journal.read(tmp_path / "s" / "study.db") as journal:
        history = [(entry.time, entry.event) for entry in journal.entries()]
    when = {
        kind: [(time, getattr(event, "trial", None)) for time, event in history if isinstance(event, kind)]
        for kind in (Started, Finished)
    }
    starts = [time for time, event in history if isinstance(event, Started) and event.new is not None]
    assert len(when[Started]) > len(starts)  # some were promoted
    ends = dict((trial, time) for time, trial in when[Finished])  # the last one stays
    assert study.times() == {trial: (start, ends[trial]) for trial, start in enumerate(starts)}


def test_only_checkpoints_that_are_kept_are_named(tmp_path):
    def train(trial: RunningTrial) -> None:
        for iteration in trial.iterations():
            trial.report({"loss": trial.params["x"] + iteration}, checkpoint={"it": iteration})

    parameters = {"x": Uniform(0.0, 1.0)}
    options: dict[str, Any] = {
        "max_iter": 2,
        "run_cap": 5,
        "backend": "inline",
        "observers": [],
        "progress": False,
    }
    for keep, left in (("best", 1), ("all", 5)):
        search: dict[str, Any] = {
            "parameters": parameters,
            "metric": "loss",
            "checkpoints": {"keep": keep},
            "directory": tmp_path / keep,
        }
        study = hpsearch.search(train, **search, **options)
        for told in (study, load(tmp_path / keep)):
            named = [row.checkpoint for row in told.trials if row.checkpoint is not None]
            assert len(named) == left
            assert all((tmp_path / keep / checkpoint).is_dir() for checkpoint in named)
            assert told.best_trial.checkpoint is not None


def test_a_checkpoint_that_someone_deleted_is_not_told_as_the_best_ones(tmp_path):
    study = load(write_wide_study(tmp_path / "s", ended=True).path)
    assert study.trials[1].checkpoint == "c3"
    assert study.best_trial.checkpoint is None
    (study.directory / "c3").mkdir()  # what it held was deleted
    assert study.best_trial.checkpoint is None


def test_what_a_trial_reported_on_too_many_workers_counts_no_more(tmp_path):
    place = write_wide_study(tmp_path / "s", ended=False)
    study = load(place.path)
    assert study.state == "killed"
    assert study.curves() == {0: [(1, 0.5)], 1: [(1, 0.25)], 2: [(1, 0.75)]}
    row = study.trials[1]
    assert (row.iterations, row.value, row.checkpoint, row.width, row.reverted) == (1, 0.25, "c1", 1, HARM)
    assert row.metrics == {"loss": 0.25}
    assert (study.best_trial.number, study.best_value) == (1, 0.25)
    study = load(write_wide_study(tmp_path / "ended", ended=True).path)
    assert study.curves()[1] == [(1, 0.25), (2, 0.2), (3, 0.125)]
    row = study.trials[1]
    assert (row.iterations, row.value, row.width, row.reverted, row.seconds) == (3, 0.125, 1, HARM, 6.0)
    assert study.trials_dataframe()["width"].tolist() == [1, 1, 1]


def test_segments_are_listed_while_they_run_and_when_they_were_interrupted(tmp_path):
    place = write_wide_study(tmp_path / "s", ended=False)
    with place.running("me@here:1"):
        live = load(place.path).segments()
    assert [(row.trial, row.attempt, row.width, row.reason, row.ended) for row in live] == [
        (0, 1, 1, BUSY, "finished"),
        (1, 1, 1, BUSY, "finished"),
        (2, 1, 1, BUSY, "finished"),
        (1, 2, 4, WIDENED, "reverted"),
        (1, 3, 1, CAPPED, "running"),
    ]
    study = load(place.path)
    assert study.segments() == [*live[:-1], replace(live[-1], ended="interrupted")]


def test_search_takes_the_widths_and_the_scaling(tmp_path):
    def search(name: str, scaling: object) -> Study:
        return hpsearch.search(
            _walk,
            parameters={"parameters": {"x": Uniform(0.0, 1.0)}, "scaling": scaling},
            metric="loss",
            max_iter=1,
            run_cap=1,
            resources={"max_workers_per_trial": 3, "elastic": False},
            directory=tmp_path / name,
            backend="inline",
            observers=[],
            progress=False,
        )

    wanted = hpsearch.Scaling(batch="per_worker", tolerance=0.5)
    for name, scaling in (("scaling", wanted), ("mapping", {"batch": "per_worker", "tolerance": 0.5})):
        sweep = search(name, scaling).sweep
        assert sweep.scaling == wanted
        assert sweep.resources == hpsearch.Resources(max_workers_per_trial=3, elastic=False)
    assert search("none", None).sweep.scaling == hpsearch.Scaling()
    with pytest.raises(hpsearch.SweepError, match=r"^scaling\.bacth: isn't a known key\n  did you mean batch\?"):
        search("wrong", {"bacth": "global"})
    with pytest.raises(hpsearch.SweepError, match=r"^scaling: must be a mapping with keys such as batch, lr"):
        search("wrong", "linear")
    assert not (tmp_path / "wrong").exists()


def _walk(trial: RunningTrial) -> None:
    trial.report({"loss": trial.params["x"]})


RUN = """
import sys
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted, sweep_of
from pathlib import Path

def answer(task):
    if len(backend.tasks) == 6:
        print("half way", flush=True)
        sys.stdin.readline()
    return [done(task)]

backend = ScriptedBackend(answer, 2)
run_scripted(Path(sys.argv[1]), sweep_of(), backend)
"""


def test_a_study_that_another_live_process_runs_can_be_read(tmp_path):
    path = tmp_path / "s"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half way\n"
        study = load(path)
        assert study.state == "running"
        assert [row.state for row in study.trials].count(TrialState.RUNNING) == 2
        with pytest.raises(hpsearch.StudyInUseError, match="runs this study now"):
            run_scripted(path, None, ScriptedBackend(lambda task: [done(task)]))
        process.send_signal(signal.SIGKILL)
        process.wait()
        study = load(path)
        assert study.state == "killed"
        assert [row.state for row in study.trials].count(TrialState.RUNNING) == 0
        assert [row.state for row in study.trials].count(TrialState.WAITING) >= 2
        study = run_scripted(path, None, ScriptedBackend(lambda task: [done(task)]))
        assert study.state == "finished"
        reference = finished(tmp_path / "reference")
        assert [replace(row, checkpoint=None) for row in study.trials] == [
            replace(row, checkpoint=None) for row in reference.trials
        ]
    finally:
        process.kill()
        process.communicate()


def test_between_its_creation_and_its_first_event_a_study_that_is_run_is_running(tmp_path):
    place = create_study(sweep_of(), tmp_path / "s")
    with place.running("me@here:1"):
        assert load(place.path).state == "running"


@pytest.mark.parametrize("state", ["stopped", "max_time", "error", "interrupted"])
def test_it_says_how_the_last_run_ended(tmp_path, state):
    path = tmp_path / "s"
    finished(path)
    with Journal.open(path / "study.db") as journal:
        journal.append([Ended(state)])
    assert load(path).state == state


def test_no_study_another_sweep_or_one_that_cant_be_read(tmp_path):
    with pytest.raises(JournalError, match="expected a study's directory"):
        load(tmp_path / "nowhere")
    finished(tmp_path / "s")
    with Journal.open(tmp_path / "s" / "study.db") as journal:
        journal.append([Exhausted()])
    with pytest.raises(JournalError, match="doesn't replay"):
        run_scripted(tmp_path / "s", None, ScriptedBackend(lambda task: [done(task)]))
    StudyDirectory(tmp_path / "foreign").create({"sweep": {"name": "s"}}, None)
    with pytest.raises(HpsearchError, match="must be a sweep of this version"):
        load(tmp_path / "foreign")


def test_loading_a_study_imports_neither_torch_nor_ray(tmp_path):
    finished(tmp_path / "s")
    code = (
        "import sys, hpsearch; study = hpsearch.load(sys.argv[1]); print(len(study.trials), study.best_value);"
        "assert not {'torch', 'ray', 'numpy', 'scipy', 'pandas', 'tensorboard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], check=True, capture_output=True)


def test_the_study_records_its_sweep_and_where_it_comes_from(tmp_path):
    finished(
        tmp_path / "s", metric=Metric("loss", "minimize"), parameters=Space.from_parameters({"x": Uniform(0.0, 1.0)})
    )
    with Journal.read(tmp_path / "s" / "study.db") as journal:
        record = journal.study()
    assert json.loads(json.dumps(record)) == record
    assert record["sweep"] == sweep_of().to_json()
    assert record["provenance"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["created"] <= next(iter(_times(tmp_path / "s")))
    assert events_of(tmp_path / "s")[0].process == record["provenance"]["process"]  # type: ignore[union-attr]


def _times(path: Path) -> list[float]:
    with Journal.read(path / "study.db") as journal:
        return [entry.time for entry in journal.entries()]
