"""Arguments that several commands share, and types of numbers and studies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpsearch.config.strict_json import parse_json
from hpsearch.errors import HpsearchError

__all__ = [
    "add_format",
    "add_set",
    "add_study",
    "add_sweep",
    "add_trial",
    "add_weights",
    "comma_list",
    "number",
    "positive",
    "read_json",
    "target",
]

_NEWEST = "(default: the newest study in runs)"


def add_study(command: argparse.ArgumentParser, newest: bool = False) -> None:
    """Add `DIR`, a study's directory; with `newest` it may be left out."""
    if newest:
        command.add_argument("dir", type=_directory, nargs="?", metavar="DIR", help=_NEWEST)
    else:
        command.add_argument("dir", type=Path, metavar="DIR")


def add_trial(command: argparse.ArgumentParser, default: str) -> None:
    """Add `DIR` and `TRIAL`, both optional; `default` describes a missing trial."""
    add_study(command, newest=True)
    command.add_argument("trial", type=number, nargs="?", metavar="TRIAL", help=default)


def add_sweep(command: argparse.ArgumentParser) -> None:
    """Add `SWEEP.yaml`, and `--set`."""
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    add_set(command, "change a key of the sweep, e.g. --set early_terminate.max_iter=9; may be repeated")


def add_set(command: argparse.ArgumentParser, text: str) -> None:
    """Add `--set`."""
    command.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=text)


def add_format(command: argparse.ArgumentParser, *formats: str) -> None:
    """Add `--format`; a table is the default."""
    command.add_argument("--format", choices=("table", *formats), default="table")


def _directory(text: str) -> Path:
    """Parse a directory's path; `./16` isn't trial 16, but a `Path` drops the dot."""
    path = Path(text)
    return path.absolute() if str(path).isdecimal() and not text.isdecimal() else path


def add_weights(command: argparse.ArgumentParser, text: str) -> None:
    """Add `--weights`."""
    command.add_argument("--weights", type=_weights, metavar="METRIC=WEIGHT,...", help=text)


def _weights(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for item in text.split(","):
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
    command: argparse.ArgumentParser, name: str, kind: Callable[[str], object], metavar: str, help_text: str
) -> None:
    """Add an option that takes several values with commas between them."""

    def listed(text: str) -> list[object]:
        return [kind(item.strip()) for item in text.split(",")]

    command.add_argument(name, type=listed, metavar=f"{metavar},...", help=help_text)


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


def read_json(path: Path, error_type: type[HpsearchError]) -> tuple[str, Any]:
    """Return what a file is called in a message, and the JSON in it.

    Args:
        path: The file; `-` is standard input.
        error_type: Raised where it can't be read, or isn't JSON.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        return name, parse_json(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise error_type(f"{name}: must be JSON: {error}") from None
