"""Run a study for a program that calls: what ends the sweep from outside ends the program, too."""

from __future__ import annotations

import shlex
import warnings

from hpsearch.errors import HpsearchWarning
from hpsearch.journal.directory import StudyDirectory
from hpsearch.results.result_warnings import result_warnings
from hpsearch.results.study import Study
from hpsearch.run.interrupts import interrupted, passing_on
from hpsearch.run.study_run import Run, run_study
from hpsearch.sweep.sweep import Sweep

__all__ = ["run_called"]


def run_called(place: StudyDirectory, sweep: Sweep, run: Run, call: str) -> Study:
    """Run a study as `run_study` does.

    What is remarkable about its results is warned of as by the caller of `call`, which calls this.

    One that a signal has ended isn't given: the caller would take it for a whole one, and go on with its best.

    Args:
        place: Its directory.
        sweep: What the user asks for.
        run: How.
        call: The function that the user called.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it; its `directory` is the study's.
        SystemExit: Another signal did; likewise.
        HpsearchError: As of `run_study`.
    """
    where = str(place.path)
    is_importable = not (sweep.trainable or "").startswith("__main__:")
    resume = f", or with: hpsearch resume {shlex.quote(where)}" if is_importable else ""
    told = f"the study is kept in {where}; go on with the same call of {call} and directory={where!r}{resume}"
    try:
        with passing_on(run.interrupts, told):
            study = run_study(place, sweep, run)
        if study.state in ("interrupted", "killed") and not run.interrupts.signals:
            raise interrupted(told)  # a callback raised it, say
    except (KeyboardInterrupt, SystemExit) as error:
        vars(error)["directory"] = place.path
        raise
    for text in result_warnings(study):
        warnings.warn(text, HpsearchWarning, stacklevel=3)
    return study
