from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError
from hpsearch.events import Extended
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.space import Categorical, Constant, LogUniform, Space, Uniform, When
from hpsearch.study.extension import extension as extension_of
from hpsearch.sweep.parameters import space_of
from hpsearch.sweep.parts import Checkpoints, Limits, Metric, Resources, Scaling, Search
from hpsearch.sweep.sweep import Sweep

SPACE = Space.from_parameters({"lr": LogUniform(1e-4, 1.0, points=3), "opt": {"name": ["adam", "sgd"]}})


def sweep(**changes: Any) -> Sweep:
    given: dict[str, Any] = {
        "name": "s",
        "trainable": "package.module:function",
        "metric": Metric("accuracy", "maximize"),
        "method": "random",
        "parameters": SPACE,
        "run_cap": 10,
    }
    return Sweep(**(given | changes))


def wrong(value: Any) -> Any:
    """Hide from the type checker what the constructor is to refuse."""
    return value


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run_cap": 0}, "run_cap: must be at least 1, got 0"),
        ({"run_cap": True}, "run_cap: must be an integer, got True"),
        ({"max_iter": 0}, "max_iter: must be at least 1, got 0"),
        ({"max_iter": 5, "early_terminate": Hyperband(27)}, "max_iter: must be inside early_terminate"),
        (
            {"early_terminate": "hyperband"},
            r"early_terminate: must be an EarlyTerminate, got 'hyperband'\n  write such as hpsearch.Hyperband",
        ),
        ({"scaling": {"batch": "global"}}, "scaling: must be a Scaling, got a mapping"),
        ({"metric": "accuracy"}, r"metric: must be a Metric, got 'accuracy'\n  write hpsearch.Metric\("),
        (
            {"parameters": ["lr"]},
            r"parameters: must be a Space, got a list of 1\n  write a mapping, or hps",
        ),
        ({"parameters": {"lr": {"min": 1.0, "max": 0.5}}}, "parameters.lr.max: must be greater than min"),
        (
            {"method": "nope"},
            "method: must be one of random, grid, qmc, tpe, bayes, ",
        ),
        ({"program": "train.py"}, "program: can't be combined with trainable"),
        ({"command": ("./train",)}, "command: can't be combined with trainable"),
        ({"trainable": None, "command": ()}, "command: must hold at least one word, got none"),
        ({"trainable": None, "command": ("${program}",)}, "program: is required where command says"),
        ({"trainable": None, "command": ("a", 1)}, r"command\[1\]: must be a string, got 1"),
        ({"trainable": None, "command": ("a", "${agrs}")}, "command: must be a command that can be run: .*args"),
        ({"seed": -1}, "seed: must be between 0 and 4294967295, got -1"),
        ({"name": "a/b"}, "name: must be fit for a folder's name"),
        ({"name": ""}, "name: must be one line of text, got ''"),
        ({"points_to_try": ({"lr": 7},)}, r"points_to_try\[0\].lr: must be between 0.0001 and 1.0, got 7.0"),
        ({"points_to_try": ({"opt": {"nme": 1}},)}, r"points_to_try\[0\].opt.nme: isn't a parameter"),
        ({"points_to_try": ("x",)}, r"points_to_try\[0\]: must be a mapping"),
        ({"method": "grid", "points_to_try": ({"lr": 1},)}, r"points_to_try\[0\].opt.name: is required"),
        (
            {"method": "grid", "parameters": Space.from_parameters({"lr": Uniform(0, 1)})},
            "parameters.lr.points: is required for a grid over a continuous parameter",
        ),
    ],
)
def test_impossible_sweeps_are_refused_with_key_and_value(changes, problem):
    with pytest.raises(SweepError, match=f"^(Sweep: )?{problem}"):
        sweep(**changes)


