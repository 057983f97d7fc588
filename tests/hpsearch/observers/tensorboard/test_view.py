"""Studies in one view, as TensorBoard's own readers find them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.plugins.hparams import api_pb2

import hpsearch
from hpsearch.errors import HpsearchError, JournalError
from hpsearch.journal.journal import Journal
from hpsearch.observers.tensorboard.address import MOST_RUNS
from hpsearch.observers.tensorboard.study_runs import BUSY_TAG, best, by_tag, spread_tags
from hpsearch.observers.tensorboard.view import View
from hpsearch.results.course import Moment
from hpsearch.run.study_run import create_study
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.tensorboards import Board

SPACE: dict[str, Any] = {"lr": hpsearch.LogUniform(1e-3, 1), "x": hpsearch.Uniform(0, 1), "c": 3}


def bowl(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        trial.report({"loss": (trial.params["x"] - 0.37) ** 2 + 1 / iteration})


def uneven(trial: hpsearch.RunningTrial) -> None:
    if trial.number == 1:
        raise ValueError("no")
    for _ in trial.iterations():
        trial.report({"loss": math.nan if trial.number == 2 else trial.params["x"]})


def two(trial: hpsearch.RunningTrial) -> None:
    for _ in trial.iterations():
        trial.report({"loss": trial.params["x"], "cost": (1 - trial.params["x"]) ** 2})


def last(trial: hpsearch.RunningTrial) -> None:
    trial.report({"loss": trial.params["p7"]})


def searched(directory: Path, function: Callable[..., Any] = bowl, **changes: Any) -> hpsearch.Study:
    given: dict[str, Any] = {"metric": "loss", "method": "random", "run_cap": 6, "max_iter": 3, "parameters": SPACE}
    fixed: dict[str, Any] = {
        "backend": "inline",
        "observers": [],
        "progress": False,
        "limits": {"max_failures": "none"},
    }
    return hpsearch.search(function, directory=directory, **merged(fixed, given, changes))


def shown(folder: Path, *studies: Path, **how: Any) -> tuple[View, Board]:
    view = View(studies, folder, **how)
    view.read()
    view.describe()
    return view, Board(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, of which one has three seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        searched(folder / f"rough-{seed}", name="rough", seed=seed)
    searched(folder / "fine-1", name="fine", run_cap=17, max_iter=None, early_terminate=hpsearch.Hyperband(9))
    return folder


def test_a_view_holds_a_run_for_each_trial_and_each_study_and_one_for_repeats(runs, tmp_path):
    view, board = shown(tmp_path, *(runs / name for name in ("rough-0", "rough-1", "rough-2", "fine-1")))
    rough = [f"rough-{seed}/{run}" for seed in range(3) for run in (*(f"00{n}" for n in range(6)), "study")]
    fine = [f"fine-1/{run}" for run in (*(f"{n:03d}" for n in range(17)), "study")]
    assert board.runs == sorted([*rough, *fine, "rough, 3 seeds/study"])
    assert sorted(view.study_runs) == [run for run in board.runs if run.endswith("/study")]
    by = {by_tag(best(), axis) for axis in ("trials", "iterations", "seconds")}
    assert board.tags("rough-0/study") == {*by, BUSY_TAG, "rungs/to 3 iterations"}
    assert board.tags("fine-1/study") >= {*by, BUSY_TAG, "rungs/to 1 iteration", "rungs/to 9 iterations"}
    assert board.tags("rough-0/003") == {"loss", "best/loss", "hpsearch/iterations", "hpsearch/seconds"}
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_what_a_study_found_is_drawn_over_what_it_cost(runs, tmp_path):
    _, board = shown(tmp_path, runs / "rough-0")
    values = [row.value for row in hpsearch.load(runs / "rough-0").trials if row.value is not None]
    for tag, cost in ((by_tag(best(), "trials"), 1), (by_tag(best(), "iterations"), 3)):
        points = dict(board.curve("rough-0/study", tag))
        for count in range(1, 7):
            known = points[max(step for step in points if step <= cost * count)]
            assert known == pytest.approx(min(values[:count]), rel=1e-6)
    assert dict(board.curve("rough-0/study", "rungs/to 3 iterations")).popitem()[1] == 6


def test_of_studies_with_several_seeds_there_is_the_median_with_its_quartiles(runs, tmp_path):
    _, board = shown(tmp_path, *(runs / f"rough-{seed}" for seed in range(3)))
    values = [[row.value for row in hpsearch.load(runs / f"rough-{seed}").trials] for seed in range(3)]
    median, lower, upper = (dict(board.curve("rough, 3 seeds/study", tag)) for tag in spread_tags(best(), "trials"))
    assert set(median) == set(lower) == set(upper)
    assert max(median) == 6
    for count in median:
        so_far = [min(one[:count]) for one in values]  # type: ignore[type-var]
        low, middle, high = statistics.quantiles(so_far, n=4, method="inclusive")  # type: ignore[type-var]
        assert [lower[count], median[count], upper[count]] == pytest.approx([low, middle, high], rel=1e-6)


def test_custom_scalars_shows_each_chart_once_however_many_studies(runs, tmp_path):
    _, board = shown(tmp_path / "several", *(runs / f"rough-{seed}" for seed in range(3)))
    categories = {one["title"]: [chart["title"] for chart in one["chart"]] for one in board.layout()["category"]}
    by = [by_tag(best(), axis) for axis in ("trials", "iterations", "seconds")]
    course = ["workers/busy", "trials per rung"]
    assert categories == {"over seeds: median and quartiles": by, "best": by, "course": course}
    _, board = shown(tmp_path / "one", runs / "rough-0")
    assert [one["title"] for one in board.layout()["category"]] == ["best", "course"]


def test_hparams_knows_the_trials_of_all_studies(runs, tmp_path):
    _, board = shown(tmp_path, runs / "rough-0", runs / "fine-1")
    infos = {info.name: info for info in board.experiment().hparam_infos}
    assert set(infos) == {"study", "lr", "log10(lr)", "x", "c", "state", "bracket"}
    assert [name for name, info in infos.items() if info.differs] == ["bracket", "log10(lr)", "state", "study", "x"]
    assert list(infos["study"].domain_discrete) == ["rough-0", "fine-1"]
    sessions = board.sessions()
    assert len(sessions) == 23
    for name, rows in (
        ("rough-0", hpsearch.load(runs / "rough-0").trials),
        ("fine-1", hpsearch.load(runs / "fine-1").trials),
    ):
        for row in rows:
            found = sessions[f"{name}/{row.number:03d}"]
            told = found.hparams
            assert (told["study"].string_value, told["state"].string_value) == (name, str(row.state))
            assert told["log10(lr)"].number_value == pytest.approx(math.log10(row.params["lr"]))
            metrics = {value.name.tag: value.value for value in found.metric_values}
            assert metrics["hpsearch/iterations"] == row.iterations
            assert metrics["loss"] == pytest.approx(row.value)
    assert {found.hparams["bracket"].number_value for name, found in sessions.items() if "fine" in name} == {
        0.0,
        1.0,
        2.0,
    }


def test_the_parameters_that_matter_come_first_of_those_that_are_shown_at_first(tmp_path):
    space = {f"p{number}": hpsearch.Uniform(0, 1) for number in range(8)}
    searched(
        tmp_path / "s",
        lambda trial: trial.report({"loss": trial.params["p7"]}),
        parameters=space,
        run_cap=25,
        max_iter=1,
    )
    _, board = shown(tmp_path / "view", tmp_path / "s")
    infos = [(info.name, info.differs) for info in board.experiment().hparam_infos]
    assert sum(differs for _, differs in infos) == 5
    assert ("p7", True) in infos[:5]


def test_a_logarithm_stands_in_the_first_columns_and_what_it_is_of_after_them(tmp_path):
    space = {f"lr{number}": hpsearch.LogUniform(1e-3, 1) for number in range(5)}
    searched(tmp_path / "s", lambda trial: trial.report({"loss": 1.0}), parameters=space, max_iter=1)
    _, board = shown(tmp_path / "view", tmp_path / "s")
    infos = board.experiment().hparam_infos
    assert [info.name for info in infos[:5]] == [f"log10(lr{number})" for number in range(5)]
    assert {info.name for info in infos[5:]} == {*space, "state"}


def test_of_more_studies_than_colours_those_share_one_that_differ_in_their_seed(runs, tmp_path):
    names = ("rough-0", "rough-1", "rough-2", "fine-1")
    view = View([runs / name for name in names], tmp_path / "few")
    assert view.same_colour == [[name] for name in (*names, "rough, 3 seeds")]
    many = [tmp_path / f"other-{seed}" for seed in range(3)]
    for seed, directory in enumerate(many):
        searched(directory, name="other", run_cap=1, seed=seed)
    view = View([*(runs / name for name in names), *many], tmp_path / "many")
    assert view.same_colour == [
        ["rough-0", "rough-1", "rough-2", "rough, 3 seeds"],
        ["fine-1"],
        ["other-0", "other-1", "other-2", "other, 3 seeds"],
    ]
    assert View([runs / "rough-0"], tmp_path / "one").same_colour == []


def test_a_parameter_that_is_another_thing_in_another_study_is_shown_as_text(tmp_path):
    searched(tmp_path / "a", parameters={"x": hpsearch.Uniform(0, 1), "state": 1})
    searched(tmp_path / "b", lambda trial: trial.report({"loss": 1.0}), parameters={"x": ["low", "high"]}, max_iter=1)
    _, board = shown(tmp_path / "view", tmp_path / "a", tmp_path / "b")
    infos = {info.name: info for info in board.experiment().hparam_infos}
    assert infos["x"].type == api_pb2.DATA_TYPE_STRING
    told = board.sessions()["a/000"].hparams
    assert told["x"].string_value == repr(hpsearch.load(tmp_path / "a").trials[0].params["x"])
    assert (told["state"].number_value, told["state "].string_value) == (1, "complete")  # theirs, and ours


def test_failed_trials_nan_and_no_value_at_all(tmp_path):
    searched(tmp_path / "s", uneven)
    _, board = shown(tmp_path / "view", tmp_path / "s")
    sessions = board.sessions()
    assert sessions["s/001"].sessions[0].status == api_pb2.STATUS_FAILURE
    assert sessions["s/001"].hparams["state"].string_value == "failed"
    assert all(math.isnan(value) for _, value in board.curve("s/002", "loss"))
    values = [row.value for row in hpsearch.load(tmp_path / "s").trials if row.number not in (1, 2)]
    assert board.curve("s/study", by_tag(best(), "trials"))[-1][1] == pytest.approx(min(values))  # type: ignore[type-var]


def test_several_goals_have_a_page_and_pins_of_their_own(tmp_path):
    goals = [hpsearch.Metric("loss"), hpsearch.Metric("cost")]
    searched(tmp_path / "s", two, metric=goals)
    view, board = shown(tmp_path / "view", tmp_path / "s")
    assert view.pinned() == ["loss", "cost", "best loss/by trial", "best cost/by trial"]
    assert set(view.pinned()) <= board.tags("s/study") | board.tags("s/000")
    titles = [one["title"] for one in board.layout()["category"]]
    assert titles == ["best loss", "best cost", "trials on the front", "course"]


def test_studies_that_search_for_other_things_are_shown_beside_each_other(runs, tmp_path):
    searched(tmp_path / "s", two, metric=[hpsearch.Metric("loss"), hpsearch.Metric("cost")])
    view, board = shown(tmp_path / "view", tmp_path / "s", runs / "rough-0")
    assert view.pinned() == ["loss", "cost", "best loss/by trial", "best cost/by trial"]
    titles = [one["title"] for one in board.layout()["category"]]
    assert titles == ["best loss", "best cost", "trials on the front", "best", "course"]
    metrics = [info.name.tag for info in board.experiment().metric_infos]
    assert metrics == ["loss", "cost", "hpsearch/iterations", "hpsearch/seconds", "best/loss"]


def test_without_a_metric_there_are_the_curves_the_rungs_and_the_workers(runs, tmp_path):
    study = hpsearch.load(runs / "rough-0")
    study.sweep = replace(study.sweep, metric=None)
    for name in ("s", "t"):
        for add in grown(study, tmp_path / name, 1):
            add()
    view, board = shown(tmp_path / "view", tmp_path / "s", tmp_path / "t")
    assert view.pinned() == ["loss"]
    assert view.study_runs == ["s/study", "t/study"]
    assert board.tags("s/study") == {BUSY_TAG, "rungs/to 3 iterations"}
    assert board.tags("s/000") == {"loss", "hpsearch/iterations", "hpsearch/seconds"}


def test_folders_of_one_name_are_told_apart(runs, tmp_path):
    for name in ("a", "b"):
        searched(tmp_path / name / "s", seed=len(name), run_cap=1)
    _, board = shown(tmp_path / "view", tmp_path / "a/s", tmp_path / "b/s")
    assert {run.rpartition("/")[0] for run in board.runs} >= {"a/s", "b/s"}


def grown(study: hpsearch.Study, directory: Path, parts: int) -> list[Callable[[], None]]:
    """Make a study like another one without any event; return what adds the other's events, part by part."""
    place = create_study(study.sweep, directory)
    entries = list(study.entries())
    size = math.ceil(len(entries) / parts)

    def adds(part: int) -> Callable[[], None]:
        def add() -> None:
            with Journal.open(place.journal) as journal:
                for entry in entries[part * size : (part + 1) * size]:
                    journal.append([entry.event], [entry.followed], entry.time)

        return add

    return [adds(part) for part in range(parts)]


