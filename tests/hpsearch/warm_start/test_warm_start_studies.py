"""What other studies tell of their trials: ours with all that they reported, and Optuna's."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest

import hpsearch
from hpsearch.cli import main
from hpsearch.errors import HpsearchError, SweepError
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.space import Categorical, Space, Uniform
from hpsearch.study.warm_start import WarmStart, stored_warm_start
from hpsearch.sweep.parts import Metric
from hpsearch.trial import Goal
from hpsearch.warm_start.read import Given, read_warm_start
from tests.hpsearch.old_studies.test_old_studies import STUDIES, unpacked
from tests.hpsearch.support.warm import SPACE, bowl_loss, search_bowl, warm_sweep

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> hpsearch.Study:
    """One of ours, in which trials got unlike far."""
    place = tmp_path_factory.mktemp("past") / "study"
    return search_bowl(place, early_terminate=SuccessiveHalving(9, min_iter=1, trials=9), max_iter=None, run_cap=9)


def begun(given: Given, **changes: Any) -> WarmStart:
    return read_warm_start([given], warm_sweep(**{"max_iter": 9, **changes}))


def test_a_study_gives_whole_curves_as_far_as_trials_get_here(study):
    found = begun(study.directory)
    assert found.told == (f"{study.directory}: 9 of 9 taken",)
    assert [(one.params, list(one.values.items()), one.until) for one in found.past] == [
        (row.params, study.curves()[row.number], row.iterations) for row in study.trials
    ]
    assert {one.until for one in found.past} == {1, 3, 9}
    short = begun(study, max_iter=2)
    assert {one.until for one in short.past} == {1, 2}
    assert max(at for one in short.past for at in one.values) == 2
    assert {one.until for one in begun(study, max_iter=None).past} == {1, 3, None}
    assert begun(study.directory / "study.db").past == found.past


def test_a_study_of_another_metric_or_goal_is_refused(study):
    with pytest.raises(SweepError, match=r"decided by 'other', as the sweep is, got one by 'loss'"):
        begun(study, metric=Metric("other"))
    with pytest.raises(SweepError, match="whose goal is to maximize loss, got minimize"):
        begun(study, metric=Metric("loss", "maximize"))


def test_of_a_study_that_failed_what_is_left_counts(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            if trial.number == 2 and iteration == 2:
                raise RuntimeError("no")
            trial.report({"loss": math.nan if trial.number == 1 else 1.0})

    hpsearch.search(
        train,
        parameters=SPACE,
        metric="loss",
        max_iter=2,
        run_cap=4,
        directory=tmp_path / "study",
        backend="inline",
        observers=[],
        progress=False,
    )
    found = begun(tmp_path / "study", max_iter=2)
    assert found.told[0].endswith("3 of 4 taken; 1 failed")
    assert str([dict(one.values) for one in found.past]) == "[{1: 1.0, 2: 1.0}, {1: nan, 2: nan}, {1: 1.0, 2: 1.0}]"


@pytest.mark.parametrize(("form", "name"), STUDIES)
def test_studies_of_former_versions_will_do(form, name, tmp_path):
    old = hpsearch.load(unpacked(form, name, tmp_path))
    sweep = warm_sweep(parameters=Space(old.sweep.parameters.declared), metric=old.sweep.metric, max_iter=27)
    found = read_warm_start([old.directory], sweep)
    sound = [row for row in old.trials if row.number in old.curves() and row.state != "failed"]
    assert [one.params for one in found.past] == [row.params for row in sound]
    assert repr([list(one.values.items()) for one in found.past]) == repr([old.curves()[row.number] for row in sound])


def test_what_is_recorded_is_what_was_read(study):
    found = begun(study)
    assert repr(stored_warm_start(json.loads(json.dumps(found.to_record())))) == repr(found)
    odd = WarmStart(("a",), ("b",), (hpsearch.searchers.Past({"x": None}, {1: math.nan, 2: -math.inf}, None),))
    assert repr(stored_warm_start(json.loads(json.dumps(odd.to_record())))) == repr(odd)
    assert stored_warm_start({"sweep": {}}) == WarmStart()


def bowl(trial: optuna.Trial) -> float:
    lr, width = trial.suggest_float("lr", 1e-4, 1.0, log=True), trial.suggest_int("width", 1, 64)
    if trial.number == 3:
        raise RuntimeError("no")
    for step in range(3):
        trial.report(bowl_loss(lr, width) + 3 - step, step)
        if trial.number == 4 and step == 1:
            raise optuna.TrialPruned
    return bowl_loss(lr, width)


def optunas(storage: Any, name: str = "bowl", direction: Goal = "minimize") -> optuna.Study:
    study = optuna.create_study(
        storage=storage, study_name=name, direction=direction, sampler=optuna.samplers.RandomSampler(seed=1)
    )
    study.optimize(bowl, n_trials=6, catch=RuntimeError)
    return study


def test_a_study_of_optunas_in_a_database_a_journal_or_at_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optunas("sqlite:///study.db")
    optunas(JournalStorage(JournalFileBackend("study.log")))
    at_hand = optunas(None)
    sources: list[Any] = ["sqlite:///study.db#bowl", "sqlite:///study.db", "study.db#bowl", Path("study.db")]
    sources += ["study.log#bowl", "study.log", at_hand]
    found = [begun(source, max_iter=3) for source in sources]
    for one in found:
        assert one.told[0].endswith("5 of 6 taken; 1 failed; its values are taken as loss")
        assert one.past == found[0].past
    assert found[0].sources == (f"sqlite:///{tmp_path}/study.db#bowl",)
    assert found[-1].sources == ("the Optuna study bowl",)
    pruned = found[0].past[3]
    loss = bowl_loss(**pruned.params)
    assert (dict(pruned.values), pruned.until) == ({1: loss + 3, 2: loss + 2}, 2)  # steps counted from 0
    whole = found[0].past[0]
    assert (dict(whole.values)[3], whole.until) == (bowl_loss(**whole.params), 3)


def test_a_study_of_optunas_that_doesnt_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    optunas("sqlite:///study.db")
    optunas("sqlite:///study.db", "other", "maximize")
    empty = sqlite3.connect("empty.db")
    empty.execute("CREATE TABLE t (x)")
    empty.close()
    before = Path("empty.db").read_bytes()
    Path("torn.log").write_text('{"op_code": 0, "wor')
    two = optuna.create_study(directions=["minimize", "minimize"])
    named = optuna.create_study()
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        named.set_metric_names(["accuracy"])
    for given, told in (
        ("sqlite:///study.db", "expected the name of a study behind a #; there are bowl, other"),
        ("sqlite:///study.db#bowls", "it has no study 'bowls'; .* did you mean bowl"),
        ("sqlite:///study.db#other", "whose goal is to minimize loss, as the sweep's, got maximize"),
        ("sqlite:///none.db#bowl", "expected a file of Optuna's, but none.db is none"),
        ("sqlite:///empty.db#bowl", "can't be read as one: no such table"),
        ("empty.db", "can't be read as one: no such table"),
        ("nonsense://#bowl", "expected"),
        ("torn.log", "expected a storage that Optuna can read|there is none"),
        ("nowhere", "there is nothing of this name"),
        (two, "a study of one objective, got 2"),
        (named, "values of 'loss', the sweep's metric, got values of 'accuracy'"),
        (3, "expected a study's directory, .* got int"),
    ):
        with pytest.raises(SweepError, match=told):
            begun(given)  # type: ignore[arg-type]
    assert not Path("none.db").exists()
    assert Path("empty.db").read_bytes() == before
    with pytest.raises(HpsearchError, match="expected a journal of hpsearch"):
        begun(tmp_path)


def test_our_own_export_to_optuna_gives_the_same_params_back(tmp_path):
    parameters = {
        "c": Categorical(['"a"', "a", [1], {"b": None}]),
        "d": Categorical([True, 1, 2.5, None]),
        "big": hpsearch.IntUniform(1, 2**60),
        "x": Uniform(0, 1, step=0.1),
        "group": {"n": hpsearch.Normal(), "k": 3},
    }

    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            trial.report({"loss": trial.params["x"] / iteration})

    study = hpsearch.search(
        train,
        parameters=parameters,
        metric="loss",
        max_iter=2,
        run_cap=12,
        directory=tmp_path / "study",
        backend="inline",
        observers=[],
        progress=False,
    )
    assert main(["export", str(tmp_path / "study")]) == 0
    sweep = warm_sweep(parameters=Space.from_parameters(parameters))
    whole = read_warm_start([study], sweep)
    for source in ("optuna.log", "trials.csv"):
        found = read_warm_start([tmp_path / "study" / "export" / source], sweep)
        assert json.dumps([dict(one.params) for one in found.past]) == json.dumps([row.params for row in study.trials])
        assert [one.values[2] for one in found.past] == [one.values[2] for one in whole.past]
    assert read_warm_start([tmp_path / "study" / "export" / "optuna.log"], sweep).past == whole.past