def test_a_lag_beside_the_scheduler_that_a_method_implies_is_refused_by_the_method():
    with pytest.raises(SweepError) as caught:
        sweep(method="bohb", early_terminate=None, max_iter=27, search=Search(lag=3))
    assert str(caught.value) == (
        "search.lag: must not be given with method bohb without early_terminate, which runs over asha and so "
        "decides in completion order\n"
        "  name early_terminate: {type: hyperband, max_iter: 27}, or remove it"
    )


@pytest.mark.parametrize("method", ["bayes", "cmaes", "gp"])
def test_a_method_that_needs_optuna_is_refused_by_its_name_where_there_is_none(method, monkeypatch):
    numbers = Space.from_parameters({"x": Uniform(0, 1), "y": Uniform(0, 1)})
    monkeypatch.setitem(sys.modules, "optuna.samplers", None)
    with pytest.raises(SweepError, match=rf"^method: must be one that can run here, but {method} needs Optuna"):
        sweep(method=method, parameters=numbers)


def test_a_sweep_that_is_only_asked_and_told_needs_nothing_that_runs_a_trial():
    with pytest.raises(SweepError, match=r"^trainable: is required: what runs a trial"):
        sweep(trainable=None).check_runs()
    sweep().check_runs()
    assert Sweep.from_json(sweep(trainable=None).to_json()) == sweep(trainable=None)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Metric("loss", wrong("min")), "goal: must be minimize or .*, got 'min'\n  did you mean minimize"),
        (lambda: Metric(""), "name: must be one line of text"),
        (lambda: Hyperband(27, min_iter=81), r"min_iter: must be at most max_iter \(27\), got 81"),
        (lambda: Hyperband(27, eta=1), "eta: must be at least 2, got 1"),
        (lambda: Hyperband(27, eta=wrong(2.5)), "eta: must be an integer, got 2.5"),
        (lambda: Hyperband(27, variant=wrong("floor")), "variant: must be paper or table, got 'floor'"),
        (lambda: Hyperband(27, brackets=0), "brackets: must be at least 1, got 0"),
        (lambda: SuccessiveHalving(0), "max_iter: must be at least 1, got 0"),
        (lambda: SuccessiveHalving(9, trials=0), "trials: must be at least 1, got 0"),
        (lambda: Resources(workers=0), "workers: must be at least 1, got 0"),
        (lambda: Resources(cpus_per_worker=0), "cpus_per_worker: must be at least 1, got 0"),
        (lambda: Resources(gpus_per_worker=1.5), "gpus_per_worker: must be a fraction up to 1 or a whole"),
        (lambda: Resources(workers_per_trial=0), "workers_per_trial: must be at least 1, got 0"),
        (
            lambda: Resources(workers_per_trial=4, max_workers_per_trial=2),
            r"max_workers_per_trial: must be at least workers_per_trial \(4\), got 2",
        ),
        (lambda: Resources(3, workers_per_trial=4), r"workers: must be at least workers_per_trial \(4\), got 3"),
        (
            lambda: Resources(fuse="rounding"),
            "trials_per_worker: must be a number from 2 where fuse is rounding, got 1",
        ),
        (
            lambda: Resources(trials_per_worker="auto", fuse="rounding"),
            "trials_per_worker: must be a number from 2 where fuse is rounding, got auto",
        ),
        (lambda: Resources(fuse=wrong("bits")), "fuse: must be auto or rounding, got 'bits'"),
        (lambda: Resources(elastic=wrong(1)), "elastic: must be true or false, got 1"),
        (lambda: Resources(fresh_process=wrong(1)), "fresh_process: must be true or false, got 1"),
        (lambda: Scaling(wrong("local")), "batch: must be global or per_worker, got 'local'"),
        (lambda: Scaling(lr=wrong("cubic")), "lr: must be linear or sqrt or none, got 'cubic'"),
        (lambda: Scaling(warmup_epochs=-1), "warmup_epochs: must be at least 0, got -1"),
        (lambda: Scaling(max_global_batch=0), "max_global_batch: must be at least 1, got 0"),
        (lambda: Scaling(tolerance=float("nan")), "tolerance: must be a finite number, got nan"),
        (lambda: Limits(max_time=0), "max_time: must be more than 0 seconds, got 0"),
        (lambda: Limits(trial_timeout=float("inf")), "trial_timeout: must be a finite number, got inf"),
        (lambda: Limits(max_retries=-1), "max_retries: must be at least 0, got -1"),
        (lambda: Limits(max_failures=0), "max_failures: must be at least 1, got 0"),
        (
            lambda: Limits(max_failures=cast(Any, "never")),
            "max_failures: must be a number, auto or none, got 'never'",
        ),
        (lambda: Limits(max_failures=True), "max_failures: must be"),
        (lambda: Checkpoints(every=0), "every: must be at least 1, got 0"),
        (lambda: Checkpoints(keep=wrong("none")), "keep: must be best or all, got 'none'"),
    ],
)
def test_parts_refuse_what_makes_no_sense(make, problem):
    with pytest.raises(SweepError, match=f"^{problem}"):
        make()


