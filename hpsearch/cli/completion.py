"""Completion in the shell, and which version this is."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from typing import Any

import hpsearch

__all__ = ["ShowVersion", "completion"]

_BESIDE = {"torch": "torch", "ray": "Ray"}


_PATHS = frozenset({"DIR", "FOLDER", "FILE", "SWEEP.yaml", "SUITE.yaml", "SWEEP.yaml|DIR", "DATA", "NEW"})
"""What stands for a path in the help."""


class ShowVersion(argparse.Action):
    """Prints the version, and those of what trials run on, as they are installed; none of it is imported."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: str | Sequence[Any] | None,
        option: object = None,
    ) -> None:
        """Print it and end."""
        import importlib.metadata

        told = [f"Python {platform.python_version()}"]
        for package, name in _BESIDE.items():
            try:
                told.append(f"{name} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                told.append(f"no {name}")
        print(f"hpsearch {hpsearch.__version__} ({', '.join(told)})")
        parser.exit()


def completion(given: argparse.Namespace) -> int:
    """Print the script that completes the words of the command line."""
    import shtab

    from hpsearch.cli.parser import build_parser

    parser = build_parser()
    for command in _commands(parser):
        for action in command._actions:
            if action.metavar in _PATHS or action.dest == "dir":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=given.shell))
    return 0


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Give the parsers of all commands."""
    choices = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    return list(choices.values())
