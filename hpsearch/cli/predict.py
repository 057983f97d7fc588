"""Predict for new examples, by the code that lies beside a designed network."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from hpsearch.errors import HpsearchError

__all__ = ["predict"]


def predict(given: argparse.Namespace) -> int:
    """Run the `predict.py` of a model, in a process of its own, as one without hpsearch would.

    Raises:
        HpsearchError: There is none, or it can't predict for these examples.
    """
    script = given.dir / "model" / "predict.py"
    if not script.is_file() and (given.dir / "design.json").is_file():
        raise HpsearchError(
            f"{given.dir}: must be a finished design, but the search that it began has left no model yet. Finish it "
            f"with: hpsearch design --resume {shlex.quote(str(given.dir))}"
        )
    if not script.is_file():
        raise HpsearchError(f"{given.dir}: must be what `hpsearch design` left, but there is no {script}")
    command = [sys.executable, str(script), str(given.new)]
    command += [] if given.output is None else ["--output", str(given.output)]
    command += ["--trees"] if given.trees else []
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        raise HpsearchError(done.stderr.strip().removeprefix("predict.py: "))
    print(done.stderr, end="", file=sys.stderr)
    print(done.stdout, end="")
    return 0