def test_an_error_in_python_says_what_to_add():
    with pytest.raises(SweepError) as caught:
        sweep(method="tpe", metric=None)
    assert str(caught.value).endswith("\n  add at the top level:  metric: {name: loss, goal: minimize}")


def test_a_sweep_without_run_cap_has_no_bound_unless_something_else_gives_one():
    assert sweep(run_cap=None).unbounded
    assert sweep(run_cap=None, early_terminate=ASHA(27)).unbounded
    assert not sweep(run_cap=None, early_terminate=Hyperband(27)).unbounded
    assert not sweep().unbounded
    assert not sweep(run_cap=None, method="grid", parameters=Space.from_parameters({"x": [1, 2]})).unbounded


def test_a_mapping_becomes_a_space():
    given = {"lr": LogUniform(1e-3, 1.0), "layers": {"min": 1, "max": 4}, "net": {"act": ["relu", "gelu"]}}
    made = sweep(parameters=given)
    assert made.parameters == space_of(given)
    assert replace(made, seed=1).parameters is made.parameters
    assert Sweep.from_json(made.to_json()).parameters == made.parameters


def test_a_group_in_wandbs_notation_may_hold_distributions():
    given = {"a": [1, 2], "net": {"parameters": {"lr": LogUniform(0.1, 1.0)}, "when": "a > 1"}}
    made = sweep(parameters=given).parameters
    assert made == space_of({"a": [1, 2], "net": When("a > 1", {"lr": LogUniform(0.1, 1.0)})})
    assert [parameter.name for parameter in made.parameters] == ["a", "net.lr"]


def test_iterations_come_from_early_terminate_or_max_iter():
    assert sweep(early_terminate=Hyperband(27)).iterations == 27
    assert sweep(max_iter=5).iterations == 5
    assert sweep().iterations is None


@pytest.mark.parametrize(("max_iter", "eta", "rungs"), [(243, 3, 6), (1000, 10, 4), (26, 3, 3), (1, 3, 1)])
def test_rungs_are_counted_with_integers(max_iter, eta, rungs):
    for early in (Hyperband(max_iter, eta=eta), SuccessiveHalving(max_iter, min_iter=1, eta=eta)):
        assert len(replace(early, rungs="paper").ends) == rungs
        assert len(early.ends) == rungs + (max_iter == 26)  # which is no power


def test_points_are_kept_flat_and_in_the_spaces_types():
    kept = sweep(points_to_try=({"opt": {"name": "sgd"}, "lr": 1},)).points_to_try
    assert repr(kept) == "({'lr': 1.0, 'opt.name': 'sgd'},)"


def test_numpy_numbers_become_plain_ones():
    made = sweep(seed=np.int64(3), run_cap=np.int32(4), resources=Resources(gpus_per_worker=wrong(np.float32(0.5))))
    assert json.loads(json.dumps(made.to_json())) == made.to_json()


