"""Predict for new examples, with the code saved with a designed network."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from hpsearch.cli.arguments import add_study, target
from hpsearch.errors import HpsearchError

__all__ = ["predict", "predict_arguments"]


def predict_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch predict` takes."""
    add_study(command)
    command.add_argument("new", type=Path, metavar="NEW", help="a file or folder like what it was designed for")
    command.add_argument("--output", type=target, metavar="FILE", help="write there (default: standard output)")
    command.add_argument("--trees", action="store_true", help="with the trees that lie beside the network")


def predict(args: argparse.Namespace) -> int:
    """Run the `predict.py` of a model, in a process of its own, as one without hpsearch would.

    Raises:
        HpsearchError: There is none, or it can't predict for these examples.
    """
    script = args.dir / "model" / "predict.py"
    if not script.is_file() and (args.dir / "design.json").is_file():
        raise HpsearchError(
            f"{args.dir}: must be a finished design, but the search that it began has left no model yet. Finish it "
            f"with: hpsearch design --resume {shlex.quote(str(args.dir))}"
        )
    if not script.is_file():
        raise HpsearchError(f"{args.dir}: must be what `hpsearch design` left, but there is no {script}")
    command = [sys.executable, str(script), str(args.new)]
    command += [] if args.output is None else ["--output", str(args.output)]
    command += ["--trees"] if args.trees else []
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        raise HpsearchError(done.stderr.strip().removeprefix("predict.py: "))
    print(done.stderr, end="", file=sys.stderr)
    print(done.stdout, end="")
    return 0
