"""W&B's sweep files: those whose keys we have run unchanged, others say which line to change."""

from __future__ import annotations

import math
import textwrap

import pytest

from hpsearch.errors import SweepError
from hpsearch.schedulers.bands import Bands
from hpsearch.schedulers.halving import Hyperband
from hpsearch.space import Categorical, Constant, IntUniform, LogNormal, LogUniform, Normal, Uniform
from hpsearch.sweep.distributions import PARAMETER_FORMS
from hpsearch.sweep.file import SweepFile, load_sweep

WANDB = textwrap.dedent("""\
    # As W&B's users write it.
    program: train.py
    project: mine
    entity: us
    description: a sweep
    method: random
    run_cap: 30
    metric:
      name: val_loss
      goal: minimize
    early_terminate:
      type: hyperband
      max_iter: 27
    parameters:
      epochs:
        value: 10
      batch_size:
        values: [16, 32, 64]
      optimizer:
        parameters:
          lr:
            distribution: log_uniform_values
            min: 0.0001
            max: 0.1
          name:
            values: ["adam", "sgd"]
            probabilities: [0.7, 0.3]
    command:
      - ${env}
      - ${interpreter}
      - ${program}
      - ${args}
    """)


@pytest.fixture
def load(tmp_path):
    def load(text: str):
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        try:
            return load_sweep(path)
        except SweepError as error:
            return str(error).replace(f"{path}:", "sweep.yaml:")

    return load


def test_a_wandb_file_runs_unchanged(load):
    sweep = load(WANDB)
    assert sweep.program == "train.py"
    assert sweep.command == ("${env}", "${interpreter}", "${program}", "${args}")
    assert sweep.early_terminate == Hyperband(27)
    assert [(p.name, p.distribution) for p in sweep.parameters.parameters] == [
        ("epochs", Constant(10)),
        ("batch_size", Categorical([16, 32, 64])),
        ("optimizer.lr", LogUniform(0.0001, 0.1)),
        ("optimizer.name", Categorical(["adam", "sgd"], [0.7, 0.3])),
    ]


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("{distribution: constant, value: a}", Constant("a")),
        ("{distribution: categorical, values: [1]}", Categorical([1])),
        (
            "{distribution: categorical_w_probabilities, values: [1, 2], probabilities: [0, 1]}",
            Categorical([1, 2], [0, 1]),
        ),
        ("{distribution: int_uniform, min: 1, max: 9}", IntUniform(1, 9)),
        ("{distribution: uniform, min: 0, max: 1}", Uniform(0, 1)),
        ("{distribution: q_uniform, min: 0, max: 256}", Uniform(0, 256, step=1)),
        ("{distribution: q_uniform, min: 0, max: 256, q: 8}", Uniform(0, 256, step=8)),
        ("{distribution: q_uniform, min: 0, max: 1, q: 0.05}", Uniform(0, 1, step=0.05)),
        ("{distribution: log_uniform, min: -9, max: 0}", LogUniform(math.exp(-9), 1)),
        ("{distribution: q_log_uniform, min: 0, max: 5, q: 2}", LogUniform(1, math.exp(5), step=2)),
        ("{distribution: q_log_uniform, min: 3.4657, max: 5.545, q: 8}", LogUniform(math.exp(3.4657), 256, step=8)),
        ("{distribution: q_log_uniform, min: 3.467, max: 5.547, q: 8}", LogUniform(32, math.exp(5.547), step=8)),
        ("{distribution: log_uniform, min: -2.3, max: -0.1, q: 0.1}", LogUniform(0.1, math.exp(-0.1), step=0.1)),
        ("{distribution: inv_log_uniform, min: 0, max: 5}", LogUniform(math.exp(-5), 1)),
        ("{distribution: log_uniform_values, min: 0.1, max: 1}", LogUniform(0.1, 1)),
        ("{distribution: q_log_uniform_values, min: 1, max: 512, q: 2}", LogUniform(1, 512, step=2)),
        ("{distribution: inv_log_uniform_values, min: 0.1, max: 1}", LogUniform(0.1, 1)),
        ("{distribution: normal, mu: 5}", Normal(5, 1)),
        ("{distribution: normal, mu: 5, sigma: 2}", Normal(5, 2)),
        ("{distribution: q_normal, mu: 5, sigma: 2}", Normal(5, 2, step=1)),
        ("{distribution: log_normal}", LogNormal(0, 1)),
        ("{distribution: q_log_normal, mu: 3, q: 4}", LogNormal(3, 1, step=4)),
    ],
)
def test_every_distribution_of_wandb(load, text, distribution):
    sweep = load(WANDB.replace("  epochs:\n    value: 10\n", f"  x: {text}\n"))
    assert sweep.parameters.parameters[0].distribution == distribution


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "method: random",
            "method: bay",
            "sweep.yaml:6: method: must be one of random, grid, qmc, tpe, bayes, ",
        ),
        (
            "run_cap: 30\n",
            "target: 0.1\n",
            "sweep.yaml:7: target: isn't a known key\n  it belongs under metric",
        ),
        *(
            ("  goal: minimize", f"  target: {given}", f"sweep.yaml:10: metric.target: must be a {expected}")
            for given, expected in (
                (".nan", "finite number, got nan"),
                ("-.inf", "finite number, got -inf"),
                ("true", "number, got True"),
                ("low", "number, got 'low'"),
            )
        ),
        (
            "    value: 10",
            "    distribution: beta",
            "sweep.yaml:16: parameters.epochs.distribution: must be a known distribution, got 'beta'\n  take uniform",
        ),
        (
            "    value: 10",
            "    distribution: log_uniform\n    min: 0.0001\n    max: 1000.0",
            "sweep.yaml:18: parameters.epochs.max: must be an exponent between -700 and 700, got 1000.0\n"
            "  min and max of log_uniform are exponents of e; log_uniform_values takes the bounds themselves",
        ),
        (
            "    value: 10",
            "    distribution: inv_log_uniform\n    min: -800\n    max: 0",
            "sweep.yaml:17: parameters.epochs.min: must be an exponent between -700 and 700, got -800.0\n",
        ),
        (
            "run_cap: 30\n",
            "max_iter: 9\n",
            "sweep.yaml:7: max_iter: must be inside early_terminate",
        ),
    ],
)
def test_what_a_wandb_file_lacks_is_shown_as_the_line_to_add(load, old, new, expected):
    assert old in WANDB
    message = load(WANDB.replace(old, new))
    assert isinstance(message, str)
    assert message.startswith(expected)


