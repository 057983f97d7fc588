"""Macros of a sweep's `command`, as in W&B sweeps."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpsearch.errors import TrainableError

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
"""Default of a sweep's `command`."""

_ONE_WORD = ("env", "interpreter", "program", "args_json", "args_json_file")
_MANY_WORDS = (
    "args",
    "args_no_equals",
    "args_no_hyphens",
    "args_no_boolean_flags",
    "args_append_hydra",
    "args_override_hydra",
)
MACROS = (*_ONE_WORD, *_MANY_WORDS)
"""Names of macros, except `${envvar:NAME}`."""

_VARIABLE = "envvar:"
_MACRO = re.compile(r"\$\{(envvar:[^}]*|[\w./+-]+)\}")
_OTHERS = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=|.*\s")
"""Matches words in which another program may expand `${NAME}`: a Hydra override `key=...`, or a shell command."""


def check_command(command: Sequence[str], parameters: Collection[str] = ()) -> None:
    """Check the macros of a command.

    A macro that expands to several words must be a separate word. `${NAME}` is replaced by the value of the parameter
    NAME. An unknown `${NAME}` is kept unchanged in a Hydra override, such as `run.dir=${now}`, and in a word with
    spaces, which is for a shell.

    Args:
        command: Words with macros.
        parameters: Flat names of the parameters.

    Raises:
        TrainableError: A macro is unknown, or part of a word although it expands to several.
    """
    names = (*MACROS, *parameters)
    for word in command:
        for name in _MACRO.findall(word):
            alone = word == f"${{{name}}}"
            if name in _MANY_WORDS and not alone:
                raise TrainableError(
                    f"`command` has {word!r}, but ${{{name}}} expands to several words: make it a word of its own",
                    "command",
                )
            if name not in names and not name.startswith(_VARIABLE) and (alone or not _OTHERS.match(word)):
                nearest = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean ${{{nearest[0]}}}?" if nearest else f"there are {', '.join(MACROS)}, envvar:NAME"
                problem = f"`command` has {word}, and ${{{name}}} is no macro and no parameter: {hint}"
                raise TrainableError(problem, "command")


def check_names(command: Sequence[str], parameters: Collection[str]) -> None:
    """Check that no macro is used where a parameter of the same name could be meant, as in `--env=${env}`.

    A separate word that is not the value of an option is always the macro.

    Args:
        command: Words with macros.
        parameters: Flat names of the parameters.

    Raises:
        TrainableError: It is ambiguous whether the macro or the parameter is meant.
    """
    for before, word in itertools.pairwise(("", *command)):
        for name in _MACRO.findall(word):
            valued = word != f"${{{name}}}" or before.startswith("--")
            if valued and name in _ONE_WORD and name in parameters:
                raise TrainableError(
                    f"`command` has {word!r}, but ${{{name}}} is a macro, and a parameter has its name: "
                    "rename the parameter, or pass it by ${args}",
                    "command",
                )


def expand(
    command: Sequence[str],
    program: str | None,
    flat: Mapping[str, Any],
    nested: Mapping[str, Any],
    json_file: Path,
    environment: Mapping[str, str],
) -> list[str]:
    """Return the words of the command with macros expanded.

    Values are written in Python's notation, as W&B does: `True`, `None`, `['a', 1]`. Only `${args_json}` is JSON.

    Args:
        command: Words with macros.
        program: The sweep's `program`.
        flat: Flat names to values, for `--optimizer.lr=0.1`.
        nested: Nested params, for `${args_json}`.
        json_file: The file to write if the command contains `${args_json_file}`.
        environment: Environment variables, for `${envvar:NAME}`.

    Raises:
        TrainableError: See `check_command`; or an environment variable is not set.
    """
    check_command(command, flat)
    meanings = {
        **{name: str(value) for name, value in flat.items()},
        "env": "/usr/bin/env",
        "interpreter": sys.executable,
        "args_json": json.dumps(nested),
        "args_json_file": str(json_file),
    }
    if program is not None:
        meanings["program"] = program
    if any("${args_json_file}" in word for word in command):
        json_file.write_text(meanings["args_json"], "utf-8")
    many = {
        "${args}": [f"--{name}={value}" for name, value in flat.items()],
        "${args_no_equals}": [word for name, value in flat.items() for word in (f"--{name}", str(value))],
        "${args_append_hydra}": [f"+{name}={value}" for name, value in flat.items()],
        "${args_override_hydra}": [f"++{name}={value}" for name, value in flat.items()],
        "${args_no_hyphens}": [f"{name}={value}" for name, value in flat.items()],
        "${args_no_boolean_flags}": [
            f"--{name}" if value is True else f"--{name}={value}" for name, value in flat.items() if value is not False
        ],
    }

    def meaning(macro: re.Match[str]) -> str:
        if macro[1].startswith(_VARIABLE):
            return _variable(macro[1].removeprefix(_VARIABLE), environment)
        return meanings.get(macro[1], macro[0])

    argv: list[str] = []
    for word in command:
        argv += many[word] if word in many else [_MACRO.sub(meaning, word)]
    return argv


def _variable(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise TrainableError(
            f"`command` has ${{envvar:{name}}}, but {name} isn't set where the trial runs: "
            "set it there, or take it out of `command`",
            "command",
        )
    return environment[name]
