"""Completion of the command line in the shell."""

from __future__ import annotations

import argparse

from hpsearch.cli.parser import build_parser

__all__ = ["completion", "completion_arguments"]

_PATHS = frozenset({"DIR", "FOLDER", "FILE", "SWEEP.yaml", "SUITE.yaml", "SWEEP.yaml|DIR", "DATA", "NEW"})
"""Placeholders of paths in the help."""


def completion_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch completion` takes."""
    command.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def completion(args: argparse.Namespace) -> int:
    """Print the script that completes the words of the command line."""
    import shtab

    parser = build_parser()
    for command in _commands(parser):
        for action in command._actions:
            if action.metavar in _PATHS or action.dest == "dir":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=args.shell))
    return 0


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return the parsers of all commands."""
    choices = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    return list(choices.values())
