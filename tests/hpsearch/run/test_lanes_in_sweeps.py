"""Which trials a worker trains beside each other changes no result, whatever some of them do."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
import torch

import hpsearch
import hpsearch_trainers.lanes
from hpsearch.results.study import Study
from hpsearch.worker.lane import Lane
from hpsearch.worker.lanes import Lanes
from hpsearch_trainers.lanes import Fuser
from tests.hpsearch.support import lane_trainables
from tests.hpsearch.support.lane_sweeps import FAULTS, results, search, table
from tests.hpsearch.support.step_hooks import Clipped


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse whatever can be, also where it takes longer than each alone."""
    monkeypatch.setattr(hpsearch_trainers.lanes, "Fuser", functools.partial(Fuser, fewest=2))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The same sweep with one trial at a time."""
    return search(tmp_path_factory.mktemp("whole") / "study")


@pytest.mark.exhaustive
def test_the_sweep_holds_every_fault(whole):
    assert {row.params["fault"] for row in whole.trials} == set(FAULTS)
    failed = {row.params["fault"] for row in whole.trials if row.failure is not None}
    assert failed == {"build", "exit", "step"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [2, 7, "auto"])
def test_any_number_of_trials_on_a_worker_gives_the_same_table_and_reports(whole, fused, tmp_path, number):
    study = search(tmp_path / "study", resources={"trials_per_worker": number})
    assert table(study) == table(whole)
    assert results(study) == results(whole)
    most = 16 if number == "auto" else number
    lanes = {fault: {row.lanes for row in study.trials if row.params["fault"] == fault} for fault in FAULTS}
    assert 1 < max(lanes[""]) <= most
    assert lanes["draws"] == {1}, "it draws from what there is but once"


@pytest.mark.exhaustive
def test_a_log_holds_what_its_own_trial_printed_and_why_it_failed(whole, fused, tmp_path):
    study = search(tmp_path / "study", resources={"trials_per_worker": 7})
    for row in study.trials:
        text = _log(study, row.number)
        printed = f"built with {row.params['hidden']}\n"
        assert text.count("built with") == text.count(printed)
        assert (printed in text) == (row.params["fault"] == "prints")
        assert ("it bursts" in text) == (row.params["fault"] == "step" and row.failure is not None)
        alone = "this trial trains alone: it draws from the process's random generators" in text
        assert not alone or row.params["fault"] == "draws"
    assert not list(study.directory.glob("trials/.output-*"))


@pytest.mark.exhaustive
def test_what_training_changes_of_the_process_reaches_no_neighbour(fused, tmp_path):
    bound = {"early_terminate": None, "max_iter": 4, "run_cap": 12}
    one, many = (
        search(tmp_path / str(number), faults=("", "turns"), resources={"trials_per_worker": number}, **bound)
        for number in (1, 7)
    )
    assert table(many) == table(one)
    assert results(many) == results(one)
    logs = [(row.params["fault"], _log(many, row.number)) for row in many.trials]
    told = "training it changes what there is once for all lanes: environment variables"
    assert {fault for fault, text in logs if told in text} == {"turns"}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("ways", [("plain", "clipped", "counting"), ("counting", "clipped", "plain")])
def test_hooks_of_steps_and_schedules_with_a_memory_give_the_table_of_one_trial_at_a_time(fused, tmp_path, ways):
    """An optimizer's hook puts the weights into other memory; whatever came first says nothing of it."""
    one, many = (
        search(
            tmp_path / str(number),
            trainable=Clipped,
            parameters={"way": hpsearch.Categorical(ways), "lr": hpsearch.Categorical((0.1, 0.3, 0.5))},
            metric="validation_loss",
            method="grid",
            early_terminate=None,
            max_iter=3,
            resources={"trials_per_worker": number},
        )
        for number in (1, 16)
    )
    assert results(many) == results(one)
    reasons = {"plain": "", "clipped": "its optimizer has hooks", "counting": "comes to something else the next time"}
    for row in many.trials:
        assert row.lanes == (3 if row.params["way"] == "plain" else 1)
        log = _log(many, row.number)
        assert ("trains alone" in log) == (row.params["way"] != "plain")
        assert reasons[row.params["way"]] in log