def test_what_is_written_as_a_study_grows_is_what_is_written_at_its_end(runs, tmp_path):
    studies = [hpsearch.load(runs / name) for name in ("rough-0", "rough-1", "fine-1")]
    growing = [grown(study, tmp_path / study.directory.name, 4) for study in studies]
    places = [tmp_path / study.directory.name for study in studies]
    view = View(places, tmp_path / "view")
    view.read()
    assert [run for run in Board(tmp_path / "view").runs if not run.endswith("study")] == []
    for part in range(4):
        for one in growing:
            one[part]()
        view.read()
        view.read()  # nothing is new
    view.describe()
    board = Board(tmp_path / "view")
    _, whole = shown(tmp_path / "whole", *(runs / study.directory.name for study in studies))
    assert board.runs == whole.runs
    for run in board.runs:
        assert board.tags(run) == whole.tags(run)
        for tag in board.tags(run):
            points, wanted = dict(board.curve(run, tag)), dict(whole.curve(run, tag))
            if run.endswith("/study"):  # while it grew there were points between
                points = {step: points[max(known for known in points if known <= step)] for step in wanted}
            assert points == wanted, (run, tag)


def test_of_a_study_that_runs_the_state_of_a_trial_is_not_said_before_it_has_ended(runs, tmp_path):
    study = hpsearch.load(runs / "fine-1")
    add = grown(study, tmp_path / "fine-1", 2)
    add[0]()
    view, board = shown(tmp_path / "view", tmp_path / "fine-1")
    early = {name: found.hparams["state"].string_value for name, found in board.sessions().items()}
    assert "" in early.values()
    add[1]()
    view.read()
    for name, found in Board(tmp_path / "view").sessions().items():
        number = int(name.rpartition("/")[2])
        told = found.hparams["state"].string_value
        assert told == early.get(name, str(study.trials[number].state))  # TensorBoard keeps what it read first
        assert found.sessions[0].status == api_pb2.STATUS_SUCCESS