@pytest.mark.parametrize(
    ("keys", "early"),
    [
        ("min_iter: 3", Bands(min_iter=3)),
        ("min_iter: 3\n  s: 2", Bands(min_iter=3)),
        ("min_iter: 5\n  eta: 2\n  strict: true", Bands(min_iter=5, eta=2, strict=True)),
        ("max_iter: 27\n  s: 2", Bands(last_iter=27, bands=2)),
        ("max_iter: 27\n  s: 2\n  min_iter: 4", Bands(last_iter=27, bands=2)),
        ("max_iter: 27\n  strict: false", Bands(last_iter=27)),
        ("max_iter: 27", Hyperband(27)),
        ("max_iter: 27\n  min_iter: 3", Hyperband(27, 3)),
    ],
)
def test_wandbs_hyperband_is_wandbs_rule_and_ours_is_ours(load, keys, early):
    assert load(WANDB.replace("  max_iter: 27\n", f"  {keys}\n")).early_terminate == early


def test_a_mistake_in_wandbs_hyperband_names_the_key_that_stands_there(load):
    assert load(WANDB.replace("  max_iter: 27\n", "  max_iter: 27\n  s: 0\n")).startswith(
        "sweep.yaml:14: early_terminate.s: must be at least 1, got 0"
    )
    assert load(WANDB.replace("  max_iter: 27\n", "  max_iter: 2\n  s: 2\n")).startswith(
        "sweep.yaml:13: early_terminate.max_iter: must leave a band"
    )


