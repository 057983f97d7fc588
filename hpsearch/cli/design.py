"""The command that designs a network for a data set."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from hpsearch.design import Asked, design, resume
from hpsearch.design.asked import read_limits, read_seconds
from hpsearch.design.design import Surroundings
from hpsearch.design.report import Report
from hpsearch.errors import DesignError
from hpsearch.observers.screen import choose_progress
from hpsearch.run.launched import check_launched_once

__all__ = ["design_network"]

INTERRUPTED = 130


def design_network(given: argparse.Namespace) -> int:
    """Design a network, or go on with one."""
    check_launched_once("hpsearch design")
    around = Surroundings(
        say=(lambda text: None) if given.quiet else lambda text: print(text, flush=True),
        display=lambda: choose_progress(sys.stdout, given.quiet),
        backend=given.backend,
        began=given.began,
        sweep_only=given.sweep_only,
    )
    seconds = None if given.time is None else read_seconds(given.time)
    if (given.data is None) == (given.resume is None):
        raise DesignError("design: must be given a data set, or --resume DIR")
    try:
        if given.resume is not None:
            _refuse_beside_resume(given)
            folder = given.resume
            report = resume(folder, around, seconds)
        else:
            folder = given.output or Path("runs") / f"design-{_named(given.data)}"
            asked = Asked(
                source=os.path.abspath(given.data.expanduser()),  # noqa: PTH100 - a link's name says what it is
                target=given.target,
                goal=given.goal,
                limits=read_limits(given.limit),
                seconds=600.0 if seconds is None else seconds,
                workers=given.workers,
                seed=given.seed,
                test_share=given.test_share,
            )
            report = design(asked, folder, around)
    except KeyboardInterrupt:
        print(f"interrupted; {_way_on(given)}")
        return INTERRUPTED
    if report is None and given.sweep_only:
        print(f"change it as you like, then: hpsearch design --resume {shlex.quote(str(folder))}")
        return 0
    if report is None:
        print(f"interrupted; {_way_on(given)}")
        return INTERRUPTED
    _show(report, folder)
    return 0


def _show(report: Report, folder: Path) -> None:
    print(report.text(folder), end="")


def _way_on(given: argparse.Namespace) -> str:
    folder = given.resume or given.output or Path("runs") / f"design-{_named(given.data)}"
    return f"go on with: hpsearch design --resume {shlex.quote(str(folder))}"


def _refuse_beside_resume(given: argparse.Namespace) -> None:
    """What was asked for at first is kept, so that it can't be another thing that goes on."""
    options = {
        "--target": given.target,
        "--goal": given.goal,
        "--limit": given.limit,
        "--output": given.output,
        "--workers": given.workers,
    }
    named = [name for name, value in options.items() if value]
    named += ["--seed"] if given.seed != 0 else []
    named += ["--test-share"] if given.test_share != 0.2 else []
    if named:
        raise DesignError(
            f"design: {', '.join(named)} must not stand beside --resume, which goes on with what was asked for; change "
            "sweep.yaml, or design anew in a folder of its own"
        )


def _named(data: Path) -> str:
    """Give a name for the folder: that of the file or folder."""
    return re.sub(r"[^\w.-]+", "-", data.stem or data.resolve().name).strip("-.") or "data"
