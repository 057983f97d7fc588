"""`prior` in a sweep file, and what goes over the distributions of a sweep that has some."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpsearch.backends.base import Backend
from hpsearch.errors import SweepError
from hpsearch.results.optuna_distributions import optuna_parameter
from hpsearch.results.study import Study, load
from hpsearch.simulation.lookup import NearestRows
from hpsearch.space import Categorical, Distribution, IntUniform, LogIntUniform, LogUniform, Space, Uniform
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Task
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted, sweep_of
from tests.hpsearch.support.sweep_schema import validator

HEAD = """\
trainable: package.module:function
metric: {name: loss}
method: random
run_cap: 5
parameters:
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a sweep file with these parameters, and perhaps some `--set`."""
    monkeypatch.chdir(tmp_path)

    def read(parameters: str, *overrides: str) -> Sweep:
        Path("sweep.yaml").write_text(HEAD + parameters)
        return load_sweep("sweep.yaml", overrides)

    return read


def problem_of(read, parameters: str, *overrides: str) -> str:
    with pytest.raises(SweepError) as caught:
        read(parameters, *overrides)
    return str(caught.value)


@pytest.mark.some_cases(3)
@pytest.mark.parametrize(
    ("written", "distribution"),
    [
        ("{distribution: log_uniform_values, min: 1e-5, max: 1, prior: 0.001}", LogUniform(1e-5, 1, prior=1e-3)),
        ("{min: 0.0, max: 1.0, prior: 1}", Uniform(0, 1, prior=1.0)),
        ("{min: 1, max: 8, prior: 2}", IntUniform(1, 8, prior=2)),
        ("{min: 0.0, max: 1.0, q: 0.1, prior: 0.3}", Uniform(0, 1, step=0.1, prior=0.3)),
        ("{distribution: q_uniform, min: 0, max: 9, prior: 3}", Uniform(0, 9, step=1, prior=3)),
        ("{distribution: log_int_uniform, min: 1, max: 64, prior: 8}", LogIntUniform(1, 64, prior=8)),
        ("{distribution: log_uniform, min: -2, max: 0, prior: 0.5}", LogUniform(math.exp(-2), 1, prior=0.5)),
        ("{distribution: inv_log_uniform, min: 0, max: 2, prior: 0.5}", LogUniform(math.exp(-2), 1, prior=0.5)),
        ("{values: [relu, gelu, 3], prior: gelu}", Categorical(["relu", "gelu", 3], prior="gelu")),
        ("{values: [a, b], probabilities: [0.9, 0.1], prior: b}", Categorical(["a", "b"], [0.9, 0.1], prior="b")),
        ("{values: [false, true], prior: false}", Categorical([False, True], prior=False)),
        ("{values: [[8], [8, 4]], prior: [8, 4]}", Categorical([[8], [8, 4]], prior=[8, 4])),
        ("{min: 1, max: 8, prior: null}", IntUniform(1, 8)),
    ],
)
def test_a_file_says_the_prior_of_a_parameter(read, written, distribution: Distribution):
    got = read(f"  x: {written}\n")
    assert repr(got.parameters.parameters[0].distribution) == repr(distribution)
    given = {"metric": {"name": "loss"}, "method": "random", "parameters": {"x": got.parameters.to_json()[0]}}
    validator().validate({**given, "parameters": {"x": {"min": 1, "max": 2, "prior": 1}}})


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{min: 0.0, max: 1.0, prior: 2}", "prior: must be between 0.0 and 1.0, got 2.0"),
        ("{min: 0, max: 9, prior: 2.5}", "prior: must be an integer, got 2.5"),
        ("{min: 0, max: 9, q: 3, prior: 4}", "prior: must be a multiple of 3, got 4"),
        ("{min: 0.0, max: 1.0, prior: high}", "prior: must be a number, got 'high'"),
        ("{values: [a, b], prior: c}", "prior: must be one of the values ('a', 'b'), got 'c'"),
        (
            "{distribution: log_uniform, min: -7, max: 0, prior: -3}",
            "prior: must be between 0.0009118819655545162 and 1.0, got -3.0\n"
            "  min and max of log_uniform are exponents of e; the prior is a value",
        ),
        (
            "{distribution: normal, mu: 0, prior: 1}",
            "prior: has no meaning for normal, which takes mu, sigma, q, points, default\n"
            "  mu is where good values are believed to be",
        ),
        ("{value: 3, prior: 3}", "prior: has no meaning for constant, which takes value, default"),
        ("{min: 0.0, max: 1.0, priors: 1}", "priors: isn't a known key\n  did you mean prior?"),
    ],
)
def test_a_wrong_prior_is_told_with_its_line_and_key(read, written, told):
    assert problem_of(read, f"  ok: {{value: 1}}\n  x: {written}\n") == f"sweep.yaml:7: parameters.x.{told}"


def test_a_grid_tells_where_the_prior_is_that_it_has_no_use_for(read):
    text = "  ok: {values: [1, 2]}\n  group:\n    parameters:\n      n: {min: 1, max: 3,\n          prior: 2}\n"
    told = problem_of(read, text, "method=grid")
    assert told.startswith("sweep.yaml:10: parameters.group.parameters.n.prior: has no effect on a grid")
    assert "remove it; points_to_try says what is tried first" in told
    assert read(text, "method=grid", "parameters.group.n.prior=null").searcher.kind == "grid"


def test_an_override_sets_a_prior_and_keeps_the_kind(read):
    text = "  lr: {distribution: log_uniform_values, min: 1e-5, max: 1.0, prior: 0.001}\n  n: {min: 1, max: 9}\n"
    sweep = read(text, "parameters.lr.prior=1", "parameters.n.prior=3")
    assert [repr(parameter.distribution.prior) for parameter in sweep.parameters.parameters] == ["1.0", "3"]
    told = problem_of(read, text, "parameters.n.prior=30")
    assert told == "sweep.yaml: --set parameters.n.prior=30: parameters.n.prior: must be between 1 and 9, got 30"


def sweep_with(prior: float | None) -> Sweep:
    space = Space.from_parameters({"lr": LogUniform(1e-4, 1, prior=prior), "n": IntUniform(1, 9), "act": ["a", "b"]})
    return sweep_of(parameters=space, early_terminate=None, max_iter=2, run_cap=9)


def test_a_changed_prior_is_another_sweep():
    here, stored = sweep_with(0.1), sweep_with(0.01)
    assert stored.difference(here) == ["parameters.lr.prior: 0.01 in the study, 0.1 here"]
    assert sweep_with(None).difference(here) == ["parameters.lr.prior: not given in the study, 0.1 here"]
    assert here.difference(sweep_with(None)) == ["parameters.lr.prior: 0.1 in the study, not given here"]
    assert here.difference(sweep_with(0.1)) == []


def test_a_stored_sweep_says_nothing_of_priors_that_it_lacks():
    stored = sweep_with(None).to_json()
    assert stored["draws"] == 2
    assert "prior" not in json.dumps(stored)
    again = Sweep.from_json(json.loads(json.dumps(sweep_with(0.01).to_json())))
    spaces = again.parameters, sweep_with(0.01).parameters
    assert all(spaces[0].draw(0, number) == spaces[1].draw(0, number) for number in range(50))


def table(study: Study) -> str:
    return rows_to_csv(study.trials, study.sweep.parameters.names)


def answering(most: float = math.inf) -> Backend:
    """Return a backend that finishes every trial, until the user presses Ctrl-C twice during a trial, after so many."""

    def answer(task: Task) -> list[Message]:
        if len(backend.tasks) > most:
            raise KeyboardInterrupt
        return [done(task)]

    backend = ScriptedBackend(answer)
    return backend


def test_an_interrupted_sweep_goes_on_with_the_trials_that_it_would_have_had(tmp_path):
    sweep = sweep_with(0.01)
    whole = run_scripted(tmp_path / "whole", sweep, answering())
    assert whole.trials[0].params["lr"] == 0.01
    assert run_scripted(tmp_path / "s", sweep, answering(3)).state == "interrupted"
    assert table(load(tmp_path / "s")) != table(whole)
    assert table(run_scripted(tmp_path / "s", sweep, answering())) == table(whole)
    with pytest.raises(SweepError, match=r"parameters\.lr\.prior: 0\.01 in the study, 0\.1 here"):
        run_scripted(tmp_path / "s", sweep_with(0.1), answering())


@pytest.mark.parametrize(
    ("believed", "plain"),
    [
        (Uniform(0, 1, prior=0.5), Uniform(0, 1)),
        (LogUniform(1e-4, 1, prior=0.1), LogUniform(1e-4, 1)),
        (IntUniform(1, 9, step=2, prior=4), IntUniform(1, 9, step=2)),
        (LogIntUniform(1, 9, prior=4), LogIntUniform(1, 9)),
        (Categorical(["a", "b"], prior="b"), Categorical(["a", "b"])),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_export_and_a_table_are_those_of_the_range_without_a_prior(believed, plain):
    values = plain.grid() if not isinstance(plain, Uniform | LogUniform) else [0.1, 0.5]
    assert optuna_parameter(believed, values) == optuna_parameter(plain, values)
    spaces = [Space.from_parameters({"x": given}) for given in (believed, plain)]
    rows = [NearestRows({"x": values}, space) for space in spaces]
    for number in range(20):
        params = spaces[0].draw(0, number)
        assert rows[0].find(params) == rows[1].find(params)


@pytest.mark.exhaustive
def test_a_good_prior_finds_sooner_and_a_bad_one_costs_no_more_than_every_second_trial():
    def mean_trials(prior: float | None) -> float:
        space = Space.from_parameters({name: Uniform(0, 1, prior=prior) for name in "abc"})
        found = []
        for seed in range(300):
            number = 0
            while any(abs(value - 0.25) > 0.1 for value in space.draw(seed, number).values()):
                number += 1
            found.append(number + 1)
        return sum(found) / len(found)

    assert mean_trials(0.25) == 1.0
    # One of 125 draws is in the cube, 1 of 46 near a prior of 0.4, so 1 of 67 in all, and next to none near one of 1.0.
    for prior, expected in ((0.4, 67), (None, 125), (1.0, 250)):
        assert abs(mean_trials(prior) / expected - 1) < 6 / math.sqrt(300)
