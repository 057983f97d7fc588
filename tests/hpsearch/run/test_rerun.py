"""The best configurations of a study, run again with other seeds."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import yaml

import hpsearch
from hpsearch.errors import HpsearchError, JournalError, StudyInUseError, SweepError
from hpsearch.events import Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.run.rerunning import plan_rerun
from hpsearch.searchers import Searcher, Suggestion
from hpsearch.trial import TrialState
from tests.hpsearch.old_studies import trainables
from tests.hpsearch.old_studies.test_old_studies import STUDIES, unpacked
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import (
    ScriptedBackend,
    done,
    failed,
    of_kind,
    run_scripted,
    sweep_of,
)
from tests.hpsearch.support.simulations import Bowl, bowl

INLINE: dict[str, Any] = {"backend": "inline", "observers": [], "progress": False}


def noisy(trial: hpsearch.RunningTrial) -> None:
    """Report a loss that hangs on the params, the seed and the iteration; some trials fail, some give NaN."""
    noise = random.Random(trial.seed)
    for iteration in trial.iterations():
        loss = trial.params["model"]["x"] + noise.random() + 1 / iteration
        if trial.params["mood"] == "bad" and noise.random() < 0.5:
            raise ValueError("no luck")
        trial.report({"loss": loss})


def searched(place: Path, trainable: Any = noisy, **changes: Any) -> hpsearch.Study:
    given: dict[str, Any] = {
        "parameters": {"model": {"x": hpsearch.Uniform(0.0, 1.0), "depth": 3}, "mood": ["good"]},
        "metric": "loss",
        "early_terminate": hpsearch.Hyperband(9),
        "directory": place,
        **INLINE,
    }
    return hpsearch.search(trainable, **merged(given, changes))


def seeds_of(study: hpsearch.Study) -> list[int]:
    return [event.new.seed for event in of_kind(study.directory, Started) if event.new is not None]


def best_rows(study: hpsearch.Study, count: int) -> list[Any]:
    rows = [row for row in study.trials if row.value is not None]
    return sorted(rows, key=lambda row: (row.value, row.number))[:count]


def test_the_best_run_again_each_at_full_length_with_seeds_of_their_own(tmp_path):
    former = searched(tmp_path / "s")
    told = hpsearch.rerun(tmp_path / "s", top=4, seeds=3, trainable=noisy, directory=tmp_path / "again", **INLINE)
    study, best = told.study, best_rows(former, 4)
    assert [one.trial for one in told.former] == [row.number for row in best]
    assert [row.params for row in study.trials] == [row.params for row in best] * 3
    assert {(row.state, row.iterations) for row in study.trials} == {(TrialState.COMPLETE, 9)}
    assert any(row.iterations < 9 for row in best)  # some were stopped, and run to the end now
    seeds = seeds_of(study)
    assert len({*seeds, *seeds_of(former)}) == len(study.trials) + len(former.trials)
    assert study.sweep.name == "s-rerun"


def test_the_table_has_mean_and_spread_by_the_mean(tmp_path):
    former = searched(tmp_path / "s")
    told = hpsearch.rerun(tmp_path / "s", top=4, seeds=3, trainable=noisy, directory=tmp_path / "again", **INLINE)
    frame = told.dataframe()
    assert list(frame.columns) == [
        *("trial", "value", "iterations", "params.model.x", "params.mood"),
        *("mean", "std", "min", "max", "succeeded", "runs"),
    ]
    assert list(frame["mean"]) == sorted(frame["mean"])
    rows = {row.number: row for row in former.trials}
    for line in frame.to_dict("records"):
        row = rows[line["trial"]]
        assert (line["value"], line["iterations"]) == (row.value, row.iterations)
        values = [one.value for one in told.study.trials if one.params == row.params and one.value is not None]
        assert line["mean"] == pytest.approx(np.mean(values))
        assert line["std"] == pytest.approx(np.std(values, ddof=1))
        assert (line["min"], line["max"]) == (min(values), max(values))
        assert (line["succeeded"], line["runs"]) == (3, 3)
    assert told.best.trial == frame["trial"][0]
    first, place = told.former[0], 1 + [one.trial for one in told.configurations].index(former.best_trial.number)
    assert first.trial == former.best_trial.number
    expected = "which was the best trial there, too" if place == 1 else f"not trial {first.trial}, the best there"
    assert expected in told.text()


def test_its_table_is_made_from_the_new_directory_alone_wherever_that_lies(tmp_path):
    searched(tmp_path / "s")
    told = hpsearch.rerun(tmp_path / "s", trainable=noisy, directory=tmp_path / "again", **INLINE)
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "again").rename(tmp_path / "moved")
    again = hpsearch.load(tmp_path / "moved").rerun
    assert again is not None
    pd.testing.assert_frame_equal(again.dataframe(), told.dataframe())
    assert again.directory == str(tmp_path / "s")
    assert hpsearch.load(tmp_path / "moved").trials_dataframe().equals(told.study.trials_dataframe())


def test_called_again_on_its_directory_it_runs_nothing_and_another_one_is_refused(tmp_path):
    former = searched(tmp_path / "s")
    once = hpsearch.rerun(tmp_path / "s", top=2, seeds=2, trainable=noisy, directory=tmp_path / "again", **INLINE)
    before = (tmp_path / "again" / "study.db").read_bytes()
    twice = hpsearch.rerun(tmp_path / "s", top=2, seeds=2, trainable=noisy, directory=tmp_path / "again", **INLINE)
    assert twice.text() == once.text()
    assert (tmp_path / "again" / "study.db").read_bytes() == before
    numbers = ", ".join(str(row.number) for row in best_rows(former, 2))
    with pytest.raises(JournalError, match=rf"a rerun of trials {numbers} with 3 seeds, .* of trials {numbers} with 2"):
        hpsearch.rerun(tmp_path / "s", top=2, trainable=noisy, directory=tmp_path / "again", **INLINE)
    with pytest.raises(JournalError, match="but the one there is no rerun"):
        hpsearch.rerun(tmp_path / "s", top=2, trainable=noisy, directory=tmp_path / "s", **INLINE)
    with pytest.raises(SweepError, match="max_iter: 9 in the study, 2 here"):
        hpsearch.rerun(
            tmp_path / "s", top=2, seeds=2, iterations=2, trainable=noisy, directory=tmp_path / "again", **INLINE
        )


def test_the_metric_is_that_of_the_study_with_its_scope(tmp_path):
    def rises(trial):
        for iteration in trial.iterations():
            trial.report({"loss": trial.params["x"] + abs(iteration - 2)})

    space = {"parameters": {"x": hpsearch.Uniform(0.0, 1.0)}, "early_terminate": None, "max_iter": 5, "run_cap": 3}
    searched(tmp_path / "s", rises, metric={"scope": "best"}, **space)
    told = hpsearch.rerun(tmp_path / "s", top=3, seeds=2, trainable=rises, directory=tmp_path / "again", **INLINE)
    assert all(one.mean == one.params["x"] for one in told.configurations)


def test_equal_params_count_once_by_the_best_of_them_and_1_is_not_true(tmp_path):
    def lucky(trial):
        for _ in trial.iterations():
            trial.report({"loss": 10.0 - trial.number})

    choices = {"x": hpsearch.Categorical([1, 1.0, True])}
    points = [{"x": value} for value in (1, 1.0, True, 1, 1.0, True)]
    searched(
        tmp_path / "s",
        lucky,
        parameters={"parameters": choices, "points_to_try": points},
        early_terminate=None,
        max_iter=1,
        run_cap=6,
    )
    told = hpsearch.rerun(tmp_path / "s", top=5, seeds=1, trainable=lucky, directory=tmp_path / "again", **INLINE)
    assert [(one.trial, repr(one.params["x"])) for one in told.former] == [(5, "True"), (4, "1.0"), (3, "1")]
    assert [repr(row.params["x"]) for row in told.study.trials] == ["True", "1.0", "1"]


def test_failed_trials_and_those_without_a_value_are_never_taken(tmp_path):
    def answer(task):
        number = task.trial.number
        if number < 3:
            return [failed(task)] if number < 2 else [done(task, loss=lambda *_: math.nan)]
        return [done(task)]

    flat = sweep_of(early_terminate=None, max_iter=3, run_cap=5)
    former = run_scripted(tmp_path / "s", flat, ScriptedBackend(answer))
    plan = plan_rerun(former, 5, 2)
    assert sorted(known["trial"] for known in plan.origin["configurations"]) == [3, 4]
    assert plan.notes == ("2 configurations of the 5 asked for: no other has a value",)


def test_a_study_without_any_value_says_what_became_of_it(tmp_path):
    flat = sweep_of(early_terminate=None, max_iter=3, run_cap=2)
    former = run_scripted(tmp_path / "s", flat, ScriptedBackend(lambda task: [failed(task)]))
    with pytest.raises(HpsearchError, match=r"no trial has a value of 'loss' yet \(2 failed\)"):
        plan_rerun(former, 5, 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"top": 0}, "top: must be at least 1, got 0"),
        ({"seeds": 0}, "seeds: must be at least 1, got 0"),
        ({"seeds": 1.5}, "seeds: must be an integer, got 1.5"),
        ({"iterations": 0}, "iterations: must be at least 1, got 0"),
        ({"directory": ":memory:"}, "directory must be a folder, got ':memory:'"),
        ({"backend": "inlin"}, "backend must be ray, inline, simulated or agents, got 'inlin'"),
    ],
)
def test_mistakes_leave_no_study(tmp_path, given, expected):
    searched(tmp_path / "s", early_terminate=None, max_iter=1, run_cap=1)
    with pytest.raises(SweepError, match=expected):
        hpsearch.rerun(tmp_path / "s", **{"trainable": noisy, "directory": tmp_path / "again", **INLINE, **given})
    assert not (tmp_path / "again").exists()


def test_a_study_that_runs_is_refused(tmp_path):
    searched(tmp_path / "s", early_terminate=None, max_iter=1, run_cap=1)
    with (
        StudyDirectory(tmp_path / "s").running("ann@box:7"),
        pytest.raises(StudyInUseError, match=r"must have ended to be rerun.*ann@box:7 runs it now.*hpsearch stop"),
    ):
        hpsearch.rerun(tmp_path / "s", trainable=noisy, **INLINE)


def test_a_study_that_ended_early_gives_what_it_has_and_says_so(tmp_path):
    sweep = sweep_of(limits=hpsearch.Limits(max_time=1.0))
    backend = ScriptedBackend(lambda task: [done(task)])

    def slow(task):
        backend.clock += 0.3
        return [done(task)]

    backend.answer = slow
    former = run_scripted(tmp_path / "s", sweep, backend)
    assert former.state == "max_time"
    plan = plan_rerun(former, 2, 1)
    assert plan.notes == (f"{tmp_path / 's'} is max_time, not finished: the best of what it has are run again",)


def test_a_rerun_of_a_rerun_has_new_seeds_and_the_same_name(tmp_path):
    former = searched(tmp_path / "s")
    once = hpsearch.rerun(tmp_path / "s", top=3, trainable=noisy, directory=tmp_path / "1", **INLINE).study
    twice = hpsearch.rerun(tmp_path / "1", top=2, trainable=noisy, directory=tmp_path / "2", **INLINE).study
    seeds = [*seeds_of(former), *seeds_of(once), *seeds_of(twice)]
    assert len(set(seeds)) == len(seeds)
    assert once.sweep.name == twice.sweep.name == "s-rerun"
    assert "is a rerun itself" in plan_rerun(once, 2, 1).notes[0]


def test_names_stay_within_their_length(tmp_path):
    former = searched(tmp_path / "s", name="n" * 60, early_terminate=None, max_iter=1, run_cap=1)
    assert plan_rerun(former, 1, 1).sweep.name == "n" * 54 + "-rerun"


class Outside(Searcher):
    """Suggests what the space doesn't hold, and leaves things out."""

    kind: ClassVar[str] = "outside"

    def suggest(self, number):
        return Suggestion([{"x": 0.5, "c": 1}, {"x": 2.0, "c": 1}, {"c": 1}, {"x": 0.5}][number], "outside")

    def observe(self, observation):
        pass

    @property
    def size(self):
        return 4


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (1, r"trial 1 must have params .*, but x: must be between 0.0 and 1.0, got 2.0. Run them in a sweep"),
        (2, r"trial 2 must have params .*, but x: is required"),
        (3, r'trial 3 must have params .*, but \{"x": 0.5\} would run as \{"c": 1, "x": 0.5\}'),
    ],
)
def test_params_that_would_not_run_as_they_were_are_refused(tmp_path, best, expected):
    def likes(trial):
        for _ in trial.iterations():
            trial.report({"loss": 0.0 if trial.number == best else 1.0})

    sweep = {"method": f"{__name__}:Outside", "early_terminate": None, "max_iter": 1, "run_cap": 4}
    former = searched(tmp_path / "s", likes, parameters={"x": hpsearch.Uniform(0.0, 1.0), "c": 1}, **sweep)
    with pytest.raises(SweepError, match=expected):
        plan_rerun(former, 1, 1)


