"""Check a trainable before a backend is started, without running any of its code."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpsearch.config.checks import InvalidKey
from hpsearch.config.import_paths import check_importable, check_named
from hpsearch.errors import TrainableError
from hpsearch.schedulers.bands import Bands
from hpsearch.sweep.sweep import Sweep
from hpsearch.trainable.macros import expand
from hpsearch.trainable.trainables import class_of
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.own_files import MODULE_OPTIONS, module_files

_ENV = "/usr/bin/env"


def check_trainable(job: Job) -> None:
    """Check that a script and its interpreter exist, or the module of an import path.

    Only for workers of this machine: a cluster's nodes may have files that this machine lacks.

    Raises:
        TrainableError: A file or module is missing.
    """
    if isinstance(job.trainable, CommandLine):
        started, here = job.trainable.directory, placed(job.trainable)
        try:
            check_program(here)
            _check_command(here)
        except TrainableError as error:
            if here.directory == started:
                raise
            raise TrainableError(
                f"{error}. {started}, where the sweep was started, is gone: resume in the folder where it lies now",
                error.key,
            ) from None
    elif isinstance(job.trainable, str):
        check_importable(job.trainable, "trainable", TrainableError, job.search_path)


def missing_here(trainable: str | CommandLine, search_path: Sequence[str]) -> str | None:
    """Return what is missing of a trainable on this machine, without running any of its code."""
    try:
        if isinstance(trainable, CommandLine):
            check_program(trainable)
            _check_command(trainable)
        else:
            check_named(trainable, "trainable", TrainableError, search_path)
    except TrainableError as error:
        return str(error)
    return None


def is_class(trainable: object, search_path: Sequence[str]) -> bool:
    """Return whether a trainable is a class, without running any of its code."""
    if not isinstance(trainable, str):
        return class_of(trainable) is not None and not getattr(trainable, "simulated", False)
    module, _, name = trainable.partition(":")
    files = module_files(module, [*search_path, *sys.path], module.partition(".")[0])
    try:
        text = files[-1].read_text("utf-8", "replace") if files else ""
    except OSError:
        return False
    match = re.search(rf"^class {re.escape(name)}\b(.*)", text, re.MULTILINE)
    return match is not None and not re.search(r"\b(Curves|Steps)\b", match[1])  # simulations know their own ends


def check_end(sweep: Sweep, trainable: object, search_path: Sequence[str]) -> None:
    """Check that a sweep says how many iterations a class is stepped.

    Args:
        sweep: The sweep.
        trainable: A function or class, or its import path; None: what the sweep names.
        search_path: Folders in which its module is searched for.

    Raises:
        InvalidKey: The sweep doesn't set a number of iterations.
    """
    trainable = sweep.trainable if trainable is None else trainable
    known = sweep.iterations is not None or sweep.resource is not None
    if known or trainable is None or not is_class(trainable, search_path):
        return
    problem = f"is required: the trainable {sweep.trainable} is a class, which is stepped until there"
    early = sweep.early_terminate
    if not isinstance(early, Bands):
        raise InvalidKey(("max_iter",), problem, add=((), "max_iter: 27"))
    settings = {"type": "bands", "max_iter": early.last_iter or 27}
    settings |= {key: value for key, value in early.to_json().items() if value not in (None, False, "bands")}
    written = ", ".join(f"{key}: {value}" for key, value in settings.items())
    problem += "; early_terminate ends none here, as W&B's hyperband doesn't with s or strict, or without max_iter"
    raise InvalidKey(("max_iter",), problem, f"write early_terminate: {{{written}}}")


def placed(command: CommandLine) -> CommandLine:
    """Set the folder that a script runs in: where the sweep was started or, if that is gone, the current one."""
    return command if Path(command.directory).is_dir() else replace(command, directory=str(Path.cwd()))


def check_program(command: CommandLine) -> None:
    """Check that the script exists, if its folder does and the command uses it as a file.

    Raises:
        TrainableError: The script doesn't exist. The message names the file with the most similar name.
    """
    folder, program = Path(command.directory), command.program
    if program is None or not folder.is_dir() or (folder / program).exists() or not _is_taken_for_file(command):
        return
    beside = (folder / program).parent
    names = [entry.name for entry in beside.iterdir()] if beside.is_dir() else []
    nearest = difflib.get_close_matches(Path(program).name, names, n=1)
    hint = f" (did you mean {str(Path(program).with_name(nearest[0]))!r}?)" if nearest else ""
    raise TrainableError(f"`program` must be a file, but there is no {program!r} in {folder}{hint}", "program")


def _is_taken_for_file(command: CommandLine) -> bool:
    """Return whether the program must be a file: not with `python -m package.module` or as a name on PATH."""
    argv = [word for word in command.command if word not in ("${env}", _ENV)]
    begins = argv[:1] == ["${program}"] and command.program is not None and "/" not in command.program
    if begins and shutil.which(str(command.program)) is not None:
        return False
    before = [argv[index - 1] for index, word in enumerate(argv) if index and "${program}" in word]
    return not before or not all(word in MODULE_OPTIONS for word in before)


def _check_command(command: CommandLine) -> None:
    argv = list(command.command[:2])
    if any(word.startswith("${args") for word in argv[:1]):
        return
    argv = expand([word for word in argv if "${args" not in word], command.program, {}, {}, Path(), os.environ)
    first = argv[1] if argv[0] == _ENV and len(argv) > 1 and argv[1][0] != "-" and "=" not in argv[1] else argv[0]
    # A path is relative to the script's folder; a plain name is searched for on PATH.
    executable = shutil.which(Path(command.directory, first)) if "/" in first else shutil.which(first)
    if executable is not None:
        return
    where = f"in {command.directory}" if "/" in first else "on PATH"
    there = "/" in first and Path(command.directory, first).is_file()
    problem = f"may not be executed: chmod +x {first}" if there else f"isn't there ({where})"
    raise TrainableError(f"`command` must begin with a program that runs, but {first!r} {problem}", "command")
