"""All searchers and schedulers, asked and told: as they are for workers."""

from __future__ import annotations

import math
import random

import pytest

import hpsearch
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.telling import AskedTrial
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.schedulers.pbt import PBT
from hpsearch.searchers import KNOWN, Search
from hpsearch.space import Space, Uniform
from hpsearch.sweep.parts import Limits
from hpsearch.trial import TrialState
from tests.hpsearch.support.asking import ask, asked_sweep, by_x, finish, reports, table
from tests.hpsearch.support.family import Family
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted


def as_scripted(trial: AskedTrial, iteration: int) -> float:
    """What the scripted backend's trials report."""
    return (trial.number * 7 % 5 + 1) / iteration


SCHEDULERS: dict[str, dict[str, object]] = {
    "none": {"max_iter": 3, "run_cap": 5},
    "hyperband": {"early_terminate": Hyperband(9), "max_iter": None, "run_cap": None},
    "halving": {"early_terminate": SuccessiveHalving(9, trials=9), "max_iter": None, "run_cap": None},
    "asha": {"early_terminate": ASHA(9), "max_iter": None, "run_cap": 9},
    "median": {"early_terminate": MedianStopping(4), "max_iter": None, "run_cap": 6},
}


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("method", "scheduler"),
    [
        # Random with all, and of the two others each with two that the other one hasn't.
        pytest.param(method, scheduler, marks=[] if not shift or place // 2 == shift - 1 else pytest.mark.exhaustive)
        for shift, method in enumerate(["random", "grid", "qmc"])
        for place, scheduler in enumerate(SCHEDULERS)
    ],
)
def test_the_table_is_the_one_that_a_worker_gives(tmp_path, method, scheduler):
    changes = {**SCHEDULERS[scheduler], "method": method}
    if method == "grid":
        changes["parameters"] = Space.from_parameters({"x": [i / 10 for i in range(20)]})
    with AskTell(asked_sweep(**changes), directory=tmp_path / "asked") as lab:
        finish(lab, as_scripted)
    sweep = asked_sweep(**changes, trainable="package.module:function")
    run_scripted(tmp_path / "run", sweep, ScriptedBackend(lambda task: [done(task)]))
    asked, ran = hpsearch.load(tmp_path / "asked"), hpsearch.load(tmp_path / "run")
    assert table(tmp_path / "asked") == table(tmp_path / "run")
    assert (asked.state, asked.iterations, asked.best_value) == ("finished", ran.iterations, ran.best_value)
    assert asked.curves() == ran.curves()


# bayes is tpe by another word, and gp takes time.
@pytest.mark.some_cases(3)
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.exhaustive if m in ("bayes", "gp") else ()) for m in KNOWN]
)
def test_every_searcher_goes_on_in_a_new_process_as_in_one_that_stays_open(tmp_path, method):
    changes: dict[str, object] = {"method": method, "run_cap": 8}
    if method == "grid":
        changes["parameters"] = Space.from_parameters({"x": [i / 10 for i in range(8)]})
    if KNOWN[method].capabilities.learns:
        changes["search"] = Search(startup=4)
    if method == "spectral":  # it draws until something stands out
        changes |= {"search": Search(startup=4, options={"samples": 4}), "run_cap": 24}
    if method == "pbt":
        changes |= {"early_terminate": PBT(4, 3, 1), "max_iter": None}
    elif KNOWN[method].over is not None:
        changes |= {"early_terminate": SuccessiveHalving(3, trials=6), "max_iter": None, "run_cap": None}
    if method == "cmaes":
        changes["parameters"] = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)})
    sweep = asked_sweep(**changes)
    with AskTell(sweep, directory=tmp_path / "open") as lab:
        finish(lab)
    finished = False
    while not finished:  # opened anew for each call
        with AskTell(sweep, directory=tmp_path / "anew") as lab:
            trial, finished = lab.ask(), lab.finished
        if trial is not None:
            AskTell(directory=tmp_path / "anew").tell(trial, reports(trial, by_x))
    assert table(tmp_path / "anew") == table(tmp_path / "open")
    origins = {row.origin for row in hpsearch.load(tmp_path / "open").trials}
    assert "stand_in" not in origins
    assert not KNOWN[method].capabilities.learns or len(origins) > 1  # the searcher was asked, too