def test_what_was_forked_runs_from_its_start_and_a_note_says_so(tmp_path):
    def train(trial):
        level = 0.0 if trial.checkpoint is None else trial.checkpoint["level"]
        for _ in trial.iterations():
            level += trial.params["x"]
            trial.report({"loss": -level}, checkpoint={"level": level})

    forks = Population(max_iter=4, members=3)
    former = searched(
        tmp_path / "s", train, parameters={"x": hpsearch.Uniform(0.0, 1.0)}, early_terminate=forks, run_cap=6
    )
    forked = [row.number for row in best_rows(former, 4) if row.parent is not None]
    assert forked
    expected = f"forked from other trials, now run from their start: {', '.join(map(str, forked))}"
    assert plan_rerun(former, 4, 1).notes == (expected,)
    told = hpsearch.rerun(tmp_path / "s", top=4, seeds=1, trainable=train, directory=tmp_path / "again", **INLINE)
    assert [row.value for row in told.study.trials] == pytest.approx([-4 * one.params["x"] for one in told.former])
    assert {row.parent for row in told.study.trials} == {None}


@pytest.mark.parametrize("method", ["grid", "random"])
def test_any_method_is_rerun_by_its_points(tmp_path, method):
    sweep = {"method": method, "early_terminate": None, "max_iter": 2, "run_cap": 4}
    former = searched(tmp_path / "s", parameters={"model": {"x": [0.1, 0.2]}, "mood": ["good"]}, **sweep)
    told = hpsearch.rerun(tmp_path / "s", trainable=noisy, seeds=2, directory=tmp_path / "again", **INLINE)
    assert len(told.former) == 2
    assert [row.params for row in told.study.trials[:2]] == [one.params for one in told.former]
    assert {row.number for row in former.trials} >= {one.trial for one in told.former}


