"""Rungs that end by costs: `early_terminate.resource`."""

from __future__ import annotations

import itertools
import math
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.config.checks import InvalidKey
from hpsearch.errors import SweepError, TrainableError
from hpsearch.events import Finished, Opened, Started
from hpsearch.page.page import page_of
from hpsearch.results.study import Study, load
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.run.rerunning import plan_rerun
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.pasha import PASHA
from hpsearch.sweep.parts import Resources, Search
from hpsearch.tables.trial_page import trial_page
from hpsearch.tables.trials import rows_to_csv
from hpsearch.trainable.metrics import cost_after
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.killed_simulation import COSTLY, begin, read
from tests.hpsearch.support.scripted import events_of, sweep_of

SECONDS = {"early_terminate": {"type": "hyperband", "resource": "seconds", "min_iter": 2, "max_iter": 18}}


def table_of(study: Path) -> str:
    loaded = load(study)
    assert loaded.state == "finished"
    return table(loaded)


def table(study: Study) -> str:
    return rows_to_csv([replace(row, checkpoint=None) for row in study.trials], study.sweep.parameters.names)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study of a simulated sweep on one worker."""
    study = tmp_path_factory.mktemp("whole") / "study"
    begin(str(study), 1, COSTLY)
    return study


@pytest.mark.parametrize(("keys", "resource"), [(COSTLY, "tokens"), (SECONDS, "seconds")])
def test_a_segment_ends_at_the_first_report_at_or_above_its_rung_and_costs_go_on_from_there(tmp_path, keys, resource):
    begin(str(tmp_path / "study"), 2, keys)
    costs: dict[int, float] = {}
    ends, segments = set(), {}
    for event in events_of(tmp_path / "study"):
        if isinstance(event, Started):
            assert event.segment.end is None
            segments[event.segment.trial] = event.segment.costs
        elif isinstance(event, Finished):
            span = segments[event.trial]
            assert span is not None
            spent = costs.get(event.trial, 0.0)
            assert span.start == spent
            for report in event.reports:
                assert spent < span.end
                spent = spent + report.seconds if resource == "seconds" else report.metrics["tokens"]
            assert spent >= span.end
            costs[event.trial] = spent
            ends.add(span.end)
    assert ends == ({100.0, 300.0, 900.0} if resource == "tokens" else {2.0, 6.0, 18.0})
    assert len({row.iterations for row in load(tmp_path / "study").trials}) > 3


@pytest.mark.parametrize("workers", [2, 5])
def test_the_table_is_the_same_on_any_number_of_workers(whole, tmp_path, workers):
    begin(str(tmp_path / "study"), workers, COSTLY)
    assert table_of(tmp_path / "study") == table_of(whole)


def test_a_trained_sweep_gives_the_table_of_the_simulated_one(whole, tmp_path):
    study = hpsearch.search(
        read,
        {"x": hpsearch.Uniform(0.0, 1.0)},
        metric="loss",
        early_terminate=hpsearch.Hyperband(900, min_iter=100, resource="tokens"),
        backend="inline",
        observers=[],
        progress=False,
        directory=tmp_path / "study",
    )
    assert table(study) == table_of(whole)


@pytest.mark.parametrize("method", ["random", "tpe", "bohb"])
@pytest.mark.parametrize("early", [Hyperband, SuccessiveHalving, ASHA])
def test_costs_in_proportion_to_iterations_give_the_sweep_of_iterations(tmp_path, method, early):
    """Searchers, too, see costs where they otherwise see iterations."""
    tables = []
    for resource, unit in ((None, 1), ("tokens", 100)):
        keys = {
            "early_terminate": early(9 * unit, min_iter=unit, resource=resource),
            "method": method,
            "run_cap": 14,
            **({} if method == "random" or early is ASHA else {"search": Search(startup=4, lag=1)}),
        }
        begin(str(tmp_path / str(unit)), 1, keys, trainable="Even")
        tables.append(table_of(tmp_path / str(unit)))
    assert tables[0] == tables[1].replace("ran to 900 tokens", "ran all 9 iterations")


def test_a_report_that_reaches_several_rungs_is_compared_at_each_without_another_iteration(tmp_path):
    begin(str(tmp_path / "study"), 2, COSTLY, trainable="Leaping")
    study = load(tmp_path / "study")
    of_rung = {
        (event.bracket, event.rung, event.segment.trial): event.segment
        for event in events_of(study.directory)
        if isinstance(event, Started)
    }
    second = {trial: segment for (bracket, rung, trial), segment in of_rung.items() if (bracket, rung) == (0, 1)}
    assert len(second) == 3
    assert {study.trials[trial].iterations for trial in second} == {1, 3}  # 350 passes 100 and 300; 1050 passes 900
    assert {segment.start for segment in second.values()} == {1}
    killed = tmp_path / "killed" / "study"
    begin(str(killed), 5, COSTLY, trainable="Leaping")
    assert table_of(killed) == table_of(study.directory)


def test_a_trial_that_returns_before_its_rung_ranks_with_what_it_has(tmp_path):
    begin(str(tmp_path / "study"), 2, COSTLY, trainable="Returning")
    rows = load(tmp_path / "study").trials
    assert {row.iterations for row in rows} == {1, 2}
    assert "ended by itself after 200 of 900 tokens" in {row.reason.partition(": ")[2] for row in rows}


FALLS = {"loss": 1.0, "tokens": 99.0}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (FALLS, "tokens, by which rungs end, must be a number that never falls, got 99 after 100"),
        (FALLS | {"tokens": math.nan}, "got nan after 100: count it from the trial's start, and save the count in the"),
        (FALLS | {"tokens": math.inf}, "got inf after 100"),
        ({"loss": 1.0}, "every report must have the sweep's metric 'tokens', but this one has 'loss'"),
    ],
)
def test_a_cost_that_isnt_a_count_is_refused(metrics, said):
    with pytest.raises(TrainableError) as caught:
        cost_after("tokens", 100.0, metrics, 1.0)
    assert said in str(caught.value)
    assert caught.value.key == "early_terminate.resource"
    assert cost_after("tokens", 100.0, FALLS | {"tokens": 100.0}, 1.0) == 100.0
    assert cost_after("seconds", 100.0, FALLS, 1.5) == 101.5


def costly(**changes: Any) -> Any:
    return sweep_of(early_terminate=Hyperband(900, min_iter=100, resource="tokens"), **changes)


@pytest.mark.parametrize(
    ("make", "key", "said"),
    [
        (
            lambda: costly(resources=Resources(trials_per_worker=4)),
            "early_terminate.resource",
            "lanes share their time",
        ),
        (lambda: costly(resources=Resources(trials_per_worker="auto")), "early_terminate.resource", "lanes share"),
        (
            lambda: costly(resources=Resources(max_workers_per_trial=2)),
            "early_terminate.resource",
            "how long a trial still runs",
        ),
        (lambda: PASHA(900, resource="tokens"), "resource", "pasha, which compares trials at equal iterations"),
        (
            lambda: costly(method="evolution", search=Search(options={"inherit": True})),
            "early_terminate.resource",
            "forks trials: their costs would start anew",
        ),
        (lambda: Hyperband(9, resource="iterations"), "resource", "must be a reported metric or seconds"),
        (
            lambda: costly(trainable=None, program="train.py", resources=Resources(workers_per_trial=2)),
            "early_terminate.resource",
            "only its rank 0 knows what it cost",
        ),
        (
            lambda: sweep_of(
                method="tpe", search=Search(lag=1), early_terminate=Hyperband(9, resource="seconds"), run_cap=9
            ),
            "search.lag",
            "which no two runs spend alike",
        ),
    ],
)
def test_what_doesnt_work_with_costs_is_refused_with_the_reason(make, key, said):
    with pytest.raises(InvalidKey) as caught:
        make()
    assert ".".join(map(str, caught.value.key)) == key
    assert said in str(caught.value)


def test_ask_and_tell_refuses_costs(tmp_path):
    with pytest.raises(SweepError, match=r"early_terminate\.resource: must not be given with ask and tell, got tokens"):
        hpsearch.AskTell(costly(), directory=tmp_path / "lab")


def test_a_plan_assumes_what_an_iteration_costs():
    with pytest.raises(SweepError, match="assume so much with --cost-per-iteration 1000"):
        make_plan(costly(), 2)
    with pytest.raises(SweepError, match="but rungs end by iterations: leave it out"):
        make_plan(sweep_of(), 2, 50.0)
    plan = make_plan(costly(), 2, 100.0)
    by_iterations = make_plan(sweep_of(), 2)
    for name in ("trials", "segments", "iterations", "iterations_from_zero", "makespan"):
        assert getattr(plan, name) == getattr(by_iterations, name)
    assert "bracket 0: 9 to 100 tokens, then 3 to 300 tokens, then 1 to 900 tokens" in plan_text(plan)
    by_seconds = sweep_of(early_terminate=Hyperband(900, min_iter=100, resource="seconds"))
    assert make_plan(by_seconds, 2, 100.0).iterations == by_iterations.iterations


def test_a_rerun_is_as_long_as_the_longest_trial_and_trials_train_on_in_iterations(whole, tmp_path):
    study = tmp_path / "study"
    shutil.copytree(whole, study)
    rows = [replace(row, checkpoint=None) for row in load(study).trials]
    assert plan_rerun(load(study), 5, 3, None).sweep.max_iter == max(row.iterations for row in rows)
    best = load(study).best_trial.number
    hpsearch.extend(study, max_iter=20)
    begin(str(study), 1, COSTLY)
    longer = [replace(row, checkpoint=None) for row in load(study).trials]
    assert longer[best].iterations == 20
    assert [row for row in longer if row.number != best] == [row for row in rows if row.number != best]


def test_a_trials_page_has_the_cut_of_its_rung(whole):
    study = load(whole)
    stopped = next(row for row in study.trials if row.reason.startswith("rung 0: 4th of 9"))
    cut = trial_page(study, stopped.number).cut
    assert cut is not None
    assert (cut.bracket, cut.rung, cut.trials, cut.promoted) == (0, 0, 9, 3)


def test_displays_name_the_resource(whole, tmp_path):
    study = tmp_path / "study"
    shutil.copytree(whole, study)
    assert "rung 2 (to 900 tokens)" in page_of([load(study)]).html()
    early = load(study).sweep.early_terminate
    assert early is not None
    assert early.summary() == "Hyperband from 100 to 900 tokens by 3"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.killed_simulation") as server:
        yield server


@pytest.mark.exhaustive
@pytest.mark.parametrize("trainable", ["Reader", "Leaping"])
def test_killed_at_any_event_and_resumed_on_any_workers_the_table_is_the_same(server, tmp_path, trainable):
    whole = tmp_path / "whole" / "study"
    assert server.call("begin", str(whole), 1, COSTLY, 0, trainable) == 0
    count = len(events_of(whole))
    for place, workers in zip(range(2, count, 3), itertools.cycle((1, 2, 5))):
        study = tmp_path / str(place) / "study"
        assert server.call("begin", str(study), 2, COSTLY, place, trainable) == -signal.SIGKILL
        assert server.call("begin", str(study), workers, COSTLY, 0, trainable) == 0
        assert table_of(study) == table_of(whole), (place, workers)
        assert sum(isinstance(event, Opened) for event in events_of(study)) == 2


@pytest.mark.exhaustive
def test_a_sweep_by_seconds_replays_the_costs_that_it_journaled(server, tmp_path):
    study = tmp_path / "study"
    for place in (5, 13, 22, 31):
        assert server.call("begin", str(study), 2, SECONDS, place) == -signal.SIGKILL
    assert server.call("begin", str(study), 5, SECONDS) == 0
    assert load(study).state == "finished"


def test_it_is_written_in_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(
        "trainable: package.module:function\nmetric: {name: loss}\nmethod: random\n"
        "parameters: {x: {min: 0.0, max: 1.0}}\n"
        "early_terminate: {type: asha, resource: tokens, max_iter: 900}\nrun_cap: 9\n"
    )
    sweep = hpsearch.load_sweep("sweep.yaml")
    assert sweep.early_terminate == ASHA(900, resource="tokens")
    assert (sweep.resource, sweep.iterations) == ("tokens", None)
    assert type(sweep).from_json(sweep.to_json()).resource == "tokens"
