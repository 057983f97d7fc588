"""The trial that this process runs. A worker sets it; in a script, it is the trial that started the script.

A script writes report lines, and its worker answers them. Any program can write such lines, see `LineReader`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from hpsearch.config.strict_json import parse_json
from hpsearch.errors import HpsearchError, TrainableError
from hpsearch.trainable import random_state
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.failures import failure_of
from hpsearch.trainable.running_trial import RunningTrial, SegmentEnd
from hpsearch.trainable.storage import writing
from hpsearch.trainable.trace import TRACE, Trace

if TYPE_CHECKING:
    from hpsearch_comm import Group

ANSWERS = "answers"
"""Name of the file in the attempt's directory in which the worker answers each report with one byte."""

GO_ON, CUT = b".", b"c"
"""The answers: the segment continues, or ends with this report."""

KIND = "hpsearch"
"""Key in a report line with another type than a report. Only `NOTE` is for programs without the trial object."""

NOTE = "note"
"""The type of a line with notes, which any program may write."""

_LONGEST_NAP = 0.005
"""Maximum seconds between two polls for an answer."""

_current: RunningTrial | None = None
_is_worker = False


def set_current_trial(trial: RunningTrial | None) -> RunningTrial | None:
    """Set the trial that this process runs, and return the previous one."""
    global _current
    previous, _current = _current, trial
    return previous


def current_trial(defaults: Mapping[str, Any] | None = None, *, max_iter: int | None = None) -> RunningTrial:
    """Return the trial that this process runs. Works in a script that the sweep started, and in a function or class.

    In a script, the first call seeds the global random generators. The generators of libraries that are imported later
    are seeded on import.

    A script that no sweep started runs by itself: its parameters are `defaults`, changed by `--NAME=VALUE` on its
    command line. It prints its reports. `HPSEARCH_END` in the environment is the last iteration, and
    `HPSEARCH_DIRECTORY` keeps the last checkpoint, from which the script resumes.

    Args:
        defaults: Values of parameters that the sweep doesn't give, nested like the sweep's groups.
        max_iter: The last iteration of a script that runs by itself; None: three, or for a loop of your own its end.

    Raises:
        TrainableError: A sweep's worker does not run a trial; or the script's command line is wrong.
    """
    trial, assignment = _current, os.environ.get("HPSEARCH_TRIAL")
    if trial is None and assignment is not None:
        trial = _open_script_trial(Path(assignment))
        random_state.seed_all(trial.seed)
        random_state.seed_when_imported(trial.seed)
    elif trial is None and _is_worker:
        raise TrainableError(
            "hpsearch.current_trial() must be called while a trial runs, but this process of a sweep runs none: call "
            "it in the trainable, not when its module is imported; or name the script as `program` in a sweep file, "
            "and start that with `hpsearch run SWEEP.yaml`"
        )
    elif trial is None:
        from hpsearch.trainable.alone import script_alone

        trial = script_alone(defaults or {}, max_iter)
        atexit.register(_end_at_exit, trial)
    set_current_trial(trial)
    if defaults:
        _fill(trial.params, defaults)
    return trial


def trial_of_script() -> tuple[RunningTrial, bool]:
    """Return the trial that started this script, and whether the script has called `current_trial` before.

    Nothing is seeded, since the script doesn't know of the trial.
    """
    if _current is not None:
        return _current, True
    trial = _open_script_trial(Path(os.environ["HPSEARCH_TRIAL"]))
    set_current_trial(trial)
    return trial, False