def test_what_else_lacks_max_iter_is_told_so_with_an_example(load):
    assert load(WANDB.replace("type: hyperband\n  max_iter: 27\n", "type: asha\n")).endswith("  max_iter: 27")


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ("  goal: minimize", "  impute: worst", "metric.impute has no effect: a failed trial always ranks last"),
        ("project: mine", "controller: {type: local}", "controller has no effect: hpsearch is the controller"),
        (
            "log_uniform_values\n        min: 0.0001",
            "log_uniform\n        min: 0.0001",
            "parameters.optimizer.lr: bounds of log_uniform are exponents of e, as at W&B: it is drawn from 1.0001 to "
            "1.1052; log_uniform_values takes the bounds themselves",
        ),
        *(
            (
                "    value: 10\n",
                f"    distribution: {kind}\n    min: {low}\n    max: {high}\n",
                f"parameters.epochs: bounds of {kind} are exponents of e, as at W&B: it is drawn from {drawn}; "
                f"{kind}_values takes the bounds themselves",
            )
            for kind, low, high, drawn in (
                ("log_uniform", 0.0001, 10.0, "1.0001 to 22026"),
                ("log_uniform", 0, 1, "1 to 2.7183"),
                ("q_log_uniform", 3.4657, 5.545, "31.999 to 255.95"),
                ("inv_log_uniform", 0.001, 0.1, "0.90484 to 0.999"),
            )
        ),
        (
            "    value: 10\n",
            "    distribution: log_normal\n    mu: 0.001\n",
            "parameters.epochs: mu of log_normal is an exponent of e, as at W&B: the median is 1.001",
        ),
        ("project: mine", "count: 4", "count has no effect: what bounds the trials of a sweep is run_cap"),
        (
            "  max_iter: 27\n",
            "  min_iter: 3\n",
            "early_terminate of type hyperband is W&B's and runs as type bands: trials until they end by themselves, "
            "of which the best 1/3 go on at 3, 9, 27, ...",
        ),
        (
            "  max_iter: 27\n",
            "  max_iter: 27\n  min_iter: 3\n",
            "early_terminate of type hyperband has min_iter and max_iter, and runs as the paper's Hyperband: without "
            "max_iter it is W&B's",
        ),
        (
            "method: random",
            "method: bayes",
            "method bayes is W&B's and runs as tpe; gp is a Gaussian process, as W&B's is",
        ),
    ],
)
def test_what_means_something_else_here_is_said_once(load, tmp_path, old, new, note):
    assert not isinstance(load(WANDB.replace(old, new)), str)
    assert SweepFile.read(tmp_path / "sweep.yaml").notes() == [note]
    load(WANDB)
    assert SweepFile.read(tmp_path / "sweep.yaml").notes() == []


@pytest.mark.parametrize(
    ("early", "note"),
    [
        (
            "min_iter: 7, max_iter: 19, s: 2",
            "early_terminate.min_iter has no effect with max_iter and s or strict, as at W&B: the first band is 2",
        ),
        ("max_iter: 27, s: 10", "early_terminate.s is 10, but below max_iter = 27 there are 3 bands"),
        ("min_iter: 3, s: 2", "early_terminate.s has no effect with min_iter, as at W&B"),
    ],
)
def test_a_key_of_wandbs_hyperband_that_has_no_effect_is_told(load, tmp_path, early, note):
    assert not isinstance(load(WANDB.replace("  max_iter: 27\n", f"  {early}\n".replace(", ", "\n  "))), str)
    assert SweepFile.read(tmp_path / "sweep.yaml").notes()[1:] == [note]
    assert not isinstance(load(WANDB.replace("  max_iter: 27\n", "  max_iter: 27\n  s: 3\n")), str)
    assert len(SweepFile.read(tmp_path / "sweep.yaml").notes()) == 1


@pytest.mark.parametrize(
    ("command", "note"),
    [
        (
            "[python, '${program}']",
            "command passes no parameters: add ${args}, unless the script reads them from wandb.config, "
            "hpsearch.current_trial() or $HPSEARCH_PARAMS",
        ),
        (
            "[python, '${program}', '${args_no_boolean_flags}']",
            "command: ${args_no_boolean_flags} leaves out optimizer.norm, flip where false: the script must have false "
            "as its default, or it trains with true",
        ),
        ("[python, '${program}', '${args}']", None),
        ("[python, '${program}', '--flip=${flip}']", None),
        ("[python, '${program}', '${args_json_file}']", None),
    ],
)
def test_parameters_that_a_command_does_not_pass_are_told(tmp_path, command, note):
    (tmp_path / "sweep.yaml").write_text(
        "program: train.py\nmethod: random\nmetric: {name: loss}\nrun_cap: 3\n"
        f"command: {command}\nparameters:\n  optimizer: {{parameters: {{norm: {{value: false}}}}}}\n"
        "  flip: {values: [true, false]}\n  up: {value: true}\n  n: {values: [0, 1]}\n"
    )
    assert SweepFile.read(tmp_path / "sweep.yaml").notes() == ([] if note is None else [note])