@pytest.mark.parametrize(("form", "name"), STUDIES)
def test_old_studies_are_rerun_too(form, name, tmp_path):
    former = hpsearch.load(unpacked(form, name, tmp_path))
    trainable = trainables.plain if name == "grid-killed" else trainables.train
    told = hpsearch.rerun(
        former.directory, top=2, seeds=2, trainable=trainable, directory=tmp_path / "again", iterations=2, **INLINE
    )
    rows = {row.number: row for row in former.trials}
    assert told.former[0].trial == former.best_trial.number
    assert [row.params for row in told.study.trials] == [rows[one.trial].params for one in told.former] * 2
    assert not set(seeds_of(told.study)) & set(seeds_of(former))
    assert plan_rerun(former, 2, 2).sweep.max_iter == former.sweep.iterations


def test_a_simulated_study_is_rerun_as_the_trained_one(tmp_path):
    space = {"parameters": {"x": hpsearch.Uniform(-1.0, 1.0)}, "run_cap": 20, "limits": {"max_failures": "none"}}
    virtual: dict[str, Any] = {"backend": "simulated", "observers": [], "progress": False}
    searched(tmp_path / "simulated", Bowl, **space, **virtual, resources={"workers": 2})
    searched(tmp_path / "trained", bowl, **space)
    told = [
        hpsearch.rerun(
            tmp_path / "simulated", trainable=Bowl, directory=tmp_path / "1", resources={"workers": 2}, **virtual
        ),
        hpsearch.rerun(tmp_path / "trained", trainable=bowl, directory=tmp_path / "2", **INLINE),
    ]
    assert told[0].dataframe().equals(told[1].dataframe())
    assert any(one.succeeded < 3 for one in told[0].configurations)  # some fail, by their seed
    with pytest.raises(SweepError, match="an instance of Bowl couldn't be had again"):
        hpsearch.rerun(tmp_path / "simulated", trainable=Bowl(), resources={"workers": 2}, **virtual)  # type: ignore[arg-type]


