"""Call the command line, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpsearch.cli import main

ROOT = Path(__file__).parents[3]

PROGRAM = str(Path(sys.executable).parent / "hpsearch")

PATIENCE = 150.0
"""Seconds that a test waits at most; a busy machine starts Ray and its workers in one or two minutes."""

Call = Callable[..., "Answer"]


@dataclass(frozen=True)
class Answer:
    """What a command left."""

    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Answer:
    """Run a command in this process."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit:  # argparse's
        code = exit.code if isinstance(exit.code, int) else 1
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return Answer(code, out, err)


def begin(*arguments: object, cwd: Path, **more: str) -> subprocess.Popen[str]:
    """Start a command as a process of its own; `more` is put into its environment."""
    return subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, without a cluster to join, and with the tests' trainables importable."""
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def write_sweep(path: Path, trainable: str | None = "steps", **changes: Any) -> Path:
    """Write a small sweep file; None takes a key away, and a trainable's name without a module is one of ours."""
    if trainable is not None and ":" not in trainable:
        trainable = f"tests.hpsearch.support.cli_trainables:{trainable}"
    sweep: dict[str, Any] = {
        "trainable": trainable,
        "metric": {"name": "loss", "goal": "minimize"},
        "method": "random",
        "max_iter": 2,
        "run_cap": 4,
        "parameters": {"x": {"min": 0.0, "max": 1.0}},
        **changes,
    }
    path.write_text(yaml.safe_dump({key: value for key, value in sweep.items() if value is not None}, sort_keys=False))
    return path


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something is so; fail when the process ends before."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            pytest.fail(f"the process ended with {process.returncode}: {process.communicate()}")
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)  # to look may take some milliseconds itself, of a core that the process wants
