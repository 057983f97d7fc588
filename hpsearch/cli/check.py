"""The command that checks a sweep's trainable before the sweep."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpsearch.check.check import check_sweep
from hpsearch.check.text import check_json, check_text
from hpsearch.cli.arguments import add_format, add_sweep
from hpsearch.cli.running import blame
from hpsearch.errors import TrainableError
from hpsearch.sweep.file import load_sweep

__all__ = ["check", "check_arguments"]

DIFFERS = 1


def check_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch check` takes."""
    add_sweep(command)
    add_format(command, "json")


def check(args: argparse.Namespace) -> int:
    """Run a trial of a sweep several times; 1 where the runs differ."""
    sweep = load_sweep(args.sweep, args.overrides)
    folders = tuple(dict.fromkeys((str(Path.cwd()), str(args.sweep.resolve().parent))))

    def say(text: str) -> None:
        print(f"running {text}", file=sys.stderr, flush=True)

    try:
        result = check_sweep(sweep, folders, say)
    except TrainableError as error:
        raise TrainableError(f"{blame(args.sweep, sweep, error)}{error}") from error
    print(check_json(result) if args.format == "json" else check_text(result), end="")
    return 0 if result.ok else DIFFERS
