"""`hpsearch run`: run a sweep file in a new directory, or resume the same sweep in its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.arguments import add_sweep
from hpsearch.cli.running import (
    add_output,
    add_place,
    check_runs_here,
    notes_of_script,
    observers_located,
    print_notes,
    run_and_report,
    with_workers,
)
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.labels import add_tags, check_tags, write_note
from hpsearch.run.launched import check_launched_once
from hpsearch.run.plan import make_plan
from hpsearch.run.study_run import create_study
from hpsearch.run.warm_start import recorded, warm_start_of
from hpsearch.sweep.file import SweepFile
from hpsearch.sweep.sweep import Sweep

__all__ = ["run", "run_arguments"]

_MOST_PLANNED = 1_000
"""Trials of a sweep that is planned before it runs."""


def run_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch run` takes."""
    add_sweep(command)
    command.add_argument("--dir", type=Path, help="the study's directory (default: the next free runs/<name>-<n>)")
    text = "begin with results that exist: a study's directory, a CSV file, or sqlite:///study.db#name of Optuna's"
    command.add_argument("--from", dest="warm_start", action="append", default=[], metavar="SOURCE", help=text)
    command.add_argument("--tag", action="append", default=[], metavar="TAG", help="put a tag on it; may be repeated")
    command.add_argument("--note", metavar="TEXT", help="write a note on it, such as why it is run")
    add_place(command)
    add_output(command)


def run(args: argparse.Namespace) -> int:
    """Run a sweep file in a new directory, or resume the same sweep in its own."""
    check_launched_once("hpsearch run")
    check_tags(args.tag)
    file = SweepFile.read(args.sweep, args.overrides)
    sweep = with_workers(file.sweep(), args.workers)
    print_notes([*file.notes(), *_without_end(sweep), *_from_zero(sweep), *notes_of_script(sweep)])
    place = None if args.dir is None else StudyDirectory(args.dir)
    if place is None or not place.exists():
        with observers_located(args.sweep):
            check_runs_here(args, sweep, (str(args.sweep.resolve().parent),))
        begins_with = warm_start_of(args.warm_start, sweep, None)
        text = args.sweep.read_text(encoding="utf-8")
        place = create_study(sweep, None if place is None else place.path, text, more=recorded(begins_with))
    else:
        warm_start_of(args.warm_start, sweep, place)

    def label() -> None:
        if args.tag:
            add_tags(place, args.tag)
        if args.note is not None:
            write_note(place, args.note)

    return run_and_report(place, sweep, args, args.sweep, held=label)


def _without_end(sweep: Sweep) -> list[str]:
    if not sweep.unbounded or sweep.limits.max_time is not None:
        return []
    return ["run_cap isn't given: trials are created until the sweep is stopped, with Ctrl-C or hpsearch stop"]


def _from_zero(sweep: Sweep) -> list[str]:
    """Return a note on the cost of a script without checkpoints, if trials pause and resume."""
    early, run_cap = sweep.early_terminate, sweep.run_cap
    bounded = not sweep.unbounded and (run_cap is not None or not sweep.searcher.capabilities.finite)
    if early is None or early.capabilities.live:
        return []
    if sweep.trainable is not None or not bounded or (run_cap or 0) > _MOST_PLANNED:
        return []
    if sweep.program is not None and "checkpoint" in _text_of(sweep.program).lower():
        return []
    plan = make_plan(sweep, max(sweep.resources.workers or 1, sweep.resources.workers_per_trial))
    if plan.iterations_from_zero == plan.iterations:
        return []
    told = f"{plan.iterations_from_zero:,} iterations in all in place of {plan.iterations:,}"
    return [f"a script that saves no checkpoint begins anew wherever its trial goes on: {told}"]


def _text_of(program: str) -> str:
    try:
        return Path(program).read_text("utf-8", "replace")
    except OSError:
        return ""