def test_a_value_at_a_bound_that_was_written_as_a_rounded_logarithm_may_be_tried(load):
    text = WANDB.replace("    value: 10\n", "    distribution: log_uniform\n    min: -6.9077\n    max: -2.3026\n")
    sweep = load(text + "points_to_try:\n- epochs: 0.001\n- epochs: 0.1\n")
    assert [dict(point) for point in sweep.points_to_try] == [
        {"epochs": math.exp(-6.9077)},
        {"epochs": math.exp(-2.3026)},
    ]


def test_a_metric_is_needed_where_something_goes_by_it(load):
    bare = WANDB.replace("metric:\n  name: val_loss\n  goal: minimize\n", "")
    assert load(bare).startswith("sweep.yaml:2: metric: is required where trials are terminated early")
    plain = bare.replace("early_terminate:\n  type: hyperband\n  max_iter: 27\n", "")
    assert load(plain).metric is None
    assert load(plain.replace("random", "bayes")).startswith(
        "sweep.yaml:2: metric: is required where method is bayes, which goes by it\n  add at the top level:  metric: "
    )


@pytest.mark.parametrize("name", [name for name, keys in PARAMETER_FORMS.items() if "min" in keys])
def test_the_lines_to_add_make_a_range(load, name):
    text = WANDB.replace("    value: 10\n", f"    distribution: {name}\n")
    for _ in ("min", "max"):
        line = load(text).rpartition(":  ")[-1]
        text = text.replace(f"{name}\n", f"{name}\n    {line}\n", 1)
    assert load(text).parameters.names[0] == "epochs"


def test_a_sweep_without_run_cap_has_no_bound(load):
    text = WANDB.replace("early_terminate:\n  type: hyperband\n  max_iter: 27\n", "")
    assert not load(text).unbounded
    assert load(text.replace("run_cap: 30\n", "")).unbounded


def test_a_target_means_what_it_means_there(load):
    sweep = load(WANDB.replace("  goal: minimize", "  goal: minimize\n  target: 1"))
    assert sweep.metric.target == 1.0
    assert load(WANDB).metric.target is None


WANDB_BAYES = textwrap.dedent("""\
    # After the first example of W&B's documentation, "Define a sweep configuration".
    program: train.py
    name: sweepdemo
    method: bayes
    metric:
      goal: minimize
      name: validation_loss
    parameters:
      learning_rate:
        min: 0.0001
        max: 0.1
      batch_size:
        values: [16, 32, 64]
      epochs:
        values: [5, 10, 15]
      optimizer:
        values: ["adam", "sgd"]
    """)


def test_wandbs_bayes_runs_unchanged(load):
    sweep = load(WANDB_BAYES)
    assert (sweep.method, sweep.searcher.known_as, sweep.run_cap, sweep.unbounded) == ("bayes", "tpe", None, True)
    assert sweep.parameters.names == ("learning_rate", "batch_size", "epochs", "optimizer")


@pytest.mark.parametrize("name", ["model/encoder", "+trainer.lr", "++a"])
def test_parameters_may_be_named_as_hydra_has_them(load, name):
    sweep = load(WANDB_BAYES.replace("batch_size:", f"{name}:"))
    assert name in sweep.parameters.names


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("${epochs}", None),
        ("--epochs=${epochs}", None),
        ("--name=run-${optimizer.lr}", None),
        ("hydra.run.dir=runs/${run_name}", None),
        ("echo ${HOME}", None),
        ("${args_no_equals}", None),
        ("--counts=${counts}", "`command` has --counts=${counts}, and ${counts} is no macro and no parameter"),
        ("${interpereter}", "did you mean ${interpreter}?"),
        ("--epochs=${epoch}", "did you mean ${epochs}?"),
    ],
)
def test_macros_are_replaced_or_refused_wherever_they_stand(load, word, problem):
    found = load(WANDB.replace("  - ${args}\n", f"  - '{word}'\n"))
    if problem is None:
        assert word in found.command
    else:
        assert isinstance(found, str)
        assert ": command: " in found
        assert problem in found