def _fill(params: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Add the defaults of parameters that are missing."""
    for name, default in defaults.items():
        if isinstance(default, Mapping):
            group = params.setdefault(name, {})
            if isinstance(group, dict):
                _fill(group, default)
        else:
            params.setdefault(name, default)


def mark_worker() -> None:
    """Record that this process runs trials of a sweep: outside of them it has no current trial."""
    global _is_worker
    _is_worker = True


def in_trial() -> bool:
    """Return whether this process runs a trial, or is the script of a trial."""
    return _current is not None or "HPSEARCH_TRIAL" in os.environ


def _open_script_trial(assignment: Path) -> RunningTrial:
    """Start the trial of an assignment file, which reports through the report file."""
    config = Assignment.from_json(json.loads(assignment.read_text("utf-8")))
    lines = Path(os.environ["HPSEARCH_REPORTS"])
    form = _join_group if config.world_size > 1 else None
    trial = RunningTrial(config, _LineWriter(lines, Path(config.directory) / ANSWERS), form)
    _report_uncaught_errors(trial, lines)
    atexit.register(_end_at_exit, trial)
    return trial


def _end_at_exit(trial: RunningTrial) -> None:
    """Send the delayed reports and the last checkpoint at the end of the script."""
    try:
        if trial.at_end is not None:
            trial.at_end(getattr(sys, "last_value", None))  # the script's uncaught error
    except SegmentEnd:
        pass
    except HpsearchError as error:  # errors in atexit handlers do not reach the excepthook
        sys.excepthook(type(error), error, error.__traceback__)
    trial.returned()


def _join_group() -> Group:
    from hpsearch_comm import init

    return init()


class _LineWriter:
    """Listener in a script: writes the trial's messages to the report file."""

    def __init__(self, lines: Path, answers: Path) -> None:
        self._lines = lines
        self._answers = answers
        self._reports = 0
        self._trace = Trace(Path(os.environ[TRACE])) if TRACE in os.environ else None

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        self._reports += 1
        self._write("report", iteration=iteration, seconds=seconds, metrics=metrics)
        if self._trace is not None:
            self._trace.reported(iteration)

    def noted(self, notes: Mapping[str, str]) -> None:
        self._write(NOTE, notes=notes)

    def cut_requested(self) -> bool:
        """Wait for the worker's answer, and return whether the segment must end.

        A script that does not wait would run past the end of its segment.
        """
        nap = 0.0002
        with self._answers.open("rb") as file:
            while not (answer := os.pread(file.fileno(), 1, self._reports - 1)):
                time.sleep(nap)
                nap = min(nap * 1.5, _LONGEST_NAP)
        return answer == CUT

    def was_cut(self) -> None:
        self._write("cut")

    def saved(self, iteration: int, name: str) -> None:
        self._write("saved", iteration=iteration, checkpoint=name)

    def _write(self, kind: str, **values: object) -> None:
        with writing(f"the report to {self._lines}"):
            _append_line(self._lines, {KIND: kind, **values})


def _append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line, in one write."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _report_uncaught_errors(trial: RunningTrial, lines: Path) -> None:
    """Report uncaught errors that hpsearch raised, or that another rank caused, with their kind to the worker."""
    previous_hook = sys.excepthook

    def report_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        trial.drop_kept()
        failure = failure_of(error)
        if failure.kind == "peer" or isinstance(error, HpsearchError):
            with contextlib.suppress(OSError):
                facts = {"kind": failure.kind, "message": failure.message, "key": failure.key}
                _append_line(lines, {KIND: "failed", **facts})
        previous_hook(kind, error, trace)

    sys.excepthook = report_error


_BEGINNING = 256
"""Number of bytes at the start of the file that are compared to detect that the file was overwritten."""


class LineReader:
    """Reads the report file of a script while lines are appended to it: one JSON object per line.

    Any program can write its metrics by name. It may add `"iteration"` (which must be the next one) and `"checkpoint"`
    (the path of a directory or file, relative to the attempt's directory):

        {"accuracy": 0.91, "checkpoint": "model-3"}

    It may also write lines with notes, by name:

        {"hpsearch": "note", "notes": {"commit": "4f1c2a9"}}

    `hpsearch.current_trial()` writes lines with their type under `"hpsearch"`. The trial object in the script has
    already checked the metrics of such a line and written its checkpoint.

        {"hpsearch": "report", "iteration": 3, "seconds": 0.2, "metrics": {"accuracy": 0.91}}
        {"hpsearch": "saved", "iteration": 3, "checkpoint": "hpsearch-checkpoint-3"}
        {"hpsearch": "cut"}
        {"hpsearch": "failed", "kind": "contract", "message": "every report must have ...", "key": "metric.loss"}
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self._number = 0
        self._incomplete = b""
        self._beginning = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, ended: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the new complete lines, with their numbers from 1.

        Args:
            ended: Whether the script has ended. Then the last line needs no line feed.

        Raises:
            TrainableError: A line is not a JSON object, or the file was overwritten.
        """
        appended = self._file.read()
        if os.pread(self._file.fileno(), len(self._beginning), 0) != self._beginning:
            raise TrainableError(
                "lines must be appended to $HPSEARCH_REPORTS, but it was written over, and reports may be lost: "
                "write with >>, or open it to append"
            )
        self._beginning = self._beginning or appended[:_BEGINNING]
        *lines, self._incomplete = (self._incomplete + appended).split(b"\n")
        if ended:
            lines.append(self._incomplete)
            self._incomplete = b""
        for line in lines:
            self._number += 1
            if line.strip():
                yield self._number, self._parsed(line)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        value, reason = None, ""
        try:
            value = parse_json(line)
        except (json.JSONDecodeError, UnicodeDecodeError):
            pass  # the message shows the line, which is clearer
        except ValueError as error:
            reason = f": {error}"
        if not isinstance(value, dict):
            text = line.decode("utf-8", "backslashreplace").strip()
            raise TrainableError(
                f"line {self._number} of $HPSEARCH_REPORTS must be a JSON object such as "
                f'{{"accuracy": 0.9}}, but is {text if len(text) <= 80 else text[:77] + "..."!r}{reason}'
            )
        return value
