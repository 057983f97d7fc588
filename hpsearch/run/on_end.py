"""Run the sweep's `on_end` command when the sweep ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpsearch.errors import HpsearchError, Interrupted
from hpsearch.results.study import Study, load
from hpsearch.run.interrupts import Interrupts

LOG = "on_end.log"
"""File of the study to which the command's output is appended."""

ON_END_SECONDS = 600.0
"""Limit of its running time."""

_LOOK_SECONDS = 0.1


def run_on_end(
    command: str | Sequence[str], directory: Path, state: str, seconds: float = ON_END_SECONDS
) -> Sequence[int]:
    """Run the command, and report failures on standard error; they don't affect the sweep.

    Return the signals that this process received meanwhile.

    Args:
        command: A list of words, or a line for the shell.
        directory: The study's directory.
        state: How the run ended, if the journal doesn't record it.
        seconds: Its limit; then it is killed, with its children that didn't detach.
    """
    interrupts = Interrupts()
    try:
        with (directory / LOG).open("ab") as log, interrupts:
            environment = {**os.environ, **_environment(directory, state)}
            log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {environment['HPSEARCH_STATE']}\n".encode())
            log.flush()
            process = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process, which ends the command
            )
            problem = _outcome(process, interrupts, seconds)
    except (OSError, ValueError, HpsearchError) as error:  # ValueError: a NUL in a word
        problem = str(error)
    if problem:
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it
            print(f"hpsearch: on_end: {problem}; the sweep's result stays (see {directory / LOG})", file=sys.stderr)
    return interrupts.signals


def _outcome(process: subprocess.Popen[bytes], interrupts: Interrupts, seconds: float) -> str:
    """Wait for the command; return an error message, or an empty text."""
    deadline = time.monotonic() + seconds
    problem = f"the command must end within {seconds:g} s, and was killed"
    with suppress(Interrupted):
        while not interrupts.count and time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_LOOK_SECONDS)
                return f"the command must end with exit code 0, got {code}" if code else ""
    if interrupts.count:
        problem = "the command was killed, as this process was asked to end"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return problem


def _environment(directory: Path, state: str) -> Mapping[str, str]:
    """Return the environment variables with the results, for the command."""
    variables = {"HPSEARCH_STUDY": str(directory.absolute()), "HPSEARCH_STATE": state}
    with suppress(HpsearchError, OSError):
        study = load(directory)
        variables |= {"HPSEARCH_NAME": study.sweep.name, "HPSEARCH_TRIALS": str(len(study.trials))}
        # "killed": the run couldn't journal its end, for example because the disk was full.
        state = state if state and study.state == "killed" else study.state
        variables |= {"HPSEARCH_STATE": state, "HPSEARCH_MESSAGE": study.message}
        variables |= _best(study)
    return variables


def _best(study: Study) -> Mapping[str, str]:
    """Return the best feasible trial and its value as variables; empty without one, and with several goals."""
    leaders = [row for row in study.leaders if row.feasible]
    if study.sweep.objective.several or not leaders:
        return {}
    (best,) = leaders
    return {"HPSEARCH_BEST_TRIAL": str(best.number), "HPSEARCH_BEST_VALUE": repr(best.value)}