@pytest.mark.exhaustive
def test_of_more_trials_than_tensorboard_ticks_the_best_have_runs_and_new_ones(tmp_path):
    searched(tmp_path / "many", run_cap=MOST_RUNS + 20, max_iter=1)
    study = hpsearch.load(tmp_path / "many")
    view, board = shown(tmp_path / "view", tmp_path / "many")
    assert len(board.runs) == MOST_RUNS
    assert view.left_out == 21
    ranked = sorted(study.trials, key=lambda row: row.value or 0.0)
    assert {f"many/{row.number:03d}" for row in ranked[:-21]} == {*board.runs} - {"many/study"}
    step, value = board.curve("many/study", by_tag(best(), "trials"))[-1]
    assert step == 520
    assert value == pytest.approx(study.best_value)
    _, board = shown(tmp_path / "all", tmp_path / "many", every_trial=True)
    assert len(board.runs) == MOST_RUNS + 21


def test_the_best_are_as_many_of_each_study(runs, tmp_path):
    view, board = shown(tmp_path, runs / "rough-0", runs / "rough-1", runs / "fine-1")
    best_runs = view.best(7)
    assert set(best_runs) <= set(board.runs)
    assert set(view.study_runs) <= set(best_runs)
    chosen = [run for run in best_runs if not run.endswith("/study")]
    assert [sum(run.startswith(name) for run in chosen) for name in ("rough-0", "rough-1", "fine-1")] == [3, 2, 2]
    ranked = sorted(hpsearch.load(runs / "rough-0").trials, key=lambda row: row.value or 0.0)
    assert chosen[:3] == [f"rough-0/00{row.number}" for row in ranked[:3]]
    assert len(view.best(1)) == 3 + len(view.study_runs)  # of each study one at least


