from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpsearch.errors import TrainableError
from hpsearch.trainable.macros import DEFAULT_COMMAND, check_command, check_names, expand

FLAT = {"optimizer.lr": 0.1, "nesterov": True, "frozen": False, "layers": [1, 2], "name": "a b", "none": None}
NESTED = {"optimizer": {"lr": 0.1}, "nesterov": True}


def words(tmp_path: Path, *command: str, program: str | None = "train.py") -> list[str]:
    return expand(command, program, FLAT, NESTED, tmp_path / "params.json", {"HOME": "/home/me"})


def test_the_default_command_passes_every_parameter_to_the_program(tmp_path: Path) -> None:
    assert words(tmp_path, *DEFAULT_COMMAND) == [
        "/usr/bin/env",
        sys.executable,
        "train.py",
        "--optimizer.lr=0.1",
        "--nesterov=True",
        "--frozen=False",
        "--layers=[1, 2]",
        "--name=a b",
        "--none=None",
    ]


@pytest.mark.exhaustive
def test_values_are_written_as_wandb_writes_them(tmp_path: Path) -> None:
    flat = {"flag": True, "off": False, "none": None, "mixed": [True, None, "a", 1e-05], "map": {"b": ["c"]}, "x": 0.1}
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    theirs = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in flat.items()}})
    for macro in ("args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags"):
        assert expand((f"${{{macro}}}",), None, flat, flat, tmp_path / "x", {}) == theirs[macro]
    assert "--mixed=[True, None, 'a', 1e-05]" in theirs["args"]


def test_boolean_flags_are_given_or_left_out(tmp_path: Path) -> None:
    assert words(tmp_path, "${args_no_boolean_flags}")[:3] == ["--optimizer.lr=0.1", "--nesterov", "--layers=[1, 2]"]


def test_without_hyphens_names_and_values_stand_alone(tmp_path: Path) -> None:
    assert words(tmp_path, "x", "${args_no_hyphens}")[:3] == ["x", "optimizer.lr=0.1", "nesterov=True"]


def test_json_is_one_word_or_a_file(tmp_path: Path) -> None:
    assert [json.loads(word) for word in words(tmp_path, "${args_json}")] == [NESTED]
    (path,) = words(tmp_path, "${args_json_file}")
    assert json.loads(Path(path).read_text()) == NESTED


def test_macros_of_one_word_may_stand_within_a_longer_one(tmp_path: Path) -> None:
    assert words(tmp_path, "--at=${envvar:HOME}/${program}", "${envvar:HOME}") == [
        "--at=/home/me/train.py",
        "/home/me",
    ]


def test_what_a_shell_may_know_stays_as_it_is(tmp_path: Path) -> None:
    assert words(tmp_path, "sh", "-c", "echo ${HPSEARCH_SEED} $HOME $(pwd)") == [
        "sh",
        "-c",
        "echo ${HPSEARCH_SEED} $HOME $(pwd)",
    ]


def test_what_a_value_holds_is_no_macro(tmp_path: Path) -> None:
    given = expand(("${args}", "${args_json}"), "p", {"a": "${env}"}, {"a": "${env}"}, tmp_path / "x", {})
    assert given == ["--a=${env}", '{"a": "${env}"}']


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("${arg}", "did you mean ${args}?"),
        ("${qqqqqq}", "there are env, interpreter, program, args_json"),
        ("--all=${args}", "${args} expands to several words: make it a word of its own"),
    ],
)
def test_a_macro_that_is_no_good_is_refused(word: str, says: str) -> None:
    with pytest.raises(TrainableError) as raised:
        check_command(("python", word))
    assert says in str(raised.value)


def test_a_variable_that_isnt_set_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TrainableError, match="NOT_SET isn't set"):
        words(tmp_path, "${envvar:NOT_SET}")


def test_parameters_may_be_named_as_hydra_has_them(tmp_path: Path) -> None:
    params = {"+trainer.lr": 0.1, "model/encoder": "cnn"}
    command = ("${args_no_hyphens}", "--encoder=${model/encoder}")
    check_command(command, tuple(params))
    given = expand(command, "train.py", params, params, tmp_path / "params.json", {})
    assert given == ["+trainer.lr=0.1", "model/encoder=cnn", "--encoder=cnn"]


@pytest.mark.parametrize(
    "command",
    [
        ("python", "--env=${env}"),
        ("python", "--env", "${env}"),
        ("python", "env=${env}"),
        ("sh", "-c", "python t.py ${env}"),
    ],
)
def test_a_macro_isnt_taken_for_the_parameter_of_its_name(command: tuple[str, ...]) -> None:
    check_names(command, ("lr",))
    with pytest.raises(TrainableError, match=r"\$\{env\} is a macro, and a parameter has its name"):
        check_names(command, ("lr", "env"))


def test_a_macro_where_no_parameter_is_meant_may_have_the_name_of_one() -> None:
    check_names(DEFAULT_COMMAND, ("env", "interpreter", "program", "args"))
    check_names(("${env}", "A=1", "${interpreter}", "-m", "${program}", "--lr=${lr}"), ("env", "program", "lr"))
