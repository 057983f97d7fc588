"""Several metrics that decide, and constraints on outcomes, in sweep files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hpsearch.errors import SweepError
from hpsearch.objective import Metric
from hpsearch.schedulers import KNOWN as SCHEDULERS
from hpsearch.searchers import KNOWN as SEARCHERS
from hpsearch.space import Space, Uniform
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.overrides import change_sweep
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.sweep_schema import validator

HEAD = """\
method: random
trainable: m:f
run_cap: 9
max_iter: 3
parameters: {x: {min: 0.0, max: 1.0}, y: {min: 0.0, max: 1.0}}
"""
LINES = HEAD.count("\n")
TWO = "metric:\n- {name: loss}\n- {name: acc, goal: maximize}\n"


def loaded(folder: Path, text: str, *overrides: str) -> Sweep:
    (folder / "s.yaml").write_text(HEAD + text)
    return load_sweep(folder / "s.yaml", overrides)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(SweepError) as caught:
        loaded(folder, text, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_a_list_of_goals_and_constraints_is_read(tmp_path: Path) -> None:
    sweep = loaded(
        tmp_path,
        TWO.replace("loss}", "loss, target: 1, reference: 5}")
        + "outcome_constraints:\n- ms<=2e1\n- ' size  >= 3 '\n- loss <= .5\n- ms <= 20.0\n",
    )
    assert sweep.metric == (Metric("loss", target=1, reference=5), Metric("acc", "maximize"))
    assert sweep.outcome_constraints == ("ms <= 20", "size >= 3", "loss <= 0.5")
    assert sweep.objective.names == ("loss", "acc", "ms", "size")
    one = loaded(tmp_path, "metric: [{name: loss}]\noutcome_constraints: ms <= 20\n")
    assert one.metric == Metric("loss")
    assert one.outcome_constraints == ("ms <= 20",)
    assert loaded(tmp_path, "metric: {name: loss}\noutcome_constraints: []\n").outcome_constraints == ()
    assert not loaded(tmp_path, "metric: {name: loss}\noutcome_constraints:\n").objective.joint


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("metric: []", 1, "metric: must hold at least one metric, got none"),
        ("metric: loss", 1, "metric: must be a mapping"),
        ("metric:\n- loss\n- acc", 2, "metric[0]: must be a mapping"),
        ("metric:\n- {name: a}\n- {goal: maximize}", 3, "metric[1].name: is required"),
        ("metric:\n- {name: a}\n- {name: b, gaol: maximize}", 3, "metric[1].gaol: "),
        ("metric:\n- {name: a}\n- name: b\n  goal: up", 4, "metric[1].goal: must be"),
        ("metric:\n- {name: a}\n- name: b\n  target: far", 4, "metric[1].target: must be a number, got 'far'"),
        ("metric:\n- {name: a}\n- name: b\n  reference: .nan", 4, "metric[1].reference: must be a finite number"),
        ("metric:\n- {name: a}\n- {name: b}\n- name: a", 4, "metric[2].name: must be another one than those before it"),
        ("metric:\n- {name: a}\n- name: b\n  scope: best", 4, "metric[1].scope: must be last where several metrics"),
        ("metric: {name: a, reference: 3}", 1, "metric.reference: has a meaning only where several metrics decide"),
        ("metric:\n- name: a\n  reference: 3", 3, "metric[0].reference: has a meaning only where several"),
        ("metric: {name: a}\noutcome_constraints: {ms: 3}", 2, "outcome_constraints: must be a list"),
        ("metric: {name: a}\noutcome_constraints: 3", 2, "outcome_constraints: must be a list"),
        (
            "metric: {name: a}\noutcome_constraints: ms",
            2,
            "outcome_constraints.0: must be a reported metric, <= or >=",
        ),
    ],
)
def test_each_mistake_is_told_with_its_line_and_key(tmp_path: Path, text: str, line: int, told: str) -> None:
    assert refusal(tmp_path, text + "\n").startswith(f"s.yaml:{LINES + line}: {told}")


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        ("ms < 20", "write <= or >= for <"),
        ("ms > 20", "write <= or >= for >"),
        ("ms = 20", "write <= or >= for ="),
        ("ms == 20", "write <= or >= for =="),
        ("20 >= ms", "write the metric first"),
        ("1 <= 2", "write the metric first"),
        ("1 <= ms <= 2", "write two constraints for two bounds"),
        ("ms <= fast", "the bound must be a finite number"),
        ("ms <= inf", "the bound must be a finite number"),
        ("ms >= nan", "the bound must be a finite number"),
        ("ms <=", "must be a reported metric, <= or >=, and a number"),
        ("<= 20", "must be a reported metric, <= or >=, and a number"),
        ("ms 20", "must be a reported metric, <= or >=, and a number"),
        ("", "must be one line of text, got ''"),
        (20, "must be a string, got 20"),
        (None, "must be a string, got"),
        ("ms >= 21", "must leave a value of ms that keeps all constraints, got ms >= 21"),
    ],
)
def test_each_wrong_constraint_is_told_with_its_line(tmp_path: Path, constraint: object, told: str) -> None:
    text = f"metric: {{name: a}}\noutcome_constraints:\n- ms <= 20\n- {json.dumps(constraint)}\n"
    problem = refusal(tmp_path, text)
    assert problem.startswith(f"s.yaml:{LINES + 4}: outcome_constraints[1]: ")
    assert told in problem


def test_bounds_that_meet_leave_a_value(tmp_path: Path) -> None:
    sweep = loaded(tmp_path, "metric: {name: a}\noutcome_constraints: [ms <= 20, ms >= 20, ms >= 3]\n")
    assert len(sweep.objective.constraints) == 3


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    problem = refusal(tmp_path, "metric:\n- {name: a, goal: up}\n- {name: b, target: x}\noutcome_constraints: [3]\n")
    assert [line.split(": ")[1] for line in problem.splitlines() if line.startswith("s.yaml:")] == [
        "metric[0].goal",
        "metric[1].target",
        "outcome_constraints[0]",
    ]


def test_set_reaches_into_the_list(tmp_path: Path) -> None:
    sweep = loaded(tmp_path, TWO, "metric.0.goal=maximize", "metric.1.reference=-2")
    assert sweep.metric == (Metric("loss", "maximize"), Metric("acc", "maximize", reference=-2))
    assert loaded(tmp_path, TWO, "metric={name: loss}").metric == Metric("loss")
    assert loaded(tmp_path, TWO, "outcome_constraints=[ms <= 2]").outcome_constraints == ("ms <= 2",)
    assert "--set metric.1.goal=up: metric[1].goal: must be" in refusal(tmp_path, TWO, "metric.1.goal=up")
    for wrong in ("metric.2.goal=maximize", "metric.goal=maximize", "metric.x.goal=maximize"):
        assert wrong in refusal(tmp_path, TWO, wrong)


def test_a_study_takes_targets_and_references_of_each_goal(tmp_path: Path) -> None:
    sweep = loaded(tmp_path, TWO)
    changed = change_sweep(sweep, ["metric.1.reference=5", "metric.0.target=0.5", "metric.1.target=null"])
    assert changed.metric == (Metric("loss", target=0.5), Metric("acc", "maximize", reference=5))
    assert sweep.difference(changed) == []
    for wrong in ("metric.target=1", "metric.1.scope=best", "metric.2.target=1", "metric.1.name=f1"):
        with pytest.raises(SweepError, match=r"takes run_cap.*metric.0.target, metric.0.reference, metric.1.target"):
            change_sweep(sweep, [wrong])
    one = loaded(tmp_path, "metric: {name: loss}\n")
    with pytest.raises(SweepError, match=r"this study has begun and takes (?!.*reference)"):
        change_sweep(one, ["metric.reference=1"])


OBJECTIVES: dict[str, dict[str, Any]] = {
    "metric": {"metric": (Metric("loss"), Metric("acc", "maximize"))},
    "outcome_constraints": {"outcome_constraints": ("ms <= 20",)},
}
TAKERS = {"tpe", "bayes", "bohb", "gp", "nsga2", "evolution"}
UNLEARNED = {"random", "grid", "qmc"}

FOREIGN = [
    ("NSGAIISampler", True, True),
    ("NSGAIIISampler", True, True),
    ("TPESampler", True, True),
    ("GPSampler", True, True),
    ("RandomSampler", True, False),
    ("CmaEsSampler", False, False),
]
SPACE = Space.from_parameters({"x": Uniform(0.0, 1.0, step=0.25), "y": Uniform(0.0, 1.0, step=0.25)})


def of_method(method: str, **changes: Any) -> Sweep:
    given: dict[str, Any] = {
        "method": method,
        "parameters": SPACE,
        "early_terminate": None,
        "max_iter": 9,
        "run_cap": 9,
    }
    return sweep_of(**given, **changes)


@pytest.mark.parametrize("key", OBJECTIVES)
@pytest.mark.parametrize("method", [name for name in SEARCHERS if name != "pbt"])
def test_a_method_takes_them_or_names_others(method: str, key: str) -> None:
    if method in TAKERS | UNLEARNED:
        assert of_method(method, **OBJECTIVES[key]).objective.joint
        return
    with pytest.raises(SweepError) as caught:
        of_method(method, **OBJECTIVES[key])
    problem = str(caught.value)
    assert problem.startswith(f"{key}: must be ")
    assert f"where method is {method}, which learns from one number" in problem
    for other in TAKERS:
        assert other in problem


@pytest.mark.parametrize(("sampler", "goals", "constraints"), FOREIGN)
def test_a_sampler_of_optunas_takes_them_or_the_key_is_named(sampler: str, goals: bool, constraints: bool) -> None:
    for key, takes in zip(OBJECTIVES, (goals, constraints), strict=True):
        if takes:
            assert of_method(f"optuna.samplers:{sampler}", **OBJECTIVES[key]).objective.joint
        else:
            with pytest.raises(
                SweepError, match=rf"(?s)^{key}: must be .* where method is optuna.samplers:{sampler}.*tpe"
            ):
                of_method(f"optuna.samplers:{sampler}", **OBJECTIVES[key])


RUNGS = {"hyperband", "successive_halving", "asha"}
ABLE = {"metric": RUNGS, "outcome_constraints": RUNGS | {"pbt"}}


@pytest.mark.parametrize("key", OBJECTIVES)
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_takes_them_or_names_others(tmp_path: Path, kind: str, key: str) -> None:
    early = {"type": kind, **({"max_iter": 9} if kind != "absent" else {})}
    if kind == "bands":
        early["min_iter"] = 1
    sweep = yaml.safe_load(HEAD) | {"metric": {"name": "loss"}, "early_terminate": early}
    del sweep["max_iter"]
    sweep["run_cap"] = 30
    if key == "metric":
        sweep["metric"] = [{"name": "loss"}, {"name": "acc"}]
    else:
        sweep["outcome_constraints"] = ["ms <= 20"]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(sweep))
    if kind in ABLE[key]:
        assert load_sweep(tmp_path / "s.yaml").objective.joint
        return
    with pytest.raises(SweepError) as caught:
        load_sweep(tmp_path / "s.yaml")
    problem = str(caught.value)
    assert f": {key}: must be " in problem
    assert f"early_terminate is of type {kind}, which compares single numbers" in problem
    assert all(other in problem for other in ABLE[key])


def test_pbt_as_a_method_compares_single_numbers_that_keep_constraints() -> None:
    given: dict[str, Any] = {"method": "pbt", "early_terminate": None, "max_iter": 9, "run_cap": None}
    with pytest.raises(SweepError, match=r"^metric: must be one metric where early_terminate is of type pbt"):
        sweep_of(**given, **OBJECTIVES["metric"])
    assert sweep_of(**given, **OBJECTIVES["outcome_constraints"]).objective.joint


def test_a_sweep_comes_back_from_json() -> None:
    for changes in (*OBJECTIVES.values(), OBJECTIVES["metric"] | OBJECTIVES["outcome_constraints"], {}):
        sweep = sweep_of(**changes)
        given = json.loads(json.dumps(sweep.to_json()))
        assert Sweep.from_json(given) == sweep
        assert Sweep.from_json(given).objective == sweep.objective
        assert Sweep.from_json(given).to_json() == sweep.to_json()


def test_a_sweep_of_the_version_before_comes_back_and_differs_in_nothing() -> None:
    sweep = sweep_of(metric=Metric("loss", "maximize", target=3.0))
    given = json.loads(json.dumps(sweep.to_json()))
    del given["outcome_constraints"], given["metric"]["reference"]
    assert Sweep.from_json(given) == sweep
    assert Sweep.from_json(given).difference(sweep) == []


def test_what_differs_is_told_by_goal() -> None:
    one = sweep_of(**OBJECTIVES["metric"], **OBJECTIVES["outcome_constraints"])
    assert one.difference(one) == []
    swapped = sweep_of(metric=tuple(reversed(OBJECTIVES["metric"]["metric"])), outcome_constraints=("ms <= 20",))
    assert [line.split(":")[0] for line in one.difference(swapped)] == [
        f"metric[{place}].{key}" for place in (0, 1) for key in ("name", "goal")
    ]
    assert one.difference(sweep_of(**OBJECTIVES["metric"], outcome_constraints=("ms <= 21",))) == [
        "outcome_constraints: ['ms <= 20'] in the study, ['ms <= 21'] here"
    ]
    assert one.difference(sweep_of(**OBJECTIVES["metric"])) != []
    fewer = sweep_of(outcome_constraints=("ms <= 20",)).difference(one)
    assert any(line.startswith("metric[1].name: not given in the study, 'acc' here") for line in fewer)
    targets = tuple(Metric(goal.name, goal.goal, target=1.0, reference=2.0) for goal in one.objective.goals)
    assert one.difference(sweep_of(metric=targets, outcome_constraints=("ms <= 20",))) == []


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    "text",
    [
        TWO,
        "metric: [{name: loss, reference: 3}, {name: acc, target: 2}]\noutcome_constraints: ms <= 20\n",
        "metric: [{name: loss}]\noutcome_constraints: [ms <= 20, size >= 3]\n",
        "metric: {name: loss}\noutcome_constraints: []\n",
        "metric: {name: loss}\noutcome_constraints:\n",
    ],
)
def test_the_schema_takes_what_the_reader_takes(tmp_path: Path, text: str) -> None:
    loaded(tmp_path, text)
    validator().validate(yaml.safe_load(HEAD + text))


@pytest.mark.parametrize(
    "text",
    [
        "metric: []",
        "metric: [loss]",
        "metric: [{name: a, gaol: maximize}]",
        "metric: {name: a}\noutcome_constraints: 3",
    ],
)
def test_the_schema_refuses_what_is_of_another_form(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, text + "\n")
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(yaml.safe_load(HEAD + text))