def test_the_repetitions_of_a_table_follow_from_the_new_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"x": x / 4, "rep": rep, "loss": x + rep / 10} for x in range(5) for rep in range(3)]
    pd.DataFrame(lines).to_csv("c.csv", index=False)
    described = {"table": "c.csv", "parameters": {"x": "x"}, "metrics": {"loss": "loss"}, "repetition": "rep"}
    Path("table.yaml").write_text(yaml.safe_dump(described))
    virtual: dict[str, Any] = {"backend": "simulated", "observers": [], "progress": False}
    sweep = {"parameters": {"x": [x / 4 for x in range(5)]}, "method": "grid", "max_iter": 1, "early_terminate": None}
    searched(tmp_path / "s", "table.yaml", **sweep, **virtual, resources={"workers": 1})
    told = hpsearch.rerun(
        tmp_path / "s", top=2, seeds=10, directory=tmp_path / "again", resources={"workers": 1}, **virtual
    )
    assert {one.params["x"] for one in told.configurations} == {0.0, 0.25}
    for one in told.configurations:
        expected = {round(one.params["x"] * 4 + rep / 10, 6) for rep in range(3)}
        assert {round(value, 6) for value in one.values} == expected
    seeds = seeds_of(told.study)
    assert [round(row.value - row.params["x"] * 4, 6) for row in told.study.trials] == [
        round(seed % 3 / 10, 6) for seed in seeds
    ]


