"""What the words of several commands share: how a command is added, and what stands for numbers and studies."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

__all__ = [
    "Commands",
    "add_command",
    "add_format",
    "add_study_command",
    "add_trial_command",
    "add_weights",
    "comma_list",
    "function_at",
    "number",
    "positive",
    "target",
]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_NEWEST = "(default: the newest study in runs)"


def add_command(commands: Commands, name: str, place: str, text: str) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        commands: Those of the parser.
        name: Its word.
        place: The function that carries it out, as `module:function` of `hpsearch.cli`; the module is imported when
            the command is given, because what another command needs may take long to import.
        text: What it does.
    """
    command = commands.add_parser(name, help=text)
    command.set_defaults(command=place)
    return command


def function_at(place: str) -> Callable[[argparse.Namespace], int]:
    """Give the function that carries a command out, which answers its exit code."""
    module, _, name = place.partition(":")
    function: Callable[[argparse.Namespace], int] = getattr(import_module(f"hpsearch.cli.{module}"), name)
    return function


def add_study_command(
    commands: Commands, name: str, place: str, text: str, newest: bool = False
) -> argparse.ArgumentParser:
    """Add a command on a study; with `newest` its directory may be left out."""
    command = add_command(commands, name, place, text)
    if newest:
        command.add_argument("dir", type=_directory, nargs="?", metavar="DIR", help=_NEWEST)
    else:
        command.add_argument("dir", type=Path, metavar="DIR")
    return command


def add_trial_command(commands: Commands, name: str, place: str, text: str, default: str) -> argparse.ArgumentParser:
    """Add a command on a trial of a study, of which each may be left out; `default` says what no trial means."""
    command = add_study_command(commands, name, place, text, newest=True)
    command.add_argument("trial", type=number, nargs="?", metavar="TRIAL", help=default)
    return command


def add_format(command: argparse.ArgumentParser, *formats: str) -> None:
    """Add `--format`; a table is the default."""
    command.add_argument("--format", choices=("table", *formats), default="table")


def _directory(text: str) -> Path:
    """Read a directory's path; of `./16` the dot says that 16 is no trial, which a `Path` doesn't keep."""
    path = Path(text)
    return path.absolute() if str(path).isdecimal() and not text.isdecimal() else path


def add_weights(command: argparse.ArgumentParser, text: str) -> None:
    """Add `--weights`."""
    command.add_argument("--weights", type=_weights, metavar="METRIC=WEIGHT,...", help=text)


def _weights(given: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for item in given.split(","):
        name, _, weight = (part.strip() for part in item.rpartition("="))
        if name in weights:
            raise argparse.ArgumentTypeError(f"must name each metric once, got {name} again")
        try:
            weights[name] = float(weight)
        except ValueError:
            name = ""
        if not name:
            raise argparse.ArgumentTypeError(f"must be METRIC=WEIGHT, such as accuracy=1,latency_ms=0.01, got {item!r}")
    return weights


def comma_list(
    command: argparse.ArgumentParser, name: str, kind: Callable[[str], object], metavar: str, text: str
) -> None:
    """Add an option that takes several values with commas between them."""

    def listed(given: str) -> list[object]:
        return [kind(item.strip()) for item in given.split(",")]

    command.add_argument(name, type=listed, metavar=f"{metavar},...", help=text)


def number(text: str) -> int:
    """Read a whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, such as that of a trial, got {text!r}")
    return int(text)


def target(text: str) -> Path:
    """Read where something is to be written."""
    if not text:
        raise argparse.ArgumentTypeError("must be the name of a folder or a file, got ''")
    return Path(text)


def positive(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)