FULL = {
    "random": sweep(points_to_try=({"lr": 0.5},), source="x.yaml", seed=3, max_iter=4),
    "hyperband": sweep(run_cap=None, early_terminate=Hyperband(81, 1, 3, "table", 7)),
    "halving": sweep(early_terminate=SuccessiveHalving(9, trials=5), limits=Limits(60, 30, 2)),
    "script": sweep(
        trainable=None,
        program="a.py",
        command=("${program}", "--x"),
        method="grid",
        resources=Resources(2, 3, 0.5),
        checkpoints=Checkpoints("all", 5),
    ),
    "wide": sweep(
        resources=Resources(8, workers_per_trial=2, max_workers_per_trial=4, elastic=False, fresh_process=True),
        scaling=Scaling("per_worker", "none", 0.5, 4096, 0.0),
    ),
}


@pytest.mark.parametrize("one", FULL.values(), ids=list(FULL))
def test_json_gives_the_same_sweep_back(one):
    back = Sweep.from_json(json.loads(json.dumps(one.to_json())))
    assert back == one
    assert repr(back) == repr(one)


def test_json_from_before_there_were_lanes_is_read_with_the_defaults():
    stored = json.loads(json.dumps(sweep().to_json()))
    for key in ("trials_per_worker", "fuse"):
        del stored["resources"][key]
    assert Sweep.from_json(stored) == sweep()
    assert Sweep.from_json(stored).difference(sweep()) == []


@pytest.mark.parametrize(
    "broken", [{}, {"metric": 3}, {**sweep().to_json(), "new": 1}, {**sweep().to_json(), "parameters": [{}]}]
)
def test_json_that_is_no_sweep_is_one_error(broken):
    with pytest.raises(SweepError, match="a sweep of this version of hpsearch"):
        Sweep.from_json(broken)


LATER = {"parallel", "search", "on_end", "outcome_constraints", "auto_reason", "repeats", "storage"}
"""Keys that sweeps of former versions lack."""


@pytest.mark.parametrize("key", sorted(sweep().to_json().keys() - LATER))
def test_json_that_lacks_a_key_of_all_versions_is_one_error(key):
    stored = sweep().to_json()
    del stored[key]
    with pytest.raises(SweepError, match=f"a sweep of this version of hpsearch; KeyError: '{key}'"):
        Sweep.from_json(stored)


@pytest.mark.parametrize("draws", [1, 3])
def test_a_sweep_that_was_drawn_otherwise_is_one_error(draws):
    with pytest.raises(SweepError, match=f"a sweep of this version of hpsearch; .*draws must be 2, got {draws}"):
        Sweep.from_json({**sweep().to_json(), "draws": draws})


def test_a_stored_name_that_is_no_text_is_one_error():
    stored = sweep().to_json()
    stored["parameters"][0]["path"] = [["lr"]]
    with pytest.raises(SweepError) as caught:
        Sweep.from_json(stored)
    assert "must be named with letters" in str(caught.value)