def test_the_trainable_must_be_given_again_where_it_was_in_main(tmp_path, monkeypatch):
    monkeypatch.setattr(noisy, "__module__", "__main__")
    searched(tmp_path / "s", early_terminate=None, max_iter=1, run_cap=2)
    with pytest.raises(SweepError, match=r"'__main__:noisy' .* give it again: rerun\(\.\.\., trainable=\.\.\.\)"):
        hpsearch.rerun(tmp_path / "s", **INLINE)
    told = hpsearch.rerun(tmp_path / "s", trainable=noisy, directory=tmp_path / "again", **INLINE)
    assert told.study.state == "finished"


def test_the_trainable_is_imported_by_its_name_where_none_is_given(tmp_path):
    searched(tmp_path / "s", early_terminate=None, max_iter=1, run_cap=2)
    told = hpsearch.rerun(tmp_path / "s", seeds=1, directory=tmp_path / "again", **INLINE)
    assert told.study.sweep.trainable == f"{__name__}:noisy"
    assert [one.succeeded for one in told.configurations] == [1, 1]


def test_what_is_recorded_is_plain_json(tmp_path):
    former = searched(tmp_path / "s")
    origin = plan_rerun(former, 2, 2).origin
    assert json.loads(json.dumps(origin)) == origin


def test_it_goes_on_as_any_study_where_the_former_one_is_gone(tmp_path):
    former = searched(tmp_path / "s")
    plan_rerun(former, 2, 2).opened(tmp_path / "again")
    shutil.rmtree(tmp_path / "s")
    asked = hpsearch.load(tmp_path / "again").sweep
    told = hpsearch.search(noisy, asked, directory=tmp_path / "again", **INLINE).rerun
    assert told is not None
    assert [one.succeeded for one in told.configurations] == [2, 2]


def test_resources_change_those_of_the_study_as_search_takes_them(tmp_path):
    virtual: dict[str, Any] = {"backend": "simulated", "observers": [], "progress": False, "top": 1, "seeds": 1}
    first = {"workers": 2, "cpus_per_worker": 2}
    space = {"parameters": {"x": hpsearch.Uniform(-1.0, 1.0)}, "run_cap": 2, "limits": {"max_failures": "none"}}
    searched(tmp_path / "s", Bowl, **space, backend="simulated", resources=first)
    found: list[tuple[int | None, int]] = []
    for resources in (None, {"workers": 3}, hpsearch.Resources(workers=4)):
        told = hpsearch.rerun(tmp_path / "s", resources=resources, directory=tmp_path / f"{len(found)}", **virtual)
        found.append((told.study.sweep.resources.workers, told.study.sweep.resources.cpus_per_worker))
    assert found == [(2, 2), (3, 2), (4, 1)]
    with pytest.raises(SweepError, match=r"resources\.worker: isn't a known key"):
        hpsearch.rerun(tmp_path / "s", resources={"worker": 3}, **virtual)


def test_old_keywords_are_taken_with_a_warning_that_shows_the_new_call(tmp_path):
    virtual: dict[str, Any] = {"backend": "simulated", "progress": False, "top": 1, "seeds": 1}
    space = {"parameters": {"x": hpsearch.Uniform(-1.0, 1.0)}, "run_cap": 2, "limits": {"max_failures": "none"}}
    searched(tmp_path / "s", Bowl, **space, backend="simulated", resources={"workers": 2})
    words = r"rerun: workers, tensorboard are deprecated; write rerun\(study, ..., resources=\{'workers': 3\}\)"
    with pytest.warns(DeprecationWarning, match=words) as caught:
        told = hpsearch.rerun(tmp_path / "s", directory=tmp_path / "1", workers=3, tensorboard=False, **virtual)
    assert [one.filename for one in caught] == [__file__]
    assert told.study.sweep.resources.workers == 3
    assert not (tmp_path / "1" / "tensorboard").exists()
    for name in ("worker", "patience"):
        with pytest.raises(SweepError, match=f"rerun: {name} isn't a known argument"):
            hpsearch.rerun(tmp_path / "s", **{name: 3, **virtual})