@pytest.mark.exhaustive
@pytest.mark.parametrize("numbers", [(1, 5), (5, 1), ("auto", 3)])
def test_a_study_goes_on_with_another_number(whole, fused, tmp_path, numbers):
    first, second = numbers
    study = search(tmp_path / "study", resources={"trials_per_worker": first}, callbacks=[_stopping(10)])
    assert study.state == "stopped"
    assert len([row for row in study.trials if row.iterations]) < len([row for row in whole.trials if row.iterations])
    study = search(tmp_path / "study", resources={"trials_per_worker": second})
    assert study.state == "finished"
    assert table(study) == table(whole)
    assert results(study) == results(whole)


def _log(study: Study, trial: int) -> str:
    logs = sorted((study.directory / "trials" / f"{trial:05d}").glob("*/output.log"))
    return "".join(path.read_text() for path in logs)


def _stopping(count: int) -> Any:
    ended = []

    def stop(row: Any) -> None:
        ended.append(row)
        if len(ended) == count:
            raise hpsearch.StopSearch

    return stop


def test_a_trial_over_its_timeout_leaves_and_its_neighbours_stay(tmp_path, monkeypatch):
    sleep, clock, begin, slept, building = time.sleep, time.perf_counter, Lanes._begin, [0.0], [False]

    def begun(lanes: Lanes, lane: Lane) -> None:
        building[0] = True
        begin(lanes, lane)
        building[0] = False

    def slept_at_once(seconds: float) -> None:
        if seconds < 1000:
            sleep(seconds)
        elif building[0]:  # when lanes are tried they are built again, at the cost of all in the pack
            slept.append(seconds)

    # A build that sleeps for long is over at once, and late by the clock.
    monkeypatch.setattr(Lanes, "_begin", begun)
    monkeypatch.setattr(time, "sleep", slept_at_once)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + sum(slept))
    options = {"early_terminate": None, "run_cap": 6, "max_iter": 3, "limits": {"trial_timeout": 900}}
    study = search(tmp_path / "study", ("", "endless build"), resources={"trials_per_worker": 7}, **options)
    kinds: dict[Any, set[Any]] = {row.params["fault"]: set() for row in study.trials}
    for row in study.trials:
        kinds[row.params["fault"]].add(None if row.failure is None else row.failure.kind)
    assert kinds == {"endless build": {"timeout"}, "": {None}}
    assert {row.iterations for row in study.trials if row.params["fault"] == ""} == {3}


@pytest.mark.exhaustive
def test_what_isnt_a_trainer_runs_one_at_a_time_and_the_sweep_says_so(tmp_path, capsys):
    options: dict[str, Any] = {"trainable": lane_trainables.function, "faults": ("",)}
    one = search(tmp_path / "one", **options)
    more = search(tmp_path / "more", resources={"trials_per_worker": 4}, progress=True, **options)
    told = "trials run one at a time on a worker: only a Trainer is trained an epoch at a time"
    assert told in capsys.readouterr().out
    assert table(more) == table(one)
    assert {row.lanes for row in more.trials} == {1}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"workers_per_trial": 2},
            "trials_per_worker: must be 1 where workers_per_trial is 2, so that a trial has all",
        ),
        ({"fresh_process": True}, "trials_per_worker: must be 1 where each segment has a fresh_process, got 4"),
        ({"cpus_per_worker": 2}, "trials_per_worker: must be 1 where cpus_per_worker is 2, as bits depend on"),
    ],
)
def test_what_needs_whole_workers_is_refused_beside_it(options, problem):
    with pytest.raises(hpsearch.SweepError, match=problem):
        hpsearch.Resources(trials_per_worker=4, **options)
    assert hpsearch.Resources(trials_per_worker="auto", **options).lanes == 1