def test_what_is_no_study_is_refused_and_one_without_trials_is_shown(tmp_path, runs):
    with pytest.raises(JournalError, match="expected a study's directory"):
        View([tmp_path / "nowhere"], tmp_path / "view")
    with pytest.raises(HpsearchError, match="name it once"):
        View([runs / "rough-0", runs / "rough-0"], tmp_path / "view")
    create_study(hpsearch.load(runs / "rough-0").sweep, tmp_path / "empty")
    view, board = shown(tmp_path / "view", tmp_path / "empty")
    assert board.runs == ["empty/study"]
    assert view.best(20) == ["empty/study"]
    assert board.sessions() == {}


def test_a_study_in_whose_place_another_lies_is_followed_no_further(runs, tmp_path):
    study = hpsearch.load(runs / "rough-0")
    for add in grown(study, tmp_path / "s", 1):
        add()
    view = View([tmp_path / "s", runs / "fine-1"], tmp_path / "view")
    view.read()
    assert view.problems == []
    (tmp_path / "s").rename(tmp_path / "gone")
    for add in grown(hpsearch.load(runs / "rough-1"), tmp_path / "s", 1):
        add()
    view.read()
    (problem,) = view.problems
    assert "another study lies here" in problem
    view.read()
    assert len(view.problems) == 1


def test_a_moment_is_at_whole_seconds():
    from hpsearch.observers.tensorboard.study_runs import amount_of

    assert amount_of(Moment(0.0, 3, 7, 2.1, ()), "seconds") == 3