def test_a_suggestion_knows_all_that_was_told_whoever_told_it(tmp_path):
    sweep = asked_sweep(method="tpe", search=Search(startup=4), run_cap=6)
    with AskTell(sweep, directory=tmp_path / "one") as lab:
        finish(lab)
    one, other = AskTell(sweep, directory=tmp_path / "two"), AskTell(sweep, directory=tmp_path / "two")
    for _ in range(6):
        trial = ask(one)
        other.tell(trial, reports(trial, by_x))
    assert table(tmp_path / "two") == table(tmp_path / "one")


def test_forked_trials_say_what_they_go_on_from(tmp_path):
    sweep = asked_sweep(early_terminate=Population(4, members=3), max_iter=None, run_cap=8)
    forks: list[AskedTrial] = []
    with AskTell(sweep, directory=tmp_path / "lab") as lab:
        while (trial := lab.ask()) is not None:
            if trial.parent is not None and trial.attempt == 1:
                forks.append(trial)
            lab.tell(trial, reports(trial, lambda trial, _: by_x(trial, 1)))
            lab.close()  # whoever calls again replays it
        assert lab.finished
    assert forks
    for fork in forks:
        assert fork.parent is not None
        assert fork.start == fork.parent.iteration > 0
        assert fork.parent.number < fork.number


MIXED: dict[str, dict[str, object]] = {
    "hyperband, with a lag": {"method": "tpe", "search": Search(lag=3, startup=3), "early_terminate": Hyperband(9)},
    "asha": {"method": "tpe", "search": Search(startup=3), "early_terminate": ASHA(9), "run_cap": 12},
    "median": {"early_terminate": MedianStopping(4), "run_cap": 8},
    "a searcher that forks": {"method": Family.kind, "early_terminate": SuccessiveHalving(9, trials=9)},
    "a scheduler that forks": {"early_terminate": Population(6, members=3, interval=2), "run_cap": 10},
}


@pytest.mark.parametrize("sweep", MIXED)
def test_it_comes_to_its_end_whatever_is_told_in_which_order(tmp_path, sweep):
    """Some are given up, some fail, some end early; and now and then a new process replays it all."""
    chance = random.Random(sweep)
    limits = Limits(max_retries=1, max_failures="none")
    changes = {"max_iter": None, "run_cap": None, "limits": limits, **MIXED[sweep]}
    lab = AskTell(asked_sweep(**changes), directory=tmp_path / "lab")
    given: list[AskedTrial] = []
    while not lab.finished:
        trial = lab.ask() if chance.random() < 0.5 or not given else None
        if trial is not None:
            given.append(trial)
            continue
        assert given or lab.finished, "nothing to ask for, and nothing to tell"
        if given:
            tell_anything(lab, given.pop(chance.randrange(len(given))), chance.random())
        if chance.random() < 0.2:
            assert AskTell(directory=tmp_path / "lab").open_trials() == sorted(given, key=lambda trial: trial.number)
    assert given == []
    study = hpsearch.load(tmp_path / "lab")
    assert study.state == "finished"
    assert {row.state for row in study.trials} <= {TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED}


def tell_anything(lab: AskTell, trial: AskedTrial, chance: float) -> None:
    if chance < 0.1:
        lab.give_up(trial)
    elif chance < 0.2:
        lab.tell(trial, failed="no")
    elif chance < 0.3:
        lab.tell(trial, [{"loss": 1.0}], ended=True)
    elif chance < 0.4:
        lab.tell(trial, {"loss": math.nan}, iteration=trial.end)
    else:
        lab.tell(trial, reports(trial, by_x))
