from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from hpsearch.errors import SweepError
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.space import Categorical, Constant, IntUniform, LogIntUniform, LogUniform, Normal, Uniform
from hpsearch.sweep.file import load_sweep, locate, sweep_from_mapping
from hpsearch.sweep.overrides import change_sweep
from hpsearch.sweep.parts import Checkpoints, Limits, Metric, Resources, Scaling
from hpsearch.sweep.sweep import Sweep

BASE = """\
trainable: package.module:function
metric:
  name: loss
method: random
run_cap: 5
parameters:
  lr:
    min: 0.1
    max: 1.0
"""
CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a sweep file; return the name that errors call it by."""
    monkeypatch.chdir(tmp_path)

    def write(content: str | bytes) -> str:
        Path("sweep.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
        return "sweep.yaml"

    return write


def problem_of(path: str, *overrides: str) -> str:
    with pytest.raises(SweepError) as caught:
        load_sweep(path, overrides)
    return str(caught.value)


def test_a_file_with_every_key_of_ours(write):
    sweep = load_sweep(
        write(
            textwrap.dedent("""\
            name: all of it
            description: no effect
            project: {has: no effect}
            entity: 2024-01-01
            program: train.py
            command: [nice, -n, 5, "${interpreter}", "${program}"]
            metric: {name: accuracy, goal: maximize}
            method: random
            early_terminate: {type: hyperband, max_iter: 81, min_iter: 3, eta: 4, variant: table, brackets: 2}
            run_cap: 50
            points_to_try:
              - {lr: 0.5, model: {depth: 2}}
              - {model.depth: 3}
            resources: {workers: 4, cpus_per_worker: 2, gpus_per_worker: 0.5, workers_per_trial: 2,
                        max_workers_per_trial: 4, elastic: false, fresh_process: true, trials_per_worker: 1}
            scaling: {batch: per_worker, lr: sqrt, warmup_epochs: 2, max_global_batch: 512, tolerance: 0.25}
            limits: {max_time: 1h30m, trial_timeout: 90, max_retries: 2, max_failures: none}
            checkpoints: {keep: all, every: 5}
            seed: 7
            parameters:
              lr: {distribution: log_uniform_values, min: 1e-4, max: 1, points: 5}
              model:
                parameters:
                  depth: {min: 1, max: 4}
            """)
        )
    )
    assert sweep.name == "all of it"
    assert (sweep.program, sweep.trainable) == ("train.py", None)
    assert sweep.command == ("nice", "-n", "5", "${interpreter}", "${program}")
    assert sweep.metric == Metric("accuracy", "maximize")
    assert sweep.early_terminate == Hyperband(81, 3, 4, "table", 2)
    assert sweep.points_to_try == ({"lr": 0.5, "model.depth": 2}, {"model.depth": 3})
    assert sweep.resources == Resources(4, 2, 0.5, 2, 4, False, True)
    assert sweep.scaling == Scaling("per_worker", "sqrt", 2.0, 512, 0.25)
    assert sweep.limits == Limits(5400, 90, 2, "none")
    assert sweep.checkpoints == Checkpoints("all", 5)
    assert (sweep.run_cap, sweep.seed, sweep.source) == (50, 7, "sweep.yaml")
    assert [p.distribution for p in sweep.parameters.parameters] == [
        LogUniform(1e-4, 1.0, points=5),
        IntUniform(1, 4),
    ]


def test_defaults_and_the_name_of_the_file(write):
    sweep = load_sweep(write(BASE))
    assert sweep.name == "sweep"
    assert sweep.metric == Metric("loss", "minimize")
    assert (sweep.resources, sweep.limits, sweep.checkpoints) == (Resources(), Limits(), Checkpoints())
    assert sweep.scaling == Scaling("global", None, 5.0, None, 0.1)
    assert (sweep.seed, sweep.max_iter, sweep.early_terminate) == (0, None, None)


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_configs_load_and_survive_the_journal(path):
    sweep = load_sweep(path)
    assert sweep.name == path.stem
    assert Sweep.from_json(json.loads(json.dumps(sweep.to_json()))) == sweep


def test_the_grid_config_has_a_logarithmic_grid():
    sweep = load_sweep(CONFIGS / "digits_grid.yaml")
    assert sweep.parameters.grid_size == 24
    rates = {sweep.parameters.grid_point(index)["lr"] for index in range(24)}
    assert rates == {0.001, 0.01, 0.1}


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("{value: 3}", Constant(3)),
        ("{value: null}", Constant(None)),
        ("{values: [a, 1, 2.5, true, null]}", Categorical(["a", 1, 2.5, True, None])),
        ("{values: [1, 2], probabilities: [0.3, 0.7]}", Categorical([1, 2], [0.3, 0.7])),
        ("{min: 1, max: 5}", IntUniform(1, 5)),
        ("{min: 1, max: 5.0}", Uniform(1, 5)),
        ("{min: 1e-4, max: 1}", Uniform(1e-4, 1)),
        ("{min: 0, max: 1, q: 0.1}", Uniform(0, 1, step=0.1)),
        ("{min: 32, max: 256, q: 32}", IntUniform(32, 256, step=32)),
        ("{distribution: log_int_uniform, min: 1, max: 64, points: 7}", LogIntUniform(1, 64, points=7)),
        ("{distribution: uniform, min: 0, max: 1, points: 3}", Uniform(0, 1, points=3)),
        ("{distribution: normal, mu: 2, q: 0.5}", Normal(2, 1, step=0.5)),
    ],
)
def test_parameters_become_distributions(write, text, distribution):
    sweep = load_sweep(write(f"{BASE}  x: {text}\n"))
    assert sweep.parameters.parameters[1].distribution == distribution


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max: 1.0", "max: 0.01", "sweep.yaml:9: parameters.lr.max: must be greater than min (0.1), got 0.01"),
        ("max: 1.0", "max: high", "sweep.yaml:9: parameters.lr.max: must be a number, got 'high'"),
        ("max: 1.0", "max: .inf", "sweep.yaml:9: parameters.lr.max: must be a finite number, got inf"),
        ("max: 1.0", "max:", "sweep.yaml:9: parameters.lr.max: must be a number, got nothing (null)"),
        (
            "max: 1.0",
            "maximum: 1.0",
            "sweep.yaml:9: parameters.lr.maximum: isn't a known key\n  did you mean max?",
        ),
        (
            "    min: 0.1\n    max: 1.0",
            "    distribution: log_uniform_values\n    min: 0\n    max: 1.0",
            "sweep.yaml:9: parameters.lr.min: must be greater than 0 on a logarithmic scale, got 0.0",
        ),
        (
            "    min: 0.1\n    max: 1.0",
            "    distribution: log_unifrom\n    min: 0",
            "sweep.yaml:8: parameters.lr.distribution: must be a known distribution, got 'log_unifrom'\n"
            "  did you mean log_uniform?",
        ),
        (
            "    min: 0.1\n    max: 1.0",
            "    values: [1, 2]\n    probabilities: [0.5, 0.4]",
            "sweep.yaml:9: parameters.lr.probabilities: must sum to 1, got 0.9",
        ),
        (
            "    min: 0.1\n    max: 1.0",
            "    values: [1, 2]\n    probabilities:\n      - 0.5\n      - many",
            "sweep.yaml:11: parameters.lr.probabilities[1]: must be a number, got 'many'",
        ),
        (
            "    min: 0.1\n",
            "",
            "sweep.yaml:7: parameters.lr.min: is required\n  add under parameters.lr:  min: 0",
        ),
        (
            "    min: 0.1\n",
            "    min: 0.1\n    sigma: 2\n",
            "sweep.yaml:9: parameters.lr.sigma: has no meaning for uniform, which takes min, max, q, points",
        ),
        ("    min: 0.1\n", "    min: 0.1\n    q: 0\n", "sweep.yaml:9: parameters.lr.q: must be greater than 0, got 0"),
        ("method: random", "metod: random", "sweep.yaml:4: metod: isn't a known key\n  did you mean method?"),
        ("method: random", "method: rndom", "sweep.yaml:4: method: must be one of random, grid, "),
        ("run_cap: 5", "run_cap: 5.0", "sweep.yaml:5: run_cap: must be an integer, got 5.0"),
        ("run_cap: 5", "run_cap: yes", "sweep.yaml:5: run_cap: must be an integer, got True"),
        ("run_cap: 5", "'': 3", "sweep.yaml:5: '': isn't a known key\n  known here: metric,"),
        ("run_cap: 5", "eta: 3", "sweep.yaml:5: eta: isn't a known key\n  it belongs under early_terminate"),
        (
            "run_cap: 5",
            "loggers: [mlflw]",
            "sweep.yaml:5: loggers[0]: ",
        ),
        (
            "run_cap: 5",
            "loggers: csv\nobservers: [csv]",
            "sweep.yaml:5: loggers: is another word for observers, which is here, too\n  keep one of them",
        ),
        ("run_cap: 5", "run_cap: 5\nrun_cap: 6", "sweep.yaml:6: run_cap: must not be repeated, got it again"),
        ("  name: loss", "  nam: loss", "sweep.yaml:3: metric.nam: isn't a known key\n  did you mean name?"),
        ("  name: loss", "  name: 3", "sweep.yaml:3: metric.name: must be a string, got 3\n  put it in quotes"),
        ("package.module:function", "train.py", "sweep.yaml:1: trainable: must be an import path such as"),
        ("run_cap: 5", "limits: {max_time: soon}", "sweep.yaml:5: limits.max_time: must be seconds or a time"),
        ("run_cap: 5", "resources: {workers: 0}", "sweep.yaml:5: resources.workers: must be at least 1, got 0"),
        ("run_cap: 5", "checkpoints: best", "sweep.yaml:5: checkpoints: must be a mapping with keys such as keep"),
        (
            "run_cap: 5",
            "run_cap: 5\npoints_to_try:\n  - {lr: 0.5}\n  - {lr: 3}",
            "sweep.yaml:8: points_to_try[1].lr: must be between 0.1 and 1.0, got 3.0",
        ),
        (
            "run_cap: 5",
            "early_terminate: {type: hyperband, max_iter: 27}\nmax_iter: 9",
            "sweep.yaml:6: max_iter: must be inside early_terminate",
        ),
        (
            "run_cap: 5",
            "early_terminate: {type: hyperband, max_iter: 9, min_iter: 27}",
            "sweep.yaml:5: early_terminate.min_iter: must be at most max_iter (9), got 27",
        ),
        (
            "run_cap: 5",
            "early_terminate: {type: hyperband, max_iter: 9, trials: 27}",
            "sweep.yaml:5: early_terminate.trials: isn't a known key\n  it has no meaning for hyperband; it belongs to",
        ),
        ("method: random", "method: grid", "sweep.yaml:7: parameters.lr.points: is required for a grid over"),
    ],
)
def test_a_mistake_is_one_error_with_file_line_and_key(write, old, new, expected):
    assert old in BASE
    message = problem_of(write(BASE.replace(old, new)))
    assert message.startswith(expected)


def test_nested_parameters_are_named_as_they_stand_in_the_file(write):
    text = BASE.replace("method: random", "method: grid") + textwrap.dedent("""\
        #
          opt:
            parameters:
              adam:
                parameters:
                  beta:
                    min: 0.5
                    max: 0.9
        """).replace("#\n", "")
    message = problem_of(write(text.replace("max: 1.0", "max: 1.0\n    points: 3")))
    key = "parameters.opt.parameters.adam.parameters.beta"
    assert message.splitlines() == [
        f"sweep.yaml:15: {key}.points: is required for a grid over a continuous parameter",
        f"  add under {key}:  points: 5",
    ]


def test_a_dotted_name_collides_with_a_group(write):
    text = f"{BASE}  m.lr: {{value: 1}}\n  m:\n    parameters:\n      lr: {{value: 2}}\n"
    assert "has the same flat name (m.lr) as another parameter" in problem_of(write(text))


def test_overrides_stand_in_for_the_file(write):
    path = write(f"{BASE}  opt:\n    parameters:\n      beta: {{min: 0.5, max: 0.9}}\n  m.lr: {{value: 1}}\n")
    sweep = load_sweep(
        path,
        [
            "run_cap=7",
            "parameters.lr.max=2e1",
            "parameters.opt.beta.max=0.8",
            "parameters.m.lr.value=[1, 2]",
            "resources.workers=3",
            "resources.workers_per_trial=2",
            "scaling.batch=per_worker",
            "early_terminate={type: successive_halving, max_iter: 9}",
            "metric.goal=maximize",
        ],
    )
    assert sweep.run_cap == 7
    assert [p.distribution for p in sweep.parameters.parameters] == [
        Uniform(0.1, 20.0),
        Uniform(0.5, 0.8),
        Constant([1, 2]),
    ]
    assert sweep.resources == Resources(3, workers_per_trial=2)
    assert sweep.scaling == Scaling("per_worker")
    assert sweep.early_terminate == SuccessiveHalving(9)
    assert sweep.metric == Metric("loss", "maximize")


def test_null_takes_an_optional_key_away(write):
    text = BASE.replace("run_cap: 5", "early_terminate: {type: hyperband, max_iter: 27}")
    sweep = load_sweep(write(text), ["early_terminate=null", "run_cap=3", "max_iter=2"])
    assert (sweep.early_terminate, sweep.run_cap, sweep.max_iter) == (None, 3, 2)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "resources.max_workers_per_trial=0",
            "sweep.yaml: --set resources.max_workers_per_trial=0: resources.max_workers_per_trial: must be at least 1",
        ),
        ("scaling.lr=fast", "sweep.yaml: --set scaling.lr=fast: scaling.lr: must be linear or sqrt or none"),
        ("run_cap=0", "sweep.yaml: --set run_cap=0: run_cap: must be at least 1, got 0"),
        ("parameters.lr.max=0", "sweep.yaml: --set parameters.lr.max=0: parameters.lr.max: must be greater"),
        ("limits.max_retires=3", "sweep.yaml: --set limits.max_retires=3: limits.max_retires: isn't a known key"),
        ("run_cap", "sweep.yaml: --set run_cap: must be KEY=VALUE"),
        ("=3", "sweep.yaml: --set =3: must be KEY=VALUE"),
        ("a..b=3", "sweep.yaml: --set a..b=3: must be KEY=VALUE"),
        ("method.x=3", "sweep.yaml: --set method.x=3: method must be a mapping, got 'random'"),
        ("run_cap=[", "sweep.yaml: --set run_cap=[:1: must be valid YAML"),
    ],
)
def test_a_wrong_override_is_named_instead_of_a_line(write, override, expected):
    assert problem_of(write(BASE), override).startswith(expected)


def test_a_later_override_wins(write):
    assert load_sweep(write(BASE), ["run_cap=7", "run_cap=8"]).run_cap == 8


def test_points_can_be_overridden_by_position(write):
    path = write(f"{BASE}points_to_try:\n  - lr: 0.5\n  - lr: 0.6\n")
    assert load_sweep(path, ["points_to_try.1.lr=0.7"]).points_to_try == ({"lr": 0.5}, {"lr": 0.7})
    assert "points_to_try must be followed by a position below 2" in problem_of(path, "points_to_try.5.lr=1")


def test_anchors_and_merge_keys_work_and_keep_their_lines(write):
    path = write(BASE + "  a: &range\n    min: 0.5\n    max: 2.0\n  b:\n    <<: *range\n    max: 1.0\n")
    assert load_sweep(path).parameters.parameters[2].distribution == Uniform(0.5, 1.0)
    path = write(BASE + "  a: &range\n    min: 0.5\n    max: 2.0\n  b:\n    <<: *range\n    max: 0.1\n")
    assert problem_of(path).startswith("sweep.yaml:15: parameters.b.max: must be greater than min (0.5)")


BOMB = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


def test_all_mistakes_of_a_file_are_told_at_once_in_the_order_of_its_lines(write):
    message = problem_of(
        write(
            textwrap.dedent("""\
            trainable: package.module:function
            metric: {nam: loss, goal: up}
            method: rndom
            run_capp: 5
            parameters:
              lr: {min: 0.1, max: 0.0}
              group:
                parameters:
                  depth: {min: one, max: 3}
                  width: {values: []}
            early_terminate: {type: hyperband, eta: 1, trials: 2}
            resources: {workers: 0, cpus_per_worker: 0.5, gpu: 1}
            limits: {max_time: soon}
            """)
        )
    )
    told = [line for line in message.splitlines() if line.startswith("sweep.yaml:")]
    assert [re.match(r"sweep.yaml:(\d+): ([\w.]+)", line).groups() for line in told] == [  # type: ignore[union-attr]
        ("2", "metric.nam"),
        ("2", "metric.goal"),
        ("3", "method"),
        ("4", "run_capp"),
        ("6", "parameters.lr.max"),
        ("9", "parameters.group.parameters.depth.min"),
        ("10", "parameters.group.parameters.width.values"),
        ("11", "early_terminate.trials"),
        ("11", "early_terminate.max_iter"),
        ("11", "early_terminate.eta"),
        ("12", "resources.gpu"),
        ("12", "resources.workers"),
        ("12", "resources.cpus_per_worker"),
        ("13", "limits.max_time"),
    ]


@pytest.mark.some_cases(5)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "sweep.yaml: must hold a sweep, but it is empty"),
        ("# only a comment\n", "sweep.yaml: must hold a sweep, but it is empty"),
        ("- 1\n", "sweep.yaml:1: must be a mapping with keys such as metric, method, parameters, got a list"),
        ("text", "sweep.yaml:1: must be a mapping"),
        (f"{BASE}---\n{BASE}", "sweep.yaml:10: must be valid YAML: a second document begins here"),
        (BASE.encode("utf-16"), "sweep.yaml:1: must be UTF-8 text, got the byte 0xff"),
        (b"a: b\nc: \xe9\n", "sweep.yaml:2: must be UTF-8 text, got the byte 0xe9"),
        ("a: b\nc: \x00\n", "sweep.yaml:2: must be text, got the character 0x00"),
        ("a: [1, 2\n", "sweep.yaml:2: must be valid YAML: while parsing a flow sequence"),
        ("a: &a [*a]\n", "sweep.yaml:1: a[0][0]: must not be nested deeper than 40 levels"),
        ("a: *b\n", "sweep.yaml:1: must be valid YAML: found undefined alias 'b'"),
        ("a: &a\n  <<: *a\n", "sweep.yaml:"),
        (BOMB, "sweep.yaml:"),
        ("[" * 5000, "sweep.yaml:1: must not be nested deeper than 40 levels"),
        ("a: " + "{b: " * 60 + "1" + "}" * 60, "sweep.yaml:1: a.b.b: must not be nested deeper than 40 levels"),
        ("on: 1\n", "sweep.yaml:1: must have strings as keys, got True; write 'on'"),
        ("a: 1\n3: 4\n", "sweep.yaml:2: must have strings as keys, got 3; write '3'"),
        ("? [a]\n: 1\n", "sweep.yaml:1: must have strings as keys, got a list of 1"),
        ("<<: 3\n", "sweep.yaml:1: must merge (<<) a mapping"),
        ("a: !!python/object:os.system {}\n", "sweep.yaml:1: a: must be plain YAML, got the tag"),
        ("a: !thing 3\n", "sweep.yaml:1: must be valid YAML: could not determine a constructor"),
        ("a: 2024-13-45\n", "sweep.yaml:1: a: must be a valid timestamp or a string in quotes"),
        ("a: !!timestamp x\n", "sweep.yaml:1: a: must be a valid timestamp or a string in quotes"),
        ("a: " + "1" * 5000, "sweep.yaml:1: a: must be a valid int or a string in quotes"),
        ("a: '" + "x" * 1_000_001 + "'", "sweep.yaml: must be a sweep file of at most 1,000,000 bytes"),
    ],
    ids=range(25),
)
def test_files_that_hold_no_sweep_are_one_error(write, content, expected):
    message = problem_of(write(content))
    assert message.startswith(expected)
    assert len(message) < 600


def test_paths_that_are_no_file_are_one_error(tmp_path):
    assert problem_of(str(tmp_path)) == f"{tmp_path}: must be a sweep file, but it is a directory"
    missing = str(tmp_path / "missing.yaml")
    assert problem_of(missing) == f"{missing}: must be a sweep file, but it doesn't exist"


def test_a_bom_and_windows_line_ends_are_fine(write):
    assert load_sweep(write(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())).run_cap == 5


def test_locate_names_the_line_of_a_key_or_of_what_is_around_it(write):
    path = write(f"{BASE}  opt:\n    parameters:\n      beta: {{min: 0.5, max: 0.9}}\n")
    assert locate(path, "metric.name") == "sweep.yaml:3"
    assert locate(path, "metric.goal") == "sweep.yaml:2"
    assert locate(path, "parameters.lr.max") == "sweep.yaml:9"
    assert locate(path, "parameters.opt.beta") == "sweep.yaml:12"
    assert locate(path, "resources.workers") == "sweep.yaml:1"
    assert locate("gone.yaml", "metric.name") == "gone.yaml"


def test_a_mapping_from_python_follows_the_same_rules():
    given = {
        "trainable": "m:f",
        "metric": {"name": "loss"},
        "method": "random",
        "run_cap": 3,
        "parameters": {"lr": {"min": 0.1, "max": 1.0}},
    }
    assert sweep_from_mapping(given).parameters.parameters[0].distribution == Uniform(0.1, 1.0)
    with pytest.raises(SweepError, match=r"^parameters\.lr\.max: must be greater than min \(0\.1\), got 0\.0"):
        sweep_from_mapping(given | {"parameters": {"lr": {"min": 0.1, "max": 0.0}}})
    with pytest.raises(SweepError, match=r"^must have strings as keys, got 1"):
        sweep_from_mapping({1: 2})


@pytest.mark.parametrize(
    "line", ["loggers: [csv, mlflow]", "observers: [csv, mlflow]", "x-all: &all [csv, mlflow]\nloggers: *all"]
)
def test_loggers_is_another_word_for_observers_and_anchors_may_be_kept(write, line):
    assert load_sweep(write(f"{BASE}{line}\n")).observers == ("csv", "mlflow")


def test_one_observer_needs_no_list(write):
    assert load_sweep(write(f"{BASE}loggers: csv\n")).observers == ("csv",)


def test_a_distribution_that_is_refused_is_told_of_and_not_its_keys(write):
    problem = problem_of(write(BASE.replace("    min: 0.1\n    max: 1.0\n", "    {distribution: beta, a: 2, b: 5}\n")))
    assert "lr.distribution: must be a known distribution, got 'beta'\n  take uniform or normal" in problem
    assert "isn't a known key" not in problem


def test_a_macro_for_a_parameter_is_refused_in_a_file_and_not_in_a_study_that_goes_on(write):
    text = """\
        method: random
        run_cap: 2
        command: [train, "--env=WORD"]
        parameters: {env: {values: [a, b]}}
        """
    found = problem_of(write(textwrap.dedent(text.replace("WORD", "${env}"))))
    assert ":3: command: must be a command that can be run: " in found
    assert "${env} is a macro, and a parameter has its name" in found
    begun = replace(load_sweep(write(textwrap.dedent(text))), command=("train", "--env=${env}"))
    assert change_sweep(begun, ["run_cap=3"]).command == begun.command


@pytest.mark.parametrize("none", ["none", "null"])
def test_none_and_null_say_the_same_of_every_setting(write, none):
    keys = ("limits.patience", "limits.max_time", "limits.max_failures", "resources.workers", "max_iter", "run_cap")
    text = f"{BASE}limits: {{patience: 3, max_time: 5, max_failures: 2}}\nresources: {{workers: 2}}\nmax_iter: 3\n"
    sweep = load_sweep(write(text), [f"{key}={none}" for key in keys])
    assert sweep.limits == Limits(max_failures="none")
    assert (sweep.resources, sweep.max_iter, sweep.run_cap) == (Resources(), None, None)
    begun = load_sweep(write(text))
    changed = change_sweep(begun, [f"{key}={none}" for key in keys if key != "max_iter"])
    assert (changed.limits, changed.resources, changed.run_cap) == (sweep.limits, sweep.resources, None)


def test_none_stays_a_word_where_it_is_one_of_several_and_where_a_text_may_be_it(write):
    assert load_sweep(write(BASE), ["scaling.lr=none"]).scaling.lr == "none"
    assert load_sweep(write(BASE), ["scaling.lr=null"]).scaling.lr is None
    assert load_sweep(write(BASE), ["name=none"]).name == "none"


def test_a_sweep_under_a_lone_key_sweep_is_that_sweep(write):
    wrapped = "x-anchors: {}\nsweep:\n" + textwrap.indent(BASE, "  ")
    assert load_sweep(write(wrapped), ["run_cap=7"]) == load_sweep(write(BASE), ["run_cap=7"])
    assert locate(write(wrapped), "metric.name") == "sweep.yaml:5"
    assert problem_of(write(wrapped.replace("min: 0.1", "min: 2"))).startswith("sweep.yaml:11: parameters.lr.max: must")
    assert "sweep.yaml:2: sweep: isn't a known key\n  put the keys" in problem_of(write(wrapped + "method: random\n"))
    without = wrapped[: wrapped.index("  parameters:")]
    assert problem_of(write(without)).startswith("sweep.yaml:2: parameters: is required\n  add at the top level:  ")
    assert sweep_from_mapping({"sweep": {"method": "random", "parameters": {"x": {"value": 1}}}}).method == "random"