def changed_space(**changes) -> Space:
    given = {"lr": LogUniform(1e-4, 1.0, points=3), "opt": {"name": ["adam", "sgd"]}}
    return Space.from_parameters(given | changes)


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        ({}, []),
        ({"resources": Resources(workers=8), "limits": Limits(5), "source": "elsewhere"}, []),
        ({"resources": Resources(workers_per_trial=2, max_workers_per_trial=8, elastic=False)}, []),
        ({"resources": Resources(fresh_process=True)}, []),
        ({"resources": Resources(trials_per_worker=4)}, []),
        (
            {"resources": Resources(trials_per_worker=4, fuse="rounding")},
            [
                "resources.fuse: 'auto' in the study, 'rounding' here",
                "resources.trials_per_worker: not given in the study, 4 here",
            ],
        ),
        (
            {"scaling": Scaling("per_worker", "sqrt", 2, 64, 0.5)},
            [
                "scaling.batch: 'global' in the study, 'per_worker' here",
                "scaling.warmup_epochs: 5.0 in the study, 2.0 here",
                "scaling.tolerance: 0.1 in the study, 0.5 here",
                "scaling.lr: not given in the study, 'sqrt' here",
                "scaling.max_global_batch: not given in the study, 64 here",
            ],
        ),
        ({"seed": 1}, ["seed: 0 in the study, 1 here"]),
        (
            {"parameters": changed_space(lr=LogUniform(1e-4, 0.1, points=3))},
            ["parameters.lr.max: 1.0 in the study, 0.1 here"],
        ),
        (
            {"parameters": changed_space(opt={"name": Categorical(["adam", "lion"])})},
            ["parameters.opt.name.values: ['adam', 'sgd'] in the study, ['adam', 'lion'] here"],
        ),
        (
            {"parameters": Space(SPACE.declared[::-1])},
            ["parameters: lr, opt.name in the study, opt.name, lr here"],
        ),
        ({"max_iter": 5}, ["max_iter: not given in the study, 5 here"]),
        ({"points_to_try": ({"lr": 0.5},)}, ["points_to_try[0].lr: not given in the study, 0.5 here"]),
        ({"resources": Resources(cpus_per_worker=2)}, ["resources.cpus_per_worker: 1 in the study, 2 here"]),
        (
            {"metric": Metric("loss"), "run_cap": 20},
            [
                "metric.name: 'accuracy' in the study, 'loss' here",
                "metric.goal: 'maximize' in the study, 'minimize' here",
                "run_cap: 10 in the study, 20 here",
            ],
        ),
    ],
)
def test_difference_lists_what_changes_results(other, lines):
    assert sweep().difference(sweep(**other)) == lines


def test_how_many_trials_a_worker_trains_is_a_difference_where_they_round():
    one, other = (sweep(resources=Resources(trials_per_worker=most, fuse="rounding")) for most in (4, 5))
    assert one.difference(one) == []
    assert one.difference(other) == ["resources.trials_per_worker: 4 in the study, 5 here"]


@pytest.mark.parametrize(
    ("stored", "new", "line"),
    [
        ({"a.b": 1}, {"a": {"b": 1}}, "parameters.a.b.path: ['a.b'] in the study, not given here"),
        ({"a": {"b": {"c": 1}}}, {"a": {"b.c": 1}}, "parameters.a.b.c.path: not given in the study, ['a', 'b.c'] here"),
        ({"a": Constant({})}, {"a": Constant(None)}, "parameters.a.value: {} in the study, None here"),
        ({"a": Constant([])}, {"a": Constant({})}, "parameters.a.value: [] in the study, {} here"),
        (
            {"a": Constant({"b": None})},
            {"a": Constant({})},
            "parameters.a.value: {'b': None} in the study, {} here",
        ),
        ({"a": Constant(1)}, {"a": Constant(1.0)}, "parameters.a.value: 1 in the study, 1.0 here"),
        ({"a": Constant(1)}, {"a": Constant(True)}, "parameters.a.value: 1 in the study, True here"),
    ],
)
def test_spaces_that_read_alike_and_are_not_differ(stored, new, line):
    one, other = (sweep(parameters=Space.from_parameters(given)) for given in (stored, new))
    (told,) = one.difference(other)
    assert told.startswith(line)


def test_a_mapping_is_the_same_value_in_any_order():
    one, other = ({"x": 1, "y": 2}, {"y": 2, "x": 1})
    spaces = [Space.from_parameters({"a": Categorical([value])}) for value in (one, other)]
    assert sweep(parameters=spaces[0]).difference(sweep(parameters=spaces[1])) == []


