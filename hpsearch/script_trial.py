"""The trial object within a script that a sweep started."""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hpsearch import random_state
from hpsearch.errors import CheckpointError
from hpsearch.failures import exception_line, failure_of
from hpsearch.report_lines import KIND, append_line
from hpsearch.running_trial import Assignment, RunningTrial

if TYPE_CHECKING:
    from hpsearch_comm import Group

__all__ = ["CUT_FILE", "open_script_trial"]

CUT_FILE = "cut"
"""Name of the file in the attempt's directory that asks a script to end at its next report."""


def open_script_trial(assignment: Path) -> RunningTrial:
    """Take up the trial that the worker described: seed the generators, and report through the file."""
    facts = Assignment(**json.loads(assignment.read_text("utf-8")))
    lines = Path(os.environ["HPSEARCH_REPORTS"])
    form = _join_others if facts.world_size > 1 else None
    trial = RunningTrial(facts, _LineWriter(lines, Path(facts.directory) / CUT_FILE), form)
    random_state.seed_all(facts.seed)
    random_state.seed_when_imported(facts.seed)
    _tell_of_uncaught_errors(lines)
    atexit.register(_save_at_exit, trial, lines)
    return trial


def _join_others() -> Group:
    from hpsearch_comm import init

    return init()


class _LineWriter:
    """Hears the trial in the script, and writes to the worker."""

    def __init__(self, lines: Path, cut_file: Path) -> None:
        self._lines = lines
        self._cut_file = cut_file

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        self._write("report", iteration=iteration, seconds=seconds, metrics=metrics)

    def cut_requested(self) -> bool:
        return self._cut_file.exists()

    def was_cut(self) -> None:
        self._write("cut")

    def saved(self, iteration: int, name: str) -> None:
        self._write("saved", iteration=iteration, checkpoint=name)

    def _write(self, kind: str, **facts: object) -> None:
        append_line(self._lines, {KIND: kind, **facts})


def _tell_of_uncaught_errors(lines: Path) -> None:
    """Let the worker know a broken contract, or the loss of a peer, from an error of the script's own."""
    former = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failure = failure_of(error)
        if failure.kind in ("contract", "checkpoint", "peer"):
            append_line(lines, {KIND: "failed", "kind": failure.kind, "message": failure.message})
        former(kind, error, trace)

    sys.excepthook = tell


def _save_at_exit(trial: RunningTrial, lines: Path) -> None:
    """Save what the last report offered; where the script failed, the worker looks at its status first."""
    try:
        trial.save_offered()
    except Exception as error:  # the user's own function may raise anything
        traceback.print_exc()
        message = str(error) if isinstance(error, CheckpointError) else exception_line(error)
        append_line(lines, {KIND: "failed", "kind": "contract", "message": message})