@pytest.mark.parametrize(
    ("stored", "new", "line"),
    [
        (({"lr": None},), ({},), "points_to_try[0].lr: None in the study, not given here"),
        ((), ({},), "points_to_try[0]: not given in the study, {} here"),
        (({"lr": {}},), ({"lr": None},), "points_to_try[0].lr: {} in the study, None here"),
    ],
)
def test_points_that_are_drawn_differ_from_points_that_say_nothing(stored, new, line):
    space = Space.from_parameters({"lr": Categorical([None, {}])})
    made = [sweep(parameters=space, points_to_try=points) for points in (stored, new)]
    assert line in made[0].difference(made[1])


LEAVES = st.sampled_from([1, 1.0, None, {}, {"k": None}]).map(Constant)
TREES = st.one_of(
    st.dictionaries(st.sampled_from(["a.b", "b", "c"]), LEAVES, min_size=1, max_size=2),
    st.fixed_dictionaries({"a": st.dictionaries(st.sampled_from(["b", "b.c"]), LEAVES, min_size=1)}),
)


@settings(deadline=None, max_examples=60)
@given(one=TREES, other=TREES)
def test_two_sweeps_differ_exactly_where_their_spaces_do(one, other):
    try:
        spaces = [Space.from_parameters(given) for given in (one, other)]
    except SweepError:  # a name and a group that coincide
        assume(False)
    alike = json.dumps(spaces[0].to_json(), sort_keys=True) == json.dumps(spaces[1].to_json(), sort_keys=True)
    assert (sweep(parameters=spaces[0]).difference(sweep(parameters=spaces[1])) == []) == alike


HYPERBAND = sweep(run_cap=None, early_terminate=Hyperband(27))
BRACKETS = Hyperband(27, brackets=6)


@pytest.mark.parametrize(
    ("stored", "new", "extension"),
    [
        (sweep(), sweep(), None),
        (sweep(), sweep(limits=Limits(9), resources=Resources(workers=4)), None),
        (sweep(), sweep(run_cap=11), Extended(11)),
        (HYPERBAND, replace(HYPERBAND, run_cap=49), Extended(49)),
        (HYPERBAND, replace(HYPERBAND, early_terminate=BRACKETS), Extended(None, {"brackets": 6})),
        (
            replace(HYPERBAND, early_terminate=BRACKETS, run_cap=60),
            replace(HYPERBAND, early_terminate=replace(BRACKETS, brackets=8), run_cap=70),
            Extended(70, {"brackets": 8}),
        ),
    ],
)
def test_a_study_is_extended_by_run_cap_and_brackets(stored, new, extension):
    assert extension_of(stored, new) == extension


@pytest.mark.parametrize(
    ("stored", "new", "problem"),
    [
        (sweep(), sweep(seed=1, run_cap=20), "seed: 0 in the study, 1 here"),
        (sweep(), sweep(run_cap=9), "run_cap: 10 in the study, 9 here"),
        (sweep(method="grid"), sweep(method="grid", run_cap=None), "run_cap: 10 in the study, not given here"),
        (sweep(method="grid", run_cap=None), sweep(method="grid"), "run_cap: not given in the study, 10 here"),
        (HYPERBAND, replace(HYPERBAND, run_cap=48), "`run_cap` must be at least 49, got 48"),
        (
            HYPERBAND,
            replace(HYPERBAND, early_terminate=Hyperband(27, brackets=4)),
            "early_terminate.brackets: not given in the study, 4 here",
        ),
        (HYPERBAND, replace(HYPERBAND, early_terminate=Hyperband(81)), "early_terminate.max_iter: 27 in the"),
        (HYPERBAND, replace(HYPERBAND, early_terminate=SuccessiveHalving(27)), "early_terminate.type: 'hyper"),
    ],
)
def test_any_other_difference_is_no_extension(stored, new, problem):
    with pytest.raises(SweepError, match=problem):
        extension_of(stored, new)
